"""MosaicML's Composer: `ep1-ba42-rank0.pt`, by torch.save on the first rank. (Its sharded
checkpoints are directories by DCP.)
"""

from __future__ import annotations

import re

from ..candidates import CheckpointCandidate, FileFormat, Location, Step

NAME = re.compile(r"ep\d+-ba(\d+)-rank0(?:\.pt)?")


class Composer(FileFormat):
    name = "Composer"
    load = "Trainer(load_path=path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if (named := NAME.fullmatch(place.name)) is None:
            return None
        step = Step(int(named[1]), "step", "its name")
        return CheckpointCandidate(place, self, place.entry, step)
