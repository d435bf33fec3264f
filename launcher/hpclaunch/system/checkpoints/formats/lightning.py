"""Lightning's checkpoints: a file by torch.save; under sharded FSDP a directory by DCP, to which
the first rank adds `meta.pt` last; under DeepSpeed a directory with `latest` in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .. import archives
from ..candidates import (
    SLACK,
    CheckpointCandidate,
    FileFormat,
    IncompleteError,
    Location,
    Part,
    Step,
    need,
)
from ..listing import Entry
from . import dcp, deepspeed

SUFFIX = ".ckpt"
META = "meta.pt"
VERSION = "pytorch-lightning_version"
STEP = "global_step"
OPTIMIZERS = "optimizer_states"
LOAD = "trainer.fit(model, ckpt_path=path)"


class Lightning(FileFormat):
    name = "Lightning"
    load = LOAD

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        recorded = _recorded(place.entry) if place.name.endswith(SUFFIX) else {}
        if (step := _step(recorded)) is None:
            return None
        found = CheckpointCandidate(place, self, place.entry, step)
        if OPTIMIZERS not in recorded:
            found.export = "a model without its optimizer (save_weights_only)"
        return found


class LightningSharded:
    name = "Lightning FSDP"
    load = LOAD

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        found = dcp.candidate(self, place) if place.name.endswith(SUFFIX) else None
        if found is not None and META in place.folder.files:
            found.step = _step(_recorded(place.folder.files[META])) or found.step
        return found

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        yield from dcp.sealed_shards(candidate.folder)
        meta = need(candidate.folder.files, META, "which Lightning writes last")
        if meta.time < candidate.time - SLACK:
            older = f"{META} is older than {dcp.METADATA}"
            raise IncompleteError(f"{older}: a later save was not finished")
        yield Part.of(meta, META)


class LightningDeepSpeed:
    name = "Lightning DeepSpeed"
    load = LOAD

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        inner = map(
            place.folder.folder, place.folder.folders if place.name.endswith(SUFFIX) else ()
        )
        found = (deepspeed.candidate(self, place, tag) for tag in inner)
        return next(filter(None, found), None)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        return deepspeed.root_parts(candidate.folder, candidate.facts, candidate)


def _recorded(file: Entry) -> Mapping[str, object]:
    """Return what a file by Lightning records; {} if it is unreadable."""
    try:
        return archives.fields_of(file, VERSION, STEP, OPTIMIZERS)
    except OSError:
        return {}


def _step(recorded: Mapping[str, object]) -> Step | None:
    """Return the step; None if Lightning has not written the file."""
    match recorded.get(STEP):
        case int(step) if VERSION in recorded:
            return Step(step, "step", "what is in it")
    return None
