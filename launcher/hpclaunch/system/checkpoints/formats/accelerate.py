"""Accelerate's `save_state`, with automatic names (`checkpoints/checkpoint_N`) or the script's.

The first rank writes models, optimizers, schedulers, samplers and the scaler, then its
`random_states_0.pkl`, and then `custom_checkpoint_I.pkl` of each object that the script has
registered. Every other rank writes its `random_states_R.pkl` at any time. Under FSDP and DeepSpeed
all ranks write their part of model and optimizer first. No file is always the last.

The number of registered objects is not recorded. All count as saved if a later save has begun, if
the save before has as many or fewer, or, for the first save, if its round ran for a while longer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ..candidates import (
    COMPLETE,
    CheckpointCandidate,
    IncompleteError,
    Location,
    Part,
    need,
    none_newer,
    step_of,
)
from ..listing import Entry, Folder
from . import fsdp

FIRST = "random_states_0.pkl"
RANDOM = re.compile(r"random_states_(\d+)\.pkl")
CUSTOM = re.compile(r"custom_checkpoint_(\d+)\.pkl")
OWN = re.compile(
    r"(?:model|pytorch_model)(?:_\d+)?\.(?:safetensors|bin)|"
    r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt"
)
OF_STATE = re.compile("|".join(pattern.pattern for pattern in (RANDOM, CUSTOM, OWN)))
OF_ALL = re.compile(r"scaler|dl_state_dict")  # every rank writes the same file
CERTAIN = re.compile(r"(?:optimizer|scheduler)(?:_\d+)?\.bin")
NAME = re.compile(r"checkpoint_\d+")


class Accelerate:
    name = "Accelerate"
    load = "accelerator.load_state(path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        files = place.folder.files
        of_state = [name for name in files if OF_STATE.fullmatch(name)]
        certain = any(RANDOM.fullmatch(name) or CERTAIN.fullmatch(name) for name in of_state)
        begun = NAME.fullmatch(place.name) is not None and (of_state or fsdp.is_here(place.folder))
        if "trainer_state.json" in files or not (certain or begun):
            return None
        if FIRST in files:
            decides = files[FIRST]
        else:
            seen = (files[n] for n in of_state or files)
            # A sharded save begins with the directory of the model, and has no file yet.
            decides = max(seen, key=lambda entry: entry.time, default=place.entry)
        return CheckpointCandidate(place, self, decides, step_of(place.name))

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder = candidate.folder
        files = folder.files
        beside = (c for c in candidate.beside if c is not candidate)
        others = [c for c in beside if isinstance(c.format, Accelerate)]
        ranks = _random_states(candidate, others)
        if not ranks:
            raise IncompleteError(f"{FIRST} is missing, which save_state writes after the rest")
        first = ranks[0]
        own = [Part.of(files[name], name) for name in files if OWN.fullmatch(name)]
        none_newer((part for part in own if not OF_ALL.match(part.label)), first, slack=0)
        shared = fsdp.shared_parts(folder, candidate.facts)
        none_newer(shared, first)
        neighbour = _neighbour(candidate, others)
        if neighbour is not None:
            for name in filter(OWN.fullmatch, neighbour.folder.files):
                need(files, name, f"which {neighbour.name} has")  # else rotation has begun
        objects = _objects(folder)
        _check_objects(candidate, objects, first)
        last = max((first, *objects), key=lambda entry: entry.time).time
        if not (any(_begun_by_first(c, last) for c in others) or _rotated(candidate, others, last)):
            _check_all_objects(candidate, objects, neighbour, last)
        yield from own
        yield from shared
        yield from (Part.of(entry, entry.name) for entry in (*ranks.values(), *objects))


def _random_states(
    candidate: CheckpointCandidate, others: list[CheckpointCandidate]
) -> dict[int, Entry]:
    """Return the random state of every rank. In the scripts of diffusers, only the first rank calls
    save_state: its random state is enough if no save has another, and others had time to save.
    """
    first = candidate.folder.files.get(FIRST)
    names = {name for c in (candidate, *others) for name in c.folder.files}
    is_alone = {*filter(RANDOM.fullmatch, names)} <= {FIRST}
    if first is not None and is_alone and candidate.facts.is_settled(first.time):
        candidate.world = 1
        return {0: first}
    return candidate.files_of_ranks(RANDOM, "random_states_{}.pkl")


def _neighbour(
    candidate: CheckpointCandidate, others: list[CheckpointCandidate]
) -> CheckpointCandidate | None:
    """Return the save before this one, or if it is the first, the one after it. Saves that the
    first rank has not reached yet do not count: other ranks may be far ahead of it.
    """
    others = [c for c in others if FIRST in c.folder.files]
    before = [c for c in others if c.time <= candidate.time]
    if before:
        return max(before, key=lambda c: c.time)
    return min(others, key=lambda c: c.time, default=None)


def _objects(folder: Folder) -> list[Entry]:
    """Return the files of the objects that the script has registered."""
    return [folder.files[name] for name in folder.files if CUSTOM.fullmatch(name)]


def _check_objects(candidate: CheckpointCandidate, found: list[Entry], first: Entry) -> None:
    """Check that the objects were saved after the first rank's random state, and have no gap."""
    for entry in found:
        if entry.time < first.time:
            raise IncompleteError(
                f"{entry.name} is older than {first.name}, after which save_state writes it: a "
                "later save was not finished"
            )
    for number in range(len(found)):
        need(candidate.folder.files, f"custom_checkpoint_{number}.pkl")


def _check_all_objects(
    candidate: CheckpointCandidate,
    found: list[Entry],
    neighbour: CheckpointCandidate | None,
    last: int,
) -> None:
    """Check that no object is missing after the last one. Use this if no later save shows it."""
    if neighbour is not None:
        if len(_objects(neighbour.folder)) > len(found):
            name = f"custom_checkpoint_{len(found)}.pkl"
            need(candidate.folder.files, name, f"which {neighbour.name} has")
    elif not candidate.facts.is_settled(last):
        raise IncompleteError(
            "it is the first save, and the round ended just after its last file was written: "
            f"nothing says whether a registered object is missing (touch {COMPLETE} in it if "
            "none is)"
        )


def _begun_by_first(candidate: CheckpointCandidate, after: int) -> bool:
    """Return whether the first rank has begun this save since then: others may be ahead of it."""
    files = candidate.folder.files
    names = (n for n in files if n == FIRST or (OWN.fullmatch(n) and not OF_ALL.match(n)))
    return any(files[name].time > after for name in names)


def _rotated(candidate: CheckpointCandidate, beside: list[CheckpointCandidate], after: int) -> bool:
    """Return whether a save beside it was created or deleted since then. With automatic names, no
    rank does that until the first rank has begun the next save.
    """
    root = candidate.place.root.path
    if not NAME.fullmatch(candidate.name) or os.path.basename(root) != "checkpoints":
        return False
    return max(os.stat(root).st_mtime_ns, *(c.place.entry.time for c in beside), 0) > after
