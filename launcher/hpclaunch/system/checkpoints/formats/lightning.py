"""Lightning's checkpoints: a file by torch.save; under sharded FSDP a directory by DCP, to which
the first rank adds `meta.pt` at last; under DeepSpeed a directory with `latest` in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from .. import archives, pickles
from ..candidates import (
    SLACK,
    CheckpointCandidate,
    FileKind,
    IncompleteError,
    Location,
    Part,
    Step,
    need,
    step_of,
)
from ..listing import Entry, Identity
from . import dcp, deepspeed

SUFFIX = ".ckpt"
META = "meta.pt"
VERSION = "pytorch-lightning_version"
LOAD = "trainer.fit(model, ckpt_path=path)"


class Lightning:
    name = "Lightning"
    load = LOAD

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if not place.name.endswith(SUFFIX):
            return None
        step = _global_step(place.entry.path, place.entry.identity)
        if step is None:
            return None
        return CheckpointCandidate(place, self, place.entry, _step(place, step))

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        yield Part(candidate.decides, FileKind.TORCH, "")


class LightningSharded:
    name = "Lightning FSDP"
    load = LOAD

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if not place.name.endswith(SUFFIX):
            return None
        found = dcp.candidate(self, place)
        if found is not None and META in place.folder.files:
            meta = place.folder.files[META]
            found.step = _step(place, _global_step(meta.path, meta.identity))
        return found

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        yield from dcp.sealed_shards(candidate.folder)
        meta = need(candidate.folder.files, META, "which Lightning writes last")
        _none_older(candidate, meta)
        yield Part(meta, FileKind.TORCH, META)


class LightningDeepSpeed:
    name = "Lightning DeepSpeed"
    load = LOAD

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if not place.name.endswith(SUFFIX):
            return None
        tags = [t for t in place.folder.folders if deepspeed.states(place.folder.folder(t))]
        if not tags:
            return None
        tag = place.folder.folder(tags[0])
        first = tag.files[min(deepspeed.models(tag) or deepspeed.states(tag))]
        world = deepspeed.world_of(tag)
        return CheckpointCandidate(place, self, first, step_of(place.name), world)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        once = deepspeed.is_used_once(candidate.name, candidate.place.root)
        return deepspeed.root_parts(candidate.folder, candidate.facts, once=once)


def _none_older(candidate: CheckpointCandidate, meta: Entry) -> None:
    if meta.time < candidate.decides.time - SLACK:
        raise IncompleteError(f"{META} is older than {dcp.METADATA}: a later save was not finished")


def _step(place: Location, told: int | None) -> Step | None:
    return step_of(place.name) if told is None else Step(told, "step", "what is in it")


def _global_step(path: str, identity: Identity) -> int | None:
    """Return None for a file that Lightning has not written, or that cannot be read to its end."""
    try:
        found = _fields(path, identity)
    except (OSError, archives.DamagedError):
        return None
    step = found.get("global_step")
    return step if VERSION in found and isinstance(step, int) else None


@lru_cache(maxsize=1024)
def _fields(path: str, _identity: Identity) -> dict[str, pickles.Field]:
    """Raises OSError and DamagedError, which are not remembered: both may pass."""
    with archives.opened(path) as window:
        return archives.fields(window, VERSION, "global_step")
