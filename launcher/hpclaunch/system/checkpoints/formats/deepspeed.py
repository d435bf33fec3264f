"""DeepSpeed's `save_checkpoint(DIR, TAG)`: the files of all ranks in DIR/TAG, and `DIR/latest`,
which names the tag.

The first rank writes `latest` after its own files, and ranks wait for each other only after that.
So `latest` may name a tag whose files are not all there. A tag is complete if it has the files of
all ranks; every file with a model records their number. If `latest` does not name the tag, its
files may be of two unfinished saves, unless their times show that they are of one.

A pipeline has a file for each layer, and each expert has one. A rank writes these first, then the
model, then its part of the optimizer. The file with the model records the number of experts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from .. import archives, pickles
from ..candidates import (
    SECOND,
    SLACK,
    CheckpointCandidate,
    Facts,
    Format,
    IncompleteError,
    Location,
    Part,
    none_newer,
    step_of,
)
from ..listing import Folder

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
LATE = 60 * SECOND  # after `latest`; files that are newer are of a later save, not of a slow rank
TAG = 255  # bytes of a name; a file `latest` of another kind may be large


class DeepSpeed:
    name = "DeepSpeed"
    load = "engine.load_checkpoint(path.parent, path.name)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        return candidate(self, place, place.folder)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        return tag_parts(candidate.folder, candidate.place.root, candidate.facts, candidate)


def candidate(form: Format, place: Location, tag: Folder) -> CheckpointCandidate | None:
    """Return the checkpoint whose files are in the directory `tag`; None if there are none."""
    if not (names := states(tag)):
        return None
    decides = tag.files[min(_models(tag) or names)]
    return CheckpointCandidate(place, form, decides, step_of(place.name))


def states(folder: Folder) -> list[str]:
    """Return the names of the files that DeepSpeed has written in a tag's directory."""
    return [name for name in folder.files if STATES.fullmatch(name)]


def _models(folder: Folder) -> list[str]:
    return [name for name in folder.files if MODEL.fullmatch(name)]


def named(root: Folder) -> str:
    """Return the tag that `latest` names; "" if there is none."""
    if LATEST not in root.files:
        return ""
    try:
        return os.fsdecode(archives.read_beginning(root.files[LATEST].path, TAG).strip())
    except OSError:
        return ""


def is_root(folder: Folder) -> bool:
    """Return whether this directory contains tags."""
    return any(states(folder.folder(name)) for name in _plain(folder))


def _is_used_once(name: str, beside: Folder) -> bool:
    """Return whether no other save will have this name: it contains a step, or it differs from one
    beside it only by a number.
    """
    form = NUMBER.sub("0", name)
    others = (other for other in beside.folders if other != name)
    return step_of(name) is not None or any(NUMBER.sub("0", other) == form for other in others)


def root_parts(folder: Folder, facts: Facts, own: CheckpointCandidate | None = None) -> list[Part]:
    """Return the files of the tag that `latest` names, for a library that saves DeepSpeed's
    directory inside of its own. `own` is as for `tag_parts`.
    """
    if not is_root(folder):
        return []
    tag = named(folder)
    if tag not in _plain(folder):
        raise IncompleteError(
            f"{LATEST} names none of its directories: DeepSpeed had not saved all yet"
        )
    return [part.within(tag) for part in tag_parts(folder.folder(tag), folder, facts, own)]


def tag_parts(
    folder: Folder, root: Folder, facts: Facts, own: CheckpointCandidate | None
) -> list[Part]:
    """Return the files of a tag. Raises IncompleteError unless they are those of all ranks, and of
    one save.

    `own` is the checkpoint if these are all of its files, and its `world` is set. It is None if
    other files are written later. If `own` is given and its name may be used again, a file that is
    newer than `latest` counts as one of the next save.
    """
    tag = os.path.basename(folder.path)
    folder.files.look()
    if not (found := states(folder)):
        raise IncompleteError(f"{tag}: it has no files, or no longer")
    if own is not None:
        own.world = world_of(folder)
    parts = [Part.of(folder.files[name], name) for name in found]
    are_all = _check_ranks(folder, found)
    _check_experts(folder, found)
    latest = root.files.get(LATEST)
    times = [part.entry.time for part in parts]
    one_round = facts.one_round(min(times), max(times))
    if one_round is False:
        raise IncompleteError("its files are of two rounds: neither save was finished")
    if latest is not None and named(root) == tag:
        by_first = (part for part in parts if BY_FIRST.fullmatch(part.label))
        none_newer(by_first, latest, slack=0)  # the first rank wrote `latest` after these
        once = own is None or _is_used_once(own.name, own.place.root)
        none_newer(parts, latest, LATE if once else SLACK)
    elif not are_all:
        raise IncompleteError(
            f"{LATEST} does not name it, and nothing else says that it is complete"
        )
    elif not one_round and (latest is None or max(times) > latest.time):
        raise IncompleteError(f"{LATEST} does not name it: DeepSpeed writes that last")
    return parts


def _plain(folder: Folder) -> list[str]:
    return [name for name in folder.folders if not name.startswith(".")]


def _check_ranks(folder: Folder, found: list[str]) -> bool:
    """Raise IncompleteError if a rank's file is missing.

    `found` are the names of the files that are there. Return whether they are known to be complete:
    the size of the world is known, and every file is of a known kind.
    """
    sizes = _sizes(folder)
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
    """Raise IncompleteError if an expert that the model records is missing. Under tensor
    parallelism, the file of one rank is enough.
    """
    there = {(int(m[1]), int(m[2])) for name in found if (m := EXPERT.fullmatch(name))}
    counts = _model_fields(folder).get("num_experts") if there else None
    for layer, count in enumerate(counts if isinstance(counts, list) else ()):
        for expert in range(count):
            if (layer, expert) not in there:
                raise IncompleteError(
                    f"expert {expert} of layer {layer} is missing: its rank had not saved yet"
                )


def world_of(folder: Folder) -> int | None:
    try:
        sizes = _sizes(folder)
    except OSError:
        return None
    return sizes[0] * sizes[1] if sizes else None


def _sizes(folder: Folder) -> tuple[int, int, bool] | None:
    """Return the data-parallel size, the model-parallel size, and whether the files with a model
    contain the optimizer too (without ZeRO); None if no file records them. Raises OSError.
    """
    found = _model_fields(folder)
    match found.get("dp_world_size"), found.get("mp_world_size"):
        case int(of_data), int(of_model) if of_data > 0 and of_model > 0:
            return of_data, of_model, found.get("param_shapes", ...) is None
    return None


def _model_fields(folder: Folder) -> dict[str, pickles.Field]:
    """Return what the first readable file with a model records about the ranks: a slow rank may
    still be writing one.
    """
    names = "dp_world_size", "mp_world_size", "param_shapes", "num_experts"
    found = (archives.fields_of(folder.files[name], *names) for name in sorted(_models(folder)))
    return next(filter(None, found), {})
