"""Model and optimizer as Accelerate saves them under FSDP, for `save_state` and for the Trainer.
Not a format of its own. Each is a directory by DCP, or a file of each rank, or one whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..candidates import Facts, FileKind, Part, all_ranks
from ..listing import Entry, Folder
from . import dcp

SHARDED = re.compile(r"(pytorch_model_fsdp|optimizer)_\d+")
OF_RANK = re.compile(r"((?:pytorch_model_fsdp|optimizer)(?:_\d+)?)_rank(\d+)\.bin")
WHOLE = re.compile(r"pytorch_model_fsdp(_\d+)?\.bin")


def is_here(folder: Folder) -> bool:
    return any(map(SHARDED.fullmatch, folder.folders)) or any(
        OF_RANK.fullmatch(name) or WHOLE.fullmatch(name) for name in folder.files
    )


def parts(folder: Folder, facts: Facts) -> Iterator[Part]:
    for name in filter(SHARDED.fullmatch, folder.folders):
        for part in dcp.sealed_shards(folder.folder(name)):
            yield part._replace(label=f"{name}/{part.label}")
    ranks: dict[str, dict[int, Entry]] = {}
    for name in folder.files:
        if WHOLE.fullmatch(name):
            yield Part(folder.files[name], FileKind.TORCH, name)
        elif of := OF_RANK.fullmatch(name):
            ranks.setdefault(of[1], {})[int(of[2])] = folder.files[name]
            yield Part(folder.files[name], FileKind.TORCH, name)
    for stem, found in ranks.items():
        time = max(entry.time for entry in found.values())
        all_ranks(found, facts.world_at(time), f"{stem}_rank{{}}.bin")
