"""Megatron's checkpoints: `iter_0000010` directories, and beside them a tracker that names the
newest, `latest_checkpointed_iteration.txt`. The first rank writes the tracker once all have saved.
It truncates it first, so a kill at that moment leaves an empty tracker.

The older form (`--ckpt-format torch`) has a directory `mp_rank_TT[_PPP[_EEE]]` for every
model-parallel rank, and does not record their number. The newer forms are directories by DCP, to
which `torch_dist` adds `metadata.json` last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .. import archives
from ..candidates import (
    SLACK,
    CheckpointCandidate,
    IncompleteError,
    Location,
    Part,
    Step,
    need,
    none_newer,
)
from ..listing import Entry, Folder
from . import dcp

TRACKER = "latest_checkpointed_iteration.txt"
CONFIG = "metadata.json"
NAME = re.compile(r"iter_(\d{7,})")
RANK = re.compile(r"mp_rank_\d\d+(?:_\d\d\d+){0,2}")
FIRST_RANK = re.compile(r"mp_rank_00+(?:_000+){0,2}")


class Megatron:
    name = "Megatron"
    load = "--load DIR --ckpt-step N (DIR alone is enough for the one that the tracker names)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if not (named := NAME.fullmatch(place.name)):
            return None
        iteration = int(named[1])
        source = "its name"
        if _read(place.root) == "":
            source += f"; Megatron exits at its start until {TRACKER}, now empty, says {iteration}"
        found = dcp.candidate(self, place)
        if found is None and (legacy := _legacy(place.folder)):
            found = CheckpointCandidate(place, self, legacy[0].entry)
        if found is not None:
            found.step = Step(iteration, "step", source)
        return found

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder, root = candidate.folder, candidate.place.root
        files = folder.files
        tracked = _tracked(root)
        step = candidate.step.value if candidate.step else 0
        is_tracked = tracked is not None and tracked >= step
        if dcp.METADATA in files or any(name.endswith(dcp.SHARD) for name in files):
            if CONFIG not in files and not is_tracked:
                raise IncompleteError(f"neither {CONFIG} is in it, nor does {TRACKER} name it")
            names = [name for name in (CONFIG, "common.pt") if name in files]
            return [*dcp.sealed_shards(folder), *(Part.of(files[name], name) for name in names)]
        if not is_tracked:
            raise IncompleteError(f"{TRACKER} does not name it yet, which Megatron writes last")
        found = _legacy(folder)
        if tracked != step:  # an older save, which may have been interrupted
            newest = f"iter_{tracked:07d}"
            wanted = _legacy(root.folder(newest)) if newest in root.folders else []
            there = {part.label for part in found}
            missing = next((part.label for part in wanted if part.label not in there), "")
            if not wanted or missing:
                what = f"{missing} is missing" if missing else "nothing says that it has all"
                raise IncompleteError(f"{what}: {TRACKER} names {newest}")
        none_newer(found, need(root.files, TRACKER))
        return found


def _legacy(folder: Folder) -> list[Part]:
    """Return the files of all ranks in the older form."""
    ranks = sorted(name for name in folder.folders if RANK.fullmatch(name))
    found = ((rank, folder.folder(rank).files) for rank in ranks)
    return [
        Part.of(files[name], f"{rank}/{name}")
        for rank, files in found
        for name in sorted(files)
        if name.endswith(".pt")
    ]


def _read(root: Folder) -> str | None:
    try:
        return archives.read_beginning(root.files[TRACKER].path, 64).decode().strip()
    except (KeyError, OSError, ValueError):
        return None


def _tracked(root: Folder) -> int | None:
    """Return the iteration that the tracker names, or was to name when its writer was killed."""
    text = _read(root)
    if text == "":
        return _saved_last(root)
    try:
        return int(text or "")
    except ValueError:
        return None


def _saved_last(root: Folder) -> int | None:
    """Return the iteration that was saved just before the tracker was emptied: all ranks had
    finished it.

    Other ranks may have begun the next save since, but not the first, which was writing the
    tracker. The times of its files are compared without slack, since it has one clock.
    """
    emptied = root.files[TRACKER].time
    saved = []
    for name in root.folders:
        if named := NAME.fullmatch(name):
            folder = root.folder(name)
            by_first = [entry.time for entry in _by_first_rank(folder)]
            by_others = [entry.time for entry in _all_files(folder)]
            if by_first and max(by_first) <= emptied and max(by_others) <= emptied + SLACK:
                saved.append((max(by_others), int(named[1])))
    return max(saved)[1] if saved else None


def _by_first_rank(folder: Folder) -> Iterator[Entry]:
    if dcp.METADATA in folder.files:
        yield folder.files[dcp.METADATA]
    for rank in folder.folders:
        if FIRST_RANK.fullmatch(rank):
            yield from folder.folder(rank).files.values()


def _all_files(folder: Folder) -> Iterator[Entry]:
    for each in (folder, *(folder.folder(rank) for rank in folder.folders if RANK.fullmatch(rank))):
        yield from each.files.values()
