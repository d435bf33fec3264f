"""The Trainer of Hugging Face's transformers: `checkpoint-N`.

The first rank writes the model, `training_args.bin`, the optimizer, the scheduler, the scaler, its
own random state, and then `trainer_state.json`. Under FSDP and DeepSpeed all ranks write their part
of model and optimizer before it goes on. The others write `rng_state_R.pth` whenever they get to
it, before or after, and nobody waits for them. A save on SIGTERM (enable_jit_checkpoint) has
`checkpoint-is-incomplete.txt` beside it until it is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpclaunch.system.shared import bounded_json

from .. import archives
from ..candidates import (
    CheckpointCandidate,
    FileKind,
    IncompleteError,
    Location,
    Part,
    Step,
    all_ranks,
    need,
    none_newer,
    step_of,
)
from ..listing import Entry, Folder
from . import deepspeed, fsdp, weights

STATE = "trainer_state.json"
ARGUMENTS = "training_args.bin"
INCOMPLETE = "checkpoint-is-incomplete.txt"
NAME = re.compile(r"checkpoint-(\d+)")
RNG = re.compile(r"rng_state_(\d+)\.pth")
TELLING = (ARGUMENTS, INCOMPLETE, "config.json", "adapter_config.json", "optimizer.pt")
MOST_STATE = 1 << 20  # bytes that are parsed for the step
HIGHEST_STEP = 1 << 63


class HfTrainer:
    name = "HF Trainer"
    load = "trainer.train(resume_from_checkpoint=path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        files, named = place.folder.files, NAME.fullmatch(place.name)
        if STATE not in files and not (named and any(name in files for name in TELLING)):
            return None
        step = Step(int(named[1]), "step", "its name") if named else None
        state = files.get(STATE)
        if step is None and state is not None:
            step = _step(state)
        decides = state or max(files.values(), key=lambda entry: entry.time)
        found = CheckpointCandidate(place, self, decides, step or step_of(place.name))
        if state is not None and not _has_optimizer(place.folder):
            found.export = "a model without its optimizer (save_only_model)"
        return found

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder = candidate.folder
        files = folder.files
        if INCOMPLETE in files:
            raise IncompleteError(f"{INCOMPLETE} is in it: the Trainer was ended while it saved")
        state = need(files, STATE, "which the Trainer writes last")
        yield Part(state, FileKind.JSON, STATE)
        shared = [
            *fsdp.parts(folder, candidate.facts),
            *deepspeed.root_parts(folder, candidate.facts),
        ]
        own = [] if shared else weights.model(folder)
        if not shared and not own:
            raise IncompleteError("it has no model that the Trainer could load")
        own += _optimizer(folder)
        if not deepspeed.is_root(folder):  # which has the scheduler among its own
            need(files, "scheduler.pt")
        names = [name for name in ("scheduler.pt", "scaler.pt") if name in files]
        own += [Part(files[name], FileKind.TORCH, name) for name in names]
        none_newer(((p.label, p.entry) for p in own), state, slack=0)  # one rank writes these
        none_newer(((p.label, p.entry) for p in shared), state)
        yield from own
        yield from shared
        yield from _random_states(candidate)


def _step(state: Entry) -> Step | None:
    try:
        text = archives.read_beginning(state.path, MOST_STATE)
        step = int(bounded_json.loads(text)["global_step"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return Step(step, "step", STATE) if 0 <= step < HIGHEST_STEP else None


def _has_optimizer(folder: Folder) -> bool:
    sharded = any(name.startswith("optimizer") for name in (*folder.folders, *folder.files))
    return sharded or deepspeed.is_root(folder)


def _optimizer(folder: Folder) -> list[Part]:
    """Its own file; [] also where FSDP or DeepSpeed has parts of it."""
    files = folder.files
    names = [name for name in ("optimizer.pt", "optimizer.bin") if name in files]
    return [Part(files[name], FileKind.TORCH, name) for name in names]


def _random_states(candidate: CheckpointCandidate) -> Iterable[Part]:
    files = candidate.folder.files
    ranks = {int(m[1]): files[name] for name in files if (m := RNG.fullmatch(name))}
    found = candidate.facts.without_left(ranks, candidate.time)
    if not found:
        candidate.world = 1
        name = "rng_state.pth"
        yield Part(need(files, name), FileKind.TORCH, name)
        return
    world = candidate.facts.world_at(candidate.time)
    candidate.world = all_ranks(found, world, "rng_state_{}.pth")
    for entry in found.values():
        yield Part(entry, FileKind.TORCH, entry.name)
