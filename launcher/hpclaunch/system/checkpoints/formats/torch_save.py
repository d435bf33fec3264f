"""A file by torch.save, of either form, under any name. A script that saves to one name each time
has no complete checkpoint while it writes: see docs/checkpoints.md.

MosaicML's Composer calls its files `ep1-ba42-rank0.pt`. (Its sharded checkpoints are directories by
DCP.)
"""

from __future__ import annotations

import re
from functools import lru_cache

from .. import archives
from ..candidates import CheckpointCandidate, FileFormat, Location, Step, step_of
from ..listing import Identity

COMPOSER = re.compile(r"ep\d+-ba(\d+)-rank0(?:\.pt)?")
SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")
# Parts of other formats' checkpoints: the directory of such a file may be a checkpoint.
PARTS = re.compile(
    r"(?:training_args|(?:optimizer|scheduler|sampler|dl_state_dict|pytorch_model|adapter_model)"
    r"(?:_fsdp)?(?:_\d+)?(?:_rank\d+)?(?:-\d+-of-\d+)?)\.bin|"
    r"(?:optimizer|scheduler|scaler|meta)\.pt|rng_state(?:_\d+)?\.pth|"
    r"(?:random_states|custom_checkpoint)_\d+\.pkl|.*_(?:model|optim)_states\.pt|"
    r"layer_\d+-(?:model_\d+-)?model_states\.pt|.*\.distcp"
)
OTHERS = (
    ".json", ".jsonl", ".txt", ".log", ".csv", ".yaml", ".yml", ".md", ".py", ".sh", ".png", ".npy",
    ".npz", ".parquet", ".out", ".err", ".lock", ".html", ".safetensors",
)  # fmt: skip
BEGINNING = 1 << 20
MOST_SEARCHED = 64 << 20
OPTIMIZER = (b"param_groups", b"optimizer", b"optim_state", b"exp_avg", b"momentum_buffer")


class Composer(FileFormat):
    name = "Composer"
    load = "Trainer(load_path=path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if (named := COMPOSER.fullmatch(place.name)) is None:
            return None
        step = Step(int(named[1]), "step", "its name")
        return CheckpointCandidate(place, self, place.entry, step)


class TorchSave(FileFormat):
    name = "torch.save"
    load = "torch.load(path)"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        name = place.name
        if PARTS.fullmatch(name) or name.endswith(OTHERS):
            return None
        if not name.endswith(SUFFIXES) and not is_archive(place.entry.path, place.entry.identity):
            return None
        found = CheckpointCandidate(place, self, place.entry, step_of(name))
        try:
            found.bare = _is_bare(place.entry.path, place.entry.identity)
        except OSError:
            found.bare = None
        return found


@lru_cache(maxsize=4096)
def is_archive(path: str, _identity: Identity) -> bool:
    """Return whether a file begins as torch.save begins one. Raises OSError."""
    head = archives.read_beginning(path, archives.HEAD)
    return archives.is_torch(head) or head.startswith(archives.LEGACY)


@lru_cache(maxsize=4096)
def _is_bare(path: str, _identity: Identity) -> bool | None:
    """Return whether a file has a model without an optimizer; None if that is not known."""
    try:
        with archives.opened(path) as window:
            try:
                found, before = archives.pickled(window)
                data = found.beginning(MOST_SEARCHED)
                # In the older form, other pickles come before this one, and tensors after it.
                whole = len(data) == found.length or before > 0
            except archives.DamagedError:  # the beginning, with the pickle, may be whole
                data, whole = window.read(0, min(window.length, BEGINNING)), False
    except archives.DamagedError:
        return None
    if any(word in data for word in OPTIMIZER):
        return False
    return True if whole else None
