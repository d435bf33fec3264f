"""Megatron's checkpoints: `iter_0000010` directories, and beside them a tracker that names the
newest, `latest_checkpointed_iteration.txt`. The first rank writes the tracker once all have saved;
it empties it first, so that a kill at that moment leaves a tracker that names nothing.

In the older form (`--ckpt-format torch`) each has a directory `mp_rank_TT[_PPP[_EEE]]` for every
model-parallel rank; how many there are stands nowhere. In the newer ones all of it is by DCP;
`torch_dist` adds `metadata.json` at last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from .. import archives
from ..candidates import (
    SLACK,
    CheckpointCandidate,
    FileKind,
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
            source += f"; Megatron ends at once until {TRACKER}, now empty, says {iteration}"
        step = Step(iteration, "step", source)
        if found := dcp.candidate(self, place):
            found.step = step
            return found
        files = [f"{rank}/{name}" for rank, name in _legacy(place.folder)]
        if not files:
            return None
        rank, name = _legacy(place.folder)[0]
        return CheckpointCandidate(place, self, place.folder.folder(rank).files[name], step)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder, root = candidate.folder, candidate.place.root
        tracked = _tracked(root)
        step = candidate.step.value if candidate.step else 0
        if dcp.METADATA in folder.files or any(n.endswith(dcp.SHARD) for n in folder.files):
            yield from dcp.sealed_shards(folder)
            if CONFIG in folder.files:
                yield Part(folder.files[CONFIG], FileKind.JSON, CONFIG)
            elif tracked is None or tracked < step:
                raise IncompleteError(f"neither {CONFIG} is in it, nor does {TRACKER} name it")
            if "common.pt" in folder.files:
                yield Part(folder.files["common.pt"], FileKind.TORCH, "common.pt")
            return
        if tracked is None or tracked < step:
            raise IncompleteError(f"{TRACKER} does not name it yet, which Megatron writes last")
        names = _legacy(folder)
        if tracked > step:  # was it finished, or given up?
            last = root.folder(f"iter_{tracked:07d}")
            wanted = _legacy(last) if last.path in _paths(root) else []
            missing = [f"{rank}/{name}" for rank, name in wanted if (rank, name) not in names]
            if not wanted or missing:
                what = f"{missing[0]} is missing" if missing else "nothing says that it has all"
                raise IncompleteError(f"{what}: {TRACKER} names iter_{tracked:07d}")
        entries = [(f"{rank}/{name}", folder.folder(rank).files[name]) for rank, name in names]
        none_newer(entries, need(root.files, TRACKER))
        for label, entry in entries:
            yield Part(entry, FileKind.TORCH, label)


def _legacy(folder: Folder) -> list[tuple[str, str]]:
    """(directory of a rank, file in it)."""
    ranks = sorted(name for name in folder.folders if RANK.fullmatch(name))
    return [
        (rank, name)
        for rank in ranks
        for name in sorted(folder.folder(rank).files)
        if name.endswith(".pt")
    ]


def _paths(root: Folder) -> set[str]:
    return {root.folder(name).path for name in root.folders}


def _read(root: Folder) -> str | None:
    try:
        return archives.read_beginning(root.files[TRACKER].path, 64).decode().strip()
    except (KeyError, OSError, ValueError):
        return None


def _tracked(root: Folder) -> int | None:
    """The iteration that the tracker names, or was to name when its writer was killed."""
    text = _read(root)
    if text == "":
        return _saved_last(root)
    try:
        return int(text or "")
    except ValueError:
        return None


def _saved_last(root: Folder) -> int | None:
    """The iteration that was saved just before the tracker was emptied: all ranks had finished it.

    The others may have begun with the next one since. The first rank has not: it was at the
    tracker. What it wrote is compared without slack, since it has one clock.
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
