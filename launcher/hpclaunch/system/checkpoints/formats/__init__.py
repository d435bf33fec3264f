"""The ways to save that are known, one file each. A new one is a file, a line here, and a test."""

from __future__ import annotations

from ..candidates import Format
from .accelerate import Accelerate
from .composer import Composer
from .dcp import Dcp
from .deepspeed import DeepSpeed
from .hf_trainer import HfTrainer
from .lightning import Lightning, LightningDeepSpeed, LightningSharded
from .megatron import Megatron
from .safetensors import Exported, Safetensors
from .sealed import Sealed, Unsealed
from .torch_save import TorchSave

# The first that recognises a place has it. A script's own seal comes before any other rule, and
# those that are made of another's parts before that; the last takes what looks saved in some way.
SEAL = Sealed()
UNKNOWN = Unsealed()
OF_DIRECTORIES: tuple[Format, ...] = (
    SEAL,
    Accelerate(),
    HfTrainer(),
    LightningSharded(),
    LightningDeepSpeed(),
    Megatron(),
    DeepSpeed(),
    Dcp(),
    Exported(),
    UNKNOWN,
)
OF_FILES: tuple[Format, ...] = (Lightning(), Composer(), TorchSave(), Safetensors())
