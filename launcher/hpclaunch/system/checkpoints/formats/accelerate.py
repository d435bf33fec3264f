"""Accelerate's `save_state`, with names of its own (`checkpoints/checkpoint_N`) or without.

The first rank writes models, optimizers, schedulers, samplers and the scaler, then its
`random_states_0.pkl`, and then `custom_checkpoint_I.pkl` of each object that the script has
registered. Every other rank writes its `random_states_R.pkl` whenever it gets to it. Under FSDP and
DeepSpeed all ranks write their part of model and optimizer first. Nothing is a seal.

How many objects are registered stands nowhere. It is known to be all of them once a later save was
begun, or if there are as many as in the save before, or if the job went on for a while.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ..candidates import (
    COMPLETE,
    CheckpointCandidate,
    FileKind,
    IncompleteError,
    Location,
    Part,
    all_ranks,
    none_newer,
    step_of,
)
from ..listing import Entry, Folder
from . import deepspeed, fsdp

FIRST = "random_states_0.pkl"
RANDOM = re.compile(r"random_states_(\d+)\.pkl")
CUSTOM = re.compile(r"custom_checkpoint_(\d+)\.pkl")
OWN = re.compile(
    r"(?:model|pytorch_model)(?:_\d+)?\.(?:safetensors|bin)|"
    r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt"
)
OF_STATE = re.compile("|".join(pattern.pattern for pattern in (RANDOM, CUSTOM, OWN)))
OF_ALL = re.compile(r"scaler|dl_state_dict")  # every rank writes them, each the same
TELLING = re.compile(r"(?:optimizer|scheduler)(?:_\d+)?\.bin")
NAME = re.compile(r"checkpoint_\d+")


class Accelerate:
    name = "Accelerate"
    load = "accelerator.load_state(path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        files = place.folder.files
        of_state = [name for name in files if OF_STATE.fullmatch(name)]
        telling = any(RANDOM.fullmatch(name) or TELLING.fullmatch(name) for name in of_state)
        begun = NAME.fullmatch(place.name) is not None and (of_state or fsdp.is_here(place.folder))
        if "trainer_state.json" in files or not (telling or begun):
            return None
        if FIRST in files:
            decides = files[FIRST]
        else:
            seen = (files[n] for n in of_state or files)
            # Sharded, it begins with the directory of the model, and nothing beside that.
            decides = max(seen, key=lambda entry: entry.time, default=place.entry)
        return CheckpointCandidate(place, self, decides, step_of(place.name))

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder = candidate.folder
        files = folder.files
        saved = {int(m[1]): files[name] for name in files if (m := RANDOM.fullmatch(name))}
        ranks = candidate.facts.without_left(saved, candidate.time)
        world = candidate.facts.world_at(candidate.time)
        candidate.world = all_ranks(ranks, world, "random_states_{}.pkl")
        if not ranks:
            raise IncompleteError(f"{FIRST} is missing, which save_state writes after the rest")
        first = ranks[0]
        own = [(name, files[name]) for name in files if OWN.fullmatch(name)]
        none_newer((item for item in own if not OF_ALL.match(item[0])), first, slack=0)
        shared = [
            *fsdp.parts(folder, candidate.facts),
            *deepspeed.root_parts(folder, candidate.facts),
        ]
        none_newer(((part.label, part.entry) for part in shared), first)
        _check_names(candidate)
        _check_objects(candidate, first)
        for name, entry in own:
            tensors = name.endswith(".safetensors")
            yield Part(entry, FileKind.TENSORS if tensors else FileKind.TORCH, name)
        yield from shared
        for entry in (*ranks.values(), *_objects(folder)):
            yield Part(entry, FileKind.TORCH, entry.name)


def _objects(folder: Folder) -> list[Entry]:
    return [folder.files[name] for name in folder.files if CUSTOM.fullmatch(name)]


def _check_names(candidate: CheckpointCandidate) -> None:
    """Nothing is missing that the saves beside it have: rotation deletes one file by one."""
    saves = sorted(_saves(candidate), key=lambda c: c.time)
    at = next(i for i, c in enumerate(saves) if c is candidate)
    beside = saves[at - 1] if at else next(iter(saves[1:]), candidate)
    names = (name for name in beside.folder.files if OWN.fullmatch(name))
    for name in names:
        if name not in candidate.folder.files:
            raise IncompleteError(f"{name} is missing, which {beside.name} has")


def _saves(candidate: CheckpointCandidate) -> list[CheckpointCandidate]:
    """This one and those beside it, as far as the first rank has got. Others may be far ahead."""
    saves = [c for c in candidate.beside if isinstance(c.format, Accelerate)]
    return [c for c in saves if FIRST in c.folder.files]


def _check_objects(candidate: CheckpointCandidate, first: Entry) -> None:
    """Those that the script has registered come after the first rank's random state."""
    found = _objects(candidate.folder)
    for entry in found:
        if entry.time < first.time:
            raise IncompleteError(
                f"{entry.name} is older than {first.name}, after which save_state writes it: a "
                "later save was not finished"
            )
    numbers = {int(m[1]) for entry in found if (m := CUSTOM.fullmatch(entry.name))}
    if numbers != set(range(len(numbers))):
        raise IncompleteError(
            f"custom_checkpoint_{min(set(range(len(found))) - numbers)}.pkl is missing"
        )
    last = max((first, *found), key=lambda entry: entry.time).time
    saves = [c for c in candidate.beside if isinstance(c.format, Accelerate)]
    beside = [c for c in saves if c is not candidate]
    if any(_begun_by_first(c, last) for c in beside) or _rotated(candidate, beside, last):
        return
    others = [c for c in _saves(candidate) if c is not candidate]
    before = max(others, key=lambda c: c.time, default=None)
    if before is None:
        if not candidate.facts.is_settled(last):
            raise IncompleteError(
                "it is the first save, and the round ended just after its last file was written: "
                f"nothing says whether a registered object is missing (touch {COMPLETE} in it if "
                "none is)"
            )
    elif len(_objects(before.folder)) > len(found):
        raise IncompleteError(
            f"custom_checkpoint_{len(found)}.pkl is missing, which {before.name} has"
        )


def _begun_by_first(candidate: CheckpointCandidate, after: int) -> bool:
    """Whether the first rank has begun this save since then: others may be ahead of it."""
    files = candidate.folder.files
    names = (n for n in files if n == FIRST or (OWN.fullmatch(n) and not OF_ALL.match(n)))
    return any(files[name].time > after for name in names)


def _rotated(candidate: CheckpointCandidate, beside: list[CheckpointCandidate], after: int) -> bool:
    """Whether something was made or deleted beside it since then: with automatic names, which all
    ranks wait for, nobody but the first rank does that, as it begins the next save."""
    root = candidate.place.root.path
    if not NAME.fullmatch(candidate.name) or os.path.basename(root) != "checkpoints":
        return False
    return max(os.stat(root).st_mtime_ns, *(c.place.entry.time for c in beside), 0) > after
