"""The sharded part of a checkpoint by Accelerate's `save_state` or the Trainer.

Under FSDP, model and optimizer are each a directory by DCP, a file of each rank, or one whole file.
Under DeepSpeed, they are in the directory that `latest` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..candidates import Facts, Part, all_ranks
from ..listing import Entry, Folder
from . import dcp, deepspeed

SHARDED = re.compile(r"(pytorch_model_fsdp|optimizer)_\d+")
OF_RANK = re.compile(r"((?:pytorch_model_fsdp|optimizer)(?:_\d+)?)_rank(\d+)\.bin")
WHOLE = re.compile(r"pytorch_model_fsdp(_\d+)?\.bin")


def is_here(folder: Folder) -> bool:
    """Return whether FSDP has begun to save in this directory."""
    return any(map(SHARDED.fullmatch, folder.folders)) or any(
        OF_RANK.fullmatch(name) or WHOLE.fullmatch(name) for name in folder.files
    )


def shared_parts(folder: Folder, facts: Facts) -> list[Part]:
    """Return the files that all ranks write together. Raises IncompleteError if one is missing."""
    return [*_parts(folder, facts), *deepspeed.root_parts(folder, facts)]


def _parts(folder: Folder, facts: Facts) -> Iterator[Part]:
    for name in filter(SHARDED.fullmatch, folder.folders):
        yield from (part.within(name) for part in dcp.sealed_shards(folder.folder(name)))
    ranks: dict[str, dict[int, Entry]] = {}
    for name in folder.files:
        of = OF_RANK.fullmatch(name)
        if of or WHOLE.fullmatch(name):
            yield Part.of(folder.files[name], name)
        if of:
            ranks.setdefault(of[1], {})[int(of[2])] = folder.files[name]
    for stem, found in ranks.items():
        time = max(entry.time for entry in found.values())
        all_ranks(found, facts.world_at(time), f"{stem}_rank{{}}.bin")
