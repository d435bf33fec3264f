"""Checkpoints that are directories. Standard library only, and nothing is unpickled.

The rule: a directory is a checkpoint once it is **sealed**, by a file that is written last; if
nothing in it is newer than the seal; and if all that torch.save wrote in it is whole. Without a
seal it may lack what some rank had no time to begin, and nothing would show it.
"""

from __future__ import annotations

import contextlib
import os
import pickletools
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .archives import SHARD, SUFFIXES, incomplete

METADATA = ".metadata"  # DCP's
COMPLETE = ".complete"  # a script's own
LATEST = "latest"  # DeepSpeed's
UNSEALED = f"nothing says that it is complete ({METADATA}, {COMPLETE}, or DeepSpeed's {LATEST})"
SLACK = 2 * 10**9  # nanoseconds between the clocks of the nodes that write one checkpoint
# DeepSpeed's rank 0 does not wait for the others before it writes `latest`, but with ZeRO-3. A save
# that is not finished, of the same name, comes later than this.
EARLY = 60 * 10**9
TAG = 255  # bytes of a name: `latest` may also be a large file of another kind
READERS = 8  # threads: a parallel file system is slow for a single one

Pieces = list[tuple[int, int]]  # (start, length) in bytes; none: the whole file


def seal(directory: Path) -> Path | None:
    """DCP (torch.distributed.checkpoint) renames its `.metadata` into place once all ranks have
    written. DeepSpeed then names the directory in `latest`, beside it; under Lightning `latest` is
    in the directory and names another therein. A script that saves in its own way writes
    `.complete` last.
    """
    for name in (COMPLETE, METADATA):
        if (directory / name).is_file():
            return directory / name
    if _tag(directory.parent) == directory.name:
        return directory.parent / LATEST
    if (tag := _tag(directory)) and (directory / tag).is_dir():
        return directory / LATEST
    return None


def _tag(directory: Path) -> str:
    with contextlib.suppress(OSError), (directory / LATEST).open("rb") as f:
        return os.fsdecode(f.read(TAG).strip())
    return ""


def unsealed(directory: Path) -> str:
    """Why a directory without a seal is passed over; "" where it was not meant to be one."""
    try:
        known = any(Path(name).suffix in SUFFIXES for name in os.listdir(directory))
    except OSError:
        known = False
    return UNSEALED if known else ""


def lacks(directory: Path, seal: Path) -> str | None:
    """Why a sealed directory is not complete; None if it is."""
    try:
        contents = dict(_contents(directory, seal))
    except (OSError, ValueError) as e:
        return str(e)
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(incomplete, contents, contents.values())
        for path, reason in zip(contents, found, strict=True):
            if reason:
                pool.shutdown(cancel_futures=True)
                return f"{path.relative_to(directory)}: {reason}"
    return None


def _contents(directory: Path, seal: Path) -> Iterator[tuple[Path, Pieces]]:
    """Its files. Raises ValueError where one is missing, or newer than its seal: that belongs to a
    later save into the same directory, which was not finished, so that it holds a part of each.
    """
    for place, _, names in os.walk(directory):
        for path in (Path(place, name) for name in names):
            if path.name == METADATA:
                for shard, pieces in _shards(path):
                    _hold(shard, path, directory)
                    yield shard, pieces
            elif path.suffix != SHARD:  # of which the metadata name those that count
                if seal.name != METADATA:  # Lightning adds to what DCP has sealed
                    _hold(path, seal, directory)
                yield path, []


def _hold(path: Path, seal: Path, directory: Path) -> None:
    name = path.relative_to(directory)
    if not path.exists():
        raise ValueError(f"{name} is missing")
    slack = EARLY if seal.name == LATEST else SLACK
    if path.stat().st_mtime_ns > seal.stat().st_mtime_ns + slack:
        raise ValueError(f"{name} is newer than {seal.name}, which is written last")


def _shards(metadata: Path) -> Iterator[tuple[Path, Pieces]]:
    """The files that DCP's metadata name, and in them a piece for each part of a tensor.

    The metadata are a pickle, of which the constants are read and no more: a piece is an object
    with a relative_path, an offset and a length (_StorageInfo in torch's checkpoint/filesystem.py).
    Raises ValueError when they are not whole.
    """
    words: list[Any] = []
    memo: list[Any] = []
    last: Any = None
    try:
        for op, value, _ in pickletools.genops(metadata.read_bytes()):
            if op.name == "MEMOIZE":
                memo.append(last)
            elif op.name not in ("PROTO", "FRAME"):
                last = memo[int(value or 0)] if "GET" in op.name else value
                words += [] if last is None else [last]
    except (ValueError, IndexError) as e:
        raise ValueError(f"{METADATA} is cut short or damaged ({e})") from e
    shards: dict[Path, Pieces] = defaultdict(list)
    for i, word in enumerate(words):
        if word == "relative_path":
            match words[i : i + 6]:
                case [_, str(name), "offset", int(start), "length", int(length)]:
                    shards[metadata.parent / name].append((start, length))
    if not shards:
        raise ValueError(f"{METADATA} names no shard")
    yield from shards.items()
