"""safetensors: a file, or a directory with a model as the Hugging Face libraries write it, which an
index may divide among several files. It has no optimizer, so it is chosen only if no other
checkpoint has one. Other formats contain such a model, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpclaunch.system.shared import bounded_json

from .. import archives
from ..candidates import (
    CheckpointCandidate,
    FileFormat,
    FileKind,
    IncompleteError,
    Location,
    Part,
    need,
    none_newer,
    step_of,
)
from ..listing import Folder, saved_in

SUFFIX = ".safetensors"
INDEX = ".index.json"
# In the order in which the libraries look for them.
MODELS = ("model.safetensors", "pytorch_model.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
ARGUMENTS = "training_args.bin"  # of the Trainer
# Names that the libraries use: the directory of such a file is an exported model.
PARTS = re.compile(r"(?:adapter_)?model(?:_\d+)?(?:\.\w+)?(?:-\d+-of-\d+)?\.safetensors")
NUMBERED = re.compile(
    r"model_\d+\.safetensors"
)  # Accelerate's, beside the first: model.safetensors
OF_TORCH = re.compile(r"(?:pytorch_model(?:\.\w+)?(?:-\d+-of-\d+)?|adapter_model)\.bin")


class Safetensors(FileFormat):
    name = "safetensors"
    load = "safetensors.torch.load_file(path)"
    kind = FileKind.TENSORS

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        name = place.name
        is_own = NUMBERED.fullmatch(name) and MODELS[0] not in place.root.files  # the script's
        if not name.endswith(SUFFIX) or (PARTS.fullmatch(name) and not is_own):
            return None
        return CheckpointCandidate(place, self, place.entry, step_of(name), bare=True)


class Exported:
    name = "exported model"
    load = "AutoModel.from_pretrained(path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        files = place.folder.files
        indexes = [name for name in files if name.endswith(INDEX)]
        names = indexes or [name for name in (*MODELS, *ADAPTERS) if name in files]
        if not names or not all(map(_is_exported, saved_in(place.folder))):
            return None  # a directory of the script's own has more in it, such as an optimizer
        found = CheckpointCandidate(place, self, files[names[0]], step_of(place.name), bare=True)
        if ARGUMENTS in files:
            found.export = "a model that the Trainer has saved, without its optimizer and its state"
        return found

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        folder, name = candidate.folder, candidate.decides.name
        parts = model(folder)
        if not parts and name.endswith(INDEX):
            parts = sharded(folder, name)
        if not parts:
            raise IncompleteError("it has no model")
        none_newer(parts, candidate.decides)
        return parts


def _is_exported(name: str) -> bool:
    return name == ARGUMENTS or any(known.fullmatch(name) for known in (PARTS, OF_TORCH))


def model(folder: Folder) -> list[Part]:
    """Return the files of the model, if any. Raises IncompleteError if some are missing."""
    files = folder.files
    for name in MODELS:
        if name in files:
            return [Part.of(files[name], name)]
        if name + INDEX in files:
            return sharded(folder, name + INDEX)
    parts = [Part.of(files[name], name) for name in ADAPTERS if name in files]
    for name in folder.folders:  # further adapters, each in a directory of its own
        inner = folder.folder(name).files
        parts += [Part.of(inner[a], f"{name}/{a}") for a in ADAPTERS if a in inner]
    return parts


def sharded(folder: Folder, index: str) -> list[Part]:
    """Return the index, which is written after the shards, and the shards that it names. Raises
    IncompleteError if one is missing.
    """
    entry = folder.files[index]
    try:
        content = bounded_json.loads(archives.read_beginning(entry.path, bounded_json.MOST + 1))
        named = sorted({str(name) for name in content["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise IncompleteError(f"{index} is cut short or damaged") from e
    shards = [need(folder.files, name, f"which {index} names") for name in named]
    return [Part.of(each, each.name) for each in (entry, *shards)]
