"""A model as the Hugging Face libraries write it: one file, or shards that an index names. Not a
format of its own: others have such a model in them.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpclaunch.system.shared import bounded_json

from .. import archives
from ..candidates import FileKind, IncompleteError, Part, need
from ..listing import Entry, Folder

INDEX = ".index.json"
# In the order in which the libraries look for them.
MODELS = ("model.safetensors", "pytorch_model.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


def model(folder: Folder) -> list[Part]:
    """The files of the model, none where there is none; IncompleteError where some are missing."""
    files = folder.files
    for name in MODELS:
        if name in files:
            return [_part(files[name], name)]
        if name + INDEX in files:
            return list(sharded(folder, name + INDEX))
    parts = [_part(files[name], name) for name in ADAPTERS if name in files]
    for name in folder.folders:  # further adapters, each in a directory of its own
        inner = folder.folder(name).files
        parts += [_part(inner[a], f"{name}/{a}") for a in ADAPTERS if a in inner]
    return parts


def sharded(folder: Folder, index: str) -> Iterator[Part]:
    """The index is written after the shards."""
    entry = folder.files[index]
    yield Part(entry, FileKind.JSON, index)
    try:
        content = bounded_json.loads(archives.read_whole(entry.path, bounded_json.MOST))
        named = sorted({str(name) for name in content["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise IncompleteError(f"{index} is cut short or damaged") from e
    for name in named:
        yield _part(need(folder.files, name, f"which {index} names"), name)


def _part(entry: Entry, name: str) -> Part:
    return Part(entry, FileKind.TENSORS if name.endswith(".safetensors") else FileKind.TORCH, name)
