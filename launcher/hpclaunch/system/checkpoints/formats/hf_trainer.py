"""The Trainer of Hugging Face's transformers: `checkpoint-N`.

The first rank writes the model, `training_args.bin`, the optimizer, the scheduler, the scaler, its
own random state, and then `trainer_state.json`. Under FSDP and DeepSpeed it waits until all ranks
have written their parts of model and optimizer. No rank waits until the others have written their
`rng_state_R.pth`. A save on SIGTERM (enable_jit_checkpoint) contains `checkpoint-is-incomplete.txt`
until it is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpclaunch.system.shared import bounded_json

from .. import archives
from ..candidates import (
    CheckpointCandidate,
    IncompleteError,
    Location,
    Part,
    Step,
    need,
    none_newer,
    step_of,
)
from ..listing import Entry, Folder
from . import deepspeed, fsdp, safetensors

STATE = "trainer_state.json"
INCOMPLETE = "checkpoint-is-incomplete.txt"
NAME = re.compile(r"checkpoint-(\d+)")
RNG = re.compile(r"rng_state_(\d+)\.pth")
OWN = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt")
CERTAIN = (safetensors.ARGUMENTS, INCOMPLETE, "config.json", "adapter_config.json", "optimizer.pt")
MOST_STATE = 1 << 20  # bytes that are parsed for the step
HIGHEST_STEP = 1 << 63


class HfTrainer:
    name = "HF Trainer"
    load = "trainer.train(resume_from_checkpoint=path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        files, named = place.folder.files, NAME.fullmatch(place.name)
        if STATE not in files and not (named and any(name in files for name in CERTAIN)):
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
        yield Part.of(state, STATE)
        shared = fsdp.shared_parts(folder, candidate.facts)
        own = [] if shared else safetensors.model(folder)
        if not shared and not own:
            raise IncompleteError("it has no model that the Trainer could load")
        if not deepspeed.is_root(folder):  # DeepSpeed saves the scheduler in its own files
            need(files, "scheduler.pt")
        own += [Part.of(files[name], name) for name in OWN if name in files]
        none_newer(own, state, slack=0)  # one rank writes these, with one clock
        none_newer(shared, state)
        yield from own
        yield from shared
        if any(map(RNG.fullmatch, files)):
            ranks = candidate.files_of_ranks(RNG, "rng_state_{}.pth")
        else:
            candidate.world, ranks = 1, {0: need(files, "rng_state.pth")}
        yield from (Part.of(entry, entry.name) for entry in ranks.values())


def _step(state: Entry) -> Step | None:
    try:
        text = archives.read_beginning(state.path, MOST_STATE)
        step = int(bounded_json.loads(text)["global_step"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return Step(step, "step", STATE) if 0 <= step < HIGHEST_STEP else None


def _has_optimizer(folder: Folder) -> bool:
    names = (*folder.folders, *folder.files)
    return any(name.startswith("optimizer") for name in names) or deepspeed.is_root(folder)
