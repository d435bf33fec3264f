"""A model as the Hugging Face libraries write it: one file, or shards that an index names. It is a
part of several formats.
"""

from __future__ import annotations

from hpclaunch.system.shared import bounded_json

from .. import archives
from ..candidates import IncompleteError, Part, need
from ..listing import Folder

INDEX = ".index.json"
# In the order in which the libraries look for them.
MODELS = ("model.safetensors", "pytorch_model.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


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
