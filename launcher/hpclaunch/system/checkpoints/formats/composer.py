"""MosaicML's Composer: `ep1-ba42-rank0.pt`, by torch.save on the first rank. (Its sharded
checkpoints are directories by DCP.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..candidates import CheckpointCandidate, FileKind, Location, Part, Step

NAME = re.compile(r"ep\d+-ba(\d+)-rank(\d+)(?:\.pt)?")


class Composer:
    name = "Composer"
    load = "Trainer(load_path=path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        named = NAME.fullmatch(place.name)
        if named is None or named[2] != "0":
            return None
        step = Step(int(named[1]), "step", "its name")
        return CheckpointCandidate(place, self, place.entry, step)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        yield Part(candidate.decides, FileKind.TORCH, "")
