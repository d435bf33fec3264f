"""Helpers of these tests: find the checkpoint that would be chosen, and damage or date files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hpclaunch.system.checkpoints.service import CheckpointService

Rounds = list[list[int | None]]


def newest(
    where: Path | str, rounds: Rounds | None = None, **settings: object
) -> tuple[str, list[str]]:
    """Return (path or "", "name: why" of those that are passed over), with every byte read."""
    server = CheckpointService(
        str(where), **{"exclude": (), "complete": "", "verify": "full", **settings}
    )
    while True:
        found = server.search(rounds or [])
        lines = [f"{f.candidate.name}: {f.lacks}" for f in found if f.lacks and not f.quiet]
        if not found or found[-1].lacks is not None:
            quiet = [f"{f.candidate.name}: {f.lacks}" for f in found if f.quiet]
            return "", lines + quiet
        if not server.read(found[-1])[0]:
            return found[-1].candidate.path, lines


def passed_over(where: Path | str, good: Path | str = "", **more: object) -> str:
    """Return the only line about a checkpoint newer than `good`, which is chosen."""
    path, (line,) = newest(where, **more)
    assert path == str(good)
    return line


def date(path: Path, at: float) -> None:
    """Give a file, or all that is in a directory, a time in seconds."""
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        os.utime(each, (at, at))


def age(path: Path, seconds: float) -> None:
    """Make all files that much older; keep the order in which they were written."""
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        info = each.lstat()
        earlier = int(seconds * 10**9)
        times = (info.st_atime_ns - earlier, info.st_mtime_ns - earlier)
        os.utime(each, ns=times, follow_symlinks=False)


def damage(path: Path, change: Callable[[bytearray], bytes]) -> None:
    """Rewrite a file's bytes, keeping its time."""
    info = path.stat()
    path.write_bytes(change(bytearray(path.read_bytes())))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def zero_the_middle(data: bytearray) -> bytearray:
    third = len(data) // 3
    data[third : 2 * third] = bytes(third)
    return data


def cut_short(data: bytearray) -> bytearray:
    return data[: len(data) // 2]


def lose_the_last_byte(data: bytearray) -> bytearray:
    return data[:-1]


def lose_the_first_page(data: bytearray) -> bytearray:
    data[:4096] = bytes(4096)
    return data


def empty(_data: bytearray) -> bytes:
    return b""
