"""DeepSpeed's `save_checkpoint(DIR, TAG)`: the files of all ranks in DIR/TAG, and `DIR/latest`,
which names the tag.

Each rank writes its files and waits for all others only at the very end; the first writes `latest`
when its own are there. So `latest` may name what some rank has not written: what counts is that
the files are those of all ranks, of which every file with a model says how many there were. Without
`latest` they may be of two saves that were both torn, unless it is known that they are not.

A pipeline has a file for each layer, and experts have one each. A rank writes these first, then the
model, then its part of the optimizer. How many experts there are says the model.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

from .. import archives, pickles
from ..candidates import (
    SECOND,
    SLACK,
    CheckpointCandidate,
    Facts,
    FileKind,
    IncompleteError,
    Location,
    Part,
    none_newer,
    step_of,
)
from ..listing import Folder, Identity

LATEST = "latest"
MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
LAYER = re.compile(r"layer_\d+-(?:model_\d+-)?model_states\.pt")
EXPERT = re.compile(r"layer_(\d+)_expert_(\d+)_mp_rank_\d+_model_states\.pt")
OF_EXPERTS = re.compile(r"expp_rank_\d+_mp_rank_\d+_optim_states\.pt")  # without ZeRO
BY_FIRST = re.compile(
    r"(?:(?:bf16_)?zero_pp_rank_0_|expp_rank_0_|layer_\d+_expert_0_)?mp_rank_00_"
    r"(?:model|optim)_states\.pt"
)
NUMBER = re.compile(r"\d+")
STATES = re.compile(rf".*_(?:model|optim)_states\.pt|{LAYER.pattern}")
LATE = 60 * SECOND  # after `latest`, for a rank that was slow; a later save comes later still
T = TypeVar("T")
TAG = 255  # bytes of a name: `latest` may also be a large file of another kind


class DeepSpeed:
    name = "DeepSpeed"
    load = "engine.load_checkpoint(path.parent, path.name)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if not (names := states(place.folder)):
            return None
        first = place.folder.files[min(models(place.folder) or names)]
        return CheckpointCandidate(place, self, first, step_of(place.name))

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        root = candidate.place.root
        once = is_used_once(candidate.name, root)
        found = tag_parts(candidate.folder, root, candidate.facts, once=once)
        candidate.world = world_of(candidate.folder)
        return found


def states(folder: Folder) -> list[str]:
    return [name for name in folder.files if STATES.fullmatch(name)]


def models(folder: Folder) -> list[str]:
    return [name for name in folder.files if MODEL.fullmatch(name)]


def named(root: Folder) -> str:
    """The tag that is in `latest`; "" where there is none, or nothing in it."""
    if LATEST not in root.files:
        return ""
    try:
        return os.fsdecode(archives.read_beginning(root.files[LATEST].path, TAG).strip())
    except OSError:
        return ""


def is_root(folder: Folder) -> bool:
    """Whether tags are in this directory."""
    return any(states(folder.folder(name)) for name in _plain(folder))


def is_used_once(name: str, beside: Folder) -> bool:
    """Whether no other save will be under this name: there is a step in it, or what is beside it
    has the same name but for a number."""
    form = NUMBER.sub("0", name)
    others = (other for other in beside.folders if other != name)
    return step_of(name) is not None or any(NUMBER.sub("0", other) == form for other in others)


def root_parts(folder: Folder, facts: Facts, *, once: bool = True) -> Iterator[Part]:
    """Yield the files of the tag that `latest` names, for a library that saves the rest beside it.
    A file of this rest that is written later shows whether the tag was used again; where there is
    none, `once` says it."""
    if not is_root(folder):
        return
    tag = named(folder)
    if tag not in _plain(folder):
        raise IncompleteError(
            f"{LATEST} names none of its directories: DeepSpeed had not saved all yet"
        )
    for part in tag_parts(folder.folder(tag), folder, facts, once=once):
        yield part._replace(label=f"{tag}/{part.label}")


def tag_parts(folder: Folder, root: Folder, facts: Facts, *, once: bool) -> list[Part]:
    """The files of a tag, which are those of all ranks and of one save. If its name is not used
    just `once`, a rank that is late may have begun with the next save."""
    folder.files.look()
    if not (found := states(folder)):
        raise IncompleteError(f"{os.path.basename(folder.path)}: it has no files, or no longer")
    files = [folder.files[name] for name in found]
    are_all = _check_ranks(folder, found)
    _check_experts(folder, found)
    tag = os.path.basename(folder.path)
    latest = root.files.get(LATEST)
    times = [entry.time for entry in files]
    one_round = facts.one_round(min(times), max(times))
    if one_round is False:
        raise IncompleteError("its files are of two rounds: neither save was finished")
    if latest is not None and named(root) == tag:
        by_first = ((e.name, e) for e in files if BY_FIRST.fullmatch(e.name))
        none_newer(by_first, latest, slack=0)  # which wrote `latest` when these were there
        none_newer(((e.name, e) for e in files), latest, LATE if once else SLACK)
    elif not are_all:
        raise IncompleteError(
            f"{LATEST} does not name it, and nothing else says that it is complete"
        )
    elif not one_round and (latest is None or max(times) > latest.time):
        raise IncompleteError(f"{LATEST} does not name it: DeepSpeed writes that last")
    return [Part(entry, FileKind.TORCH, entry.name) for entry in files]


def _plain(folder: Folder) -> list[str]:
    return [name for name in folder.folders if not name.startswith(".")]


def _check_ranks(folder: Folder, found: list[str]) -> bool:
    """Check that no rank's file is missing; IncompleteError if one is.

    `found` are the names of the files that are there. Return whether they are known to be complete:
    the size of the world is known, and every file is of a known kind.
    """
    sizes = _first_sizes(folder)
    if sizes is None:
        return False
    unknown = set(found)
    for name in _expected_names(*sizes, found):  # lazily: a damaged file may claim a huge world
        if name not in folder.files:
            raise IncompleteError(f"{name} is missing: its rank had not saved yet")
        unknown.discard(name)
    known = (MODEL, OPTIMIZER, LAYER, EXPERT, OF_EXPERTS)
    return all(any(each.fullmatch(name) for each in known) for name in unknown)


def _expected_names(data: int, model: int, with_optimizer: bool, found: list[str]) -> Iterator[str]:
    """Yield the names of the files that `data` times `model` ranks write."""
    optimizers = [name for name in found if OPTIMIZER.fullmatch(name)]
    others = set(found).difference(optimizers)
    zero3 = any(name.startswith("zero_pp_rank") and MODEL.fullmatch(name) for name in others)
    prefix = "bf16_" if any(name.startswith("bf16_") for name in optimizers) else ""
    for mp in range(model):
        if not zero3:
            yield f"mp_rank_{mp:02d}_model_states.pt"
        for rank in range(data if zero3 else 0):
            yield f"zero_pp_rank_{rank}_mp_rank_{mp:02d}_model_states.pt"
        for rank in range(data if optimizers or not with_optimizer else 0):
            yield f"{prefix}zero_pp_rank_{rank}_mp_rank_{mp:02d}_optim_states.pt"


def _check_experts(folder: Folder, found: list[str]) -> None:
    """Under tensor parallelism, any rank may have one."""
    there = {(int(m[1]), int(m[2])) for name in found if (m := EXPERT.fullmatch(name))}
    counts = _of_first_model(folder, _experts) if there else None
    for layer, count in enumerate(counts or ()):
        for expert in range(count):
            if (layer, expert) not in there:
                raise IncompleteError(
                    f"expert {expert} of layer {layer} is missing: its rank had not saved yet"
                )


def world_of(folder: Folder) -> int | None:
    sizes = _first_sizes(folder)
    return sizes[0] * sizes[1] if sizes else None


def _first_sizes(folder: Folder) -> tuple[int, int, bool] | None:
    return _of_first_model(folder, _sizes)


def _of_first_model(folder: Folder, ask: Callable[[str, Identity], T | None]) -> T | None:
    """A file that a slow rank is still writing says nothing."""
    found = (folder.files[name] for name in sorted(models(folder)))
    return next(filter(None, (ask(e.path, e.identity) for e in found)), None)


def _experts(path: str, identity: Identity) -> tuple[int, ...] | None:
    """Return how many experts each layer that has some has, as a file with a model says it; None if
    it does not."""
    found = _fields(path, identity).get("num_experts")
    return tuple(found) if isinstance(found, list) else None


def _sizes(path: str, identity: Identity) -> tuple[int, int, bool] | None:
    """Return how many ranks share the data, how many the model, and whether the optimizer is in
    this file too (without ZeRO), as a file with a model says it; None if it does not."""
    found = _fields(path, identity)
    match found.get("dp_world_size"), found.get("mp_world_size"):
        case int(of_data), int(of_model) if of_data > 0 and of_model > 0:
            return of_data, of_model, found.get("param_shapes", ...) is None
    return None


def _fields(path: str, identity: Identity) -> dict[str, pickles.Field]:
    """Return the entries of a file with a model that are about the ranks; none if it cannot be read
    to its end."""
    try:
        return _read_fields(path, identity)
    except (OSError, archives.DamagedError):
        return {}


@lru_cache(maxsize=1024)
def _read_fields(path: str, _identity: Identity) -> dict[str, pickles.Field]:
    """Raises OSError and DamagedError, which are not remembered: both may pass."""
    names = "dp_world_size", "mp_world_size", "param_shapes", "num_experts"
    with archives.opened(path) as window:
        return archives.fields(window, *names)
