"""The formats of checkpoints that are known. A new one is a file, a line here, and a test.
`fsdp.py` is no format of its own: it has what several formats share.
"""

from __future__ import annotations

from ..candidates import Format
from .accelerate import Accelerate
from .dcp import Dcp
from .deepspeed import DeepSpeed
from .hf_trainer import HfTrainer
from .lightning import Lightning, LightningDeepSpeed, LightningSharded
from .megatron import Megatron
from .safetensors import Exported, Safetensors
from .sealed import Sealed, Unsealed
from .torch_save import Composer, TorchSave

# The first format that recognises a location gets it. A script's own seal comes first, and a format
# that contains another comes before it. The last takes every directory with files that look saved.
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
