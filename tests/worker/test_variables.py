"""The environment variables that are read while torch is loaded."""

import subprocess
import sys

import pytest

from hpclaunch.worker.site._hpclaunch_variables import LATER, is_read_at_load


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("OMP_PROC_BIND KMP_DUPLICATE_LIB_OK MKL_NUM_THREADS OPENBLAS_NUM_THREADS", True),
        ("TORCH_LOGS TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG TORCHDYNAMO_DISABLE", True),
        ("PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF PYTORCH_JIT", True),
        ("CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING HIP_VISIBLE_DEVICES ZE_AFFINITY_MASK", True),
        ("NCCL_DEBUG TORCH_NCCL_BLOCKING_WAIT GLOO_SOCKET_IFNAME MASTER_PORT RANK", False),
        ("HF_HOME WANDB_MODE TOKENIZERS_PARALLELISM TF_CPP_MIN_LOG_LEVEL PATH", False),
        ("CUBLAS_WORKSPACE_CONFIG TORCH_HOME CUDA_HOME TRITON_CACHE_DIR", False),
        ("LD_LIBRARY_PATH", True),
    ],
)
def test_the_list(names, expected):
    assert {is_read_at_load(name) for name in names.split()} == {expected}


SPY = """
import os
read = {}
get = type(os.environ).__getitem__

def spy(self, name):
    frame = sys._getframe(1)
    while frame.f_code.co_filename in library:
        frame = frame.f_back
    read.setdefault(name, frame.f_code.co_filename)
    return get(self, name)

import _collections_abc, sys
library = {os.__file__, _collections_abc.__file__, "<frozen os>", "<frozen _collections_abc>"}
type(os.environ).__getitem__ = spy
import torch.distributed
torch = os.path.dirname(torch.__file__)
print(*(name for name, reader in read.items() if reader.startswith(torch)))
"""


@pytest.mark.starts
def test_the_list_has_all_that_this_torch_reads():
    done = subprocess.run([sys.executable, "-c", SPY], capture_output=True, text=True, check=True)
    names = done.stdout.split()
    assert "TORCH_LOGS" in names
    assert [name for name in names if not is_read_at_load(name)] == []
    assert [name for name in names if name.startswith(LATER)] == []
