"""torch.distributed.checkpoint (DCP), also `async_save`, torchtitan, and what others save with it.

Every rank writes its shards, `__R_0.distcp`. Then the first rank writes `.metadata.tmp`, which
names each part of each tensor in them, and renames it to `.metadata`. Without collectives
(`no_dist`) every rank writes metadata of its own, `__R.metadata`, and no file is the last.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from .. import archives, pickles
from ..candidates import (
    CheckpointCandidate,
    FileKind,
    Format,
    IncompleteError,
    Location,
    Part,
    need,
    none_newer,
    step_of,
)
from ..listing import Folder, Identity

METADATA = ".metadata"
SHARD = ".distcp"
BEGINNING = 16 << 20
OPTIMIZER = (b"optim", b"exp_avg", b"momentum_buffer", b"param_groups")
OF_RANK = re.compile(r"__(\d+)\.metadata")
SHARD_OF_RANK = re.compile(r"__(\d+)_\d+\.distcp")
Pieces = tuple[tuple[int, int], ...]  # (start, length) in bytes


class Dcp:
    name = "DCP"
    load = "dcp.load(state, checkpoint_id=path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        return candidate(self, place)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder = candidate.folder
        if metadata_of(folder) in ([], [METADATA]):
            yield from sealed_shards(folder)
            return
        for entry in candidate.files_of_ranks(OF_RANK, "__{}.metadata").values():
            yield from sealed_shards(folder, entry.name)


def candidate(form: Format, place: Location) -> CheckpointCandidate | None:
    """Return the checkpoint in a directory with shards or metadata; None if it has neither."""
    files = place.folder.files
    shards = [name for name in files if name.endswith(SHARD)]
    seals = metadata_of(place.folder)
    if not shards and not seals:
        return None
    decides = max((files[name] for name in seals or shards), key=lambda entry: entry.time)
    found = CheckpointCandidate(place, form, decides, step_of(place.name))
    ranks = [int(m[1]) for name in shards if (m := SHARD_OF_RANK.fullmatch(name))]
    found.world = max(ranks) + 1 if ranks else None
    found.bare = None
    with contextlib.suppress(OSError):  # whoever reads the parts finds out why
        if seals and _names_optimizer(decides.path, decides.identity):
            found.bare = False
    return found


def metadata_of(folder: Folder) -> list[str]:
    """Return the names of the files of metadata: one, or without collectives one of each rank."""
    if METADATA in folder.files:
        return [METADATA]
    return [name for name in folder.files if OF_RANK.fullmatch(name)]


def sealed_shards(folder: Folder, metadata: str = METADATA) -> list[Part]:
    """Return the shards that the metadata name. Raises IncompleteError if the metadata are missing,
    or older than a shard.
    """
    seal = need(folder.files, metadata, "which torch writes once all ranks have saved")
    found = list(shards(folder, metadata))
    none_newer(found, seal)
    return found


def shards(folder: Folder, metadata: str = METADATA) -> Iterator[Part]:
    """Yield the shards that the metadata name. Raises IncompleteError if one is missing."""
    entry = folder.files[metadata]
    try:
        found = _pieces(entry.path, entry.identity)
    except ValueError as e:
        raise IncompleteError(f"{metadata} is cut short or damaged ({e})") from e
    if not found:
        raise IncompleteError(f"{metadata} names no shard")
    folder.files.look()
    for name, pieces in found.items():
        yield Part(need(folder.files, name), FileKind.PIECES, name, pieces, entry.identity)


@lru_cache(maxsize=1024)
def _names_optimizer(path: str, _identity: Identity) -> bool:
    """Return whether the metadata name an optimizer. The beginning has the names of all tensors."""
    data = archives.read_beginning(path, BEGINNING)
    return any(word in data for word in OPTIMIZER)


def _pieces(path: str, identity: Identity) -> dict[str, Pieces]:
    """Return the pieces of each file. Raises OSError, and ValueError (damage)."""
    folder, name = os.path.split(path)
    known = _known(folder)
    if name not in known or known[name][0] != identity:
        with archives.opened(path) as window:
            if window.length > archives.MOST_PICKLE:
                raise ValueError(f"larger than {archives.MOST_PICKLE >> 20} MiB")
            found = {shard: tuple(each) for shard, each in pickles.pieces(window).items()}
        known[name] = identity, found
    return known[name][1]


@lru_cache(maxsize=2)  # those of a large model have many megabytes
def _known(_folder: str) -> dict[str, tuple[Identity, dict[str, Pieces]]]:
    """Return the cache of a directory: the pieces that each of its metadata files names."""
    return {}
