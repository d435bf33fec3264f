"""safetensors: a file, or a directory with a model that an index may divide among several files.
It has no optimizer, so it is chosen only if no other checkpoint has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..candidates import (
    CheckpointCandidate,
    FileFormat,
    FileKind,
    IncompleteError,
    Location,
    Part,
    none_newer,
    step_of,
)
from . import weights

SUFFIX = ".safetensors"
# Names that the libraries use: the directory of such a file is an exported model.
PARTS = re.compile(r"(?:adapter_)?model(?:_\d+)?(?:\.\w+)?(?:-\d+-of-\d+)?\.safetensors")


class Safetensors(FileFormat):
    name = "safetensors"
    load = "safetensors.torch.load_file(path)"
    kind = FileKind.TENSORS

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if not place.name.endswith(SUFFIX) or PARTS.fullmatch(place.name):
            return None
        return CheckpointCandidate(place, self, place.entry, step_of(place.name), bare=True)


class Exported:
    name = "exported model"
    load = "AutoModel.from_pretrained(path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        files = place.folder.files
        indexes = [name for name in files if name.endswith(weights.INDEX)]
        names = indexes or [name for name in (*weights.MODELS, *weights.ADAPTERS) if name in files]
        if not names:
            return None
        return CheckpointCandidate(place, self, files[names[0]], step_of(place.name), bare=True)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder, name = candidate.folder, candidate.decides.name
        parts = weights.model(folder)
        if not parts and name.endswith(weights.INDEX):
            parts = weights.sharded(folder, name)
        if not parts:
            raise IncompleteError("it has no model")
        none_newer(parts, candidate.decides)
        return parts
