"""torch.distributed.checkpoint (DCP), also `async_save`, torchtitan, and what others save with it.

Every rank writes its shards, `__R_0.distcp`. When all have, the first writes `.metadata.tmp`, which
names each part of each tensor in them, and renames it to `.metadata`. Without collectives
(`no_dist`) every rank writes metadata of its own, `__R.metadata`, and nothing comes last.
"""

from __future__ import annotations

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
    all_ranks,
    need,
    none_newer,
    step_of,
)
from ..confinement import UnansweredError
from ..listing import Entry, Folder, Identity

METADATA = ".metadata"
SHARD = ".distcp"
BEGINNING = 16 << 20
OPTIMIZER = (b"optim", b"exp_avg", b"momentum_buffer", b"param_groups")
OF_RANK = re.compile(r"__(\d+)\.metadata")
SHARD_OF_RANK = re.compile(r"__(\d+)_\d+\.distcp")
Parts = tuple[tuple[int, int], ...]  # of a file: (start, length) in bytes


class Dcp:
    name = "DCP"
    load = "dcp.load(state, checkpoint_id=path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        return candidate(self, place)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder = candidate.folder
        if METADATA in folder.files or not any(map(OF_RANK.fullmatch, folder.files)):
            yield from sealed_shards(folder)
            return
        files = folder.files
        saved = {int(m[1]): files[name] for name in files if (m := OF_RANK.fullmatch(name))}
        ranks = candidate.facts.without_left(saved, candidate.time)
        world = candidate.facts.world_at(candidate.time)
        candidate.world = all_ranks(ranks, world, "__{}.metadata")
        for entry in ranks.values():
            yield from sealed_shards(folder, entry.name)


def candidate(form: Format, place: Location) -> CheckpointCandidate | None:
    """Return the checkpoint in a directory with shards or metadata; None if it has neither."""
    files = place.folder.files
    shards = [name for name in files if name.endswith(SHARD)]
    seals = [name for name in files if name == METADATA or OF_RANK.fullmatch(name)]
    if not shards and not seals:
        return None
    decides = max((files[name] for name in seals or shards), key=lambda entry: entry.time)
    found = CheckpointCandidate(place, form, decides, step_of(place.name))
    ranks = [int(m[1]) for name in shards if (m := SHARD_OF_RANK.fullmatch(name))]
    found.world = max(ranks) + 1 if ranks else None
    found.bare = False if seals and _names_optimizer(decides.path, decides.identity) else None
    return found


def sealed_shards(folder: Folder, metadata: str = METADATA) -> Iterator[Part]:
    """Yield the shards that the metadata name. IncompleteError where there are none, or one is of a
    later save."""
    seal = need(folder.files, metadata, "which torch writes once all ranks have saved")
    found = list(shards(folder, metadata))
    none_newer(((part.label, part.entry) for part in found), seal)
    yield from found


def shards(folder: Folder, metadata: str = METADATA) -> Iterator[Part]:
    files = folder.files
    named_by = files[metadata].identity
    found = _named(files[metadata])
    if not found:
        raise IncompleteError(f"{metadata} names no shard")
    seen = files.look()
    for name, parts in found.items():
        yield Part(need(seen, name), FileKind.PIECES, name, parts, named_by)


def _named(metadata: Entry) -> dict[str, Parts]:
    try:
        found = _pieces(metadata.path, metadata.identity)
    except UnansweredError as e:
        raise IncompleteError(f"{metadata.name} is not known to be whole ({e})") from e
    if isinstance(found, str):
        raise IncompleteError(f"{metadata.name} is cut short or damaged ({found})")
    return found


@lru_cache(maxsize=1024)
def _names_optimizer(path: str, _identity: Identity) -> bool:
    """The names of all tensors come first; without one of these it may be a model alone."""
    data = archives.read_beginning(path, BEGINNING)
    return any(word in data for word in OPTIMIZER)


@lru_cache(maxsize=2)  # those of a large model have many megabytes
def _pieces(path: str, _identity: Identity) -> dict[str, Parts] | str:
    """Return the parts of each file, or what is wrong with the metadata. What may differ next time
    is raised, and so not remembered: OSError and UnansweredError."""
    with archives.opened(path) as window:
        if window.length > archives.MOST_PICKLE:
            return f"larger than {archives.MOST_PICKLE >> 20} MiB"
        try:
            found = pickles.pieces(window)
        except ValueError as e:
            return str(e)
    return {name: tuple(parts) for name, parts in found.items()}
