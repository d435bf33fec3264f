"""Emulation of a GPU by the CPU for the real torch, for `tests/gpu/rehearse`.

Each Python imports this by a .pth file. Tensors of "cuda" are on the CPU. The first of them makes
the process a client of the stand-in for MPS (`cuda_client.py`), whose limits of threads and memory
hold. The kernel of `computing.py` that writes to an illegal address is a fault of that client.
Waiting for `torch.cuda._sleep` uses the CPU without the GIL. There is no NCCL.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import sys
import types

UUID = "GPU-00000000-1111-2222-3333-444444444444"  # as in `nvml.py`
GIB = 1 << 30


def visible():
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES selects, by the rules of CUDA."""
    selection = os.environ.get("CUDA_VISIBLE_DEVICES")
    if selection is None:
        return 1
    count = 0
    for entry in selection.split(","):
        if entry != "0" and not (entry.startswith("GPU-") and UUID.startswith(entry)):
            break
        count += 1
    return count if count < 2 else 0


class AfterTorch:
    """A finder of modules that calls `patch` after torch is imported."""

    def find_spec(self, name, _path, _target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


class Context:
    """The CUDA context of a process."""

    def __init__(self):
        self.owner = 0  # the process that uses it
        self.is_client = False
        self.has_fault = False

    def use(self):
        if self.owner != os.getpid():
            import cuda_client

            self.owner = os.getpid()
            self.is_client = cuda_client.connect()

    def synchronize(self, _device=None):
        import cuda_client

        self.use()
        if self.has_fault:
            if self.is_client:
                with contextlib.suppress(cuda_client.CudaError):
                    cuda_client.fault()
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def patch(torch):
    from torch.overrides import TorchFunctionMode

    context, cuda = Context(), torch.cuda

    def on_cpu(value):
        is_device = isinstance(value, torch.device | str)
        if is_device and str(value).partition(":")[0] == "cuda":
            context.use()
            return "cpu"
        return value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function, _types, args=(), kwargs=None):
            if function is torch.Tensor.cuda:
                context.use()
                return args[0]
            if function is torch.empty and isinstance(args[0], int):  # in `computing.py`
                limit = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=80G")
                if args[0] > int(limit[2:-1]) * GIB:
                    raise cuda.OutOfMemoryError("CUDA out of memory")
            words = {name: on_cpu(value) for name, value in (kwargs or {}).items()}
            return function(*map(on_cpu, args), **words)

    OnCpu().__enter__()  # never left

    def properties(_device):
        share = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"))
        return types.SimpleNamespace(
            uuid=UUID[4:], multi_processor_count=int(1.32 * share), major=9, minor=0
        )

    def set_device(device):
        if int(device) >= visible():
            raise RuntimeError("CUDA error: invalid device ordinal")

    def sleep(_cycles):
        context.use()
        most = (1 << 31) - 1  # rounds: minutes
        torch.Tensor.item = functools.partial(hashlib.pbkdf2_hmac, "sha256", b"", b"", most)

    torch._C._cuda_getDeviceCount = cuda.device_count = visible
    cuda.is_available = lambda: visible() > 0
    cuda.is_initialized = lambda: context.owner == os.getpid()
    cuda.current_device = lambda: 0
    cuda.set_device = set_device
    cuda.get_device_properties = properties
    cuda.synchronize = context.synchronize
    cuda._sleep = sleep
    cuda.manual_seed_all = cuda.manual_seed = lambda _seed: None
    cuda.is_current_stream_capturing = lambda: False
    cuda.memory_stats_as_nested_dict = lambda _device: {"allocation": {"all": {"allocated": 1}}}
    load, library = torch.load, ctypes.CDLL

    class Driver:
        def __getattr__(self, name):
            def call(*_):
                context.has_fault |= name == "cuLaunchKernel"
                return 0

            return call

    def loaded(name=None, *words, **more):
        return Driver() if name == "libcuda.so.1" else library(name, *words, **more)

    replica = torch.nn.parallel.DistributedDataParallel
    init = replica.__init__

    def init_on_cpu(self, module, device_ids=None, **more):
        init(self, module, **more)

    replica.__init__ = init_on_cpu
    torch.load = lambda *words, **more: load(*words, **{**more, "map_location": "cpu"})
    ctypes.CDLL = loaded


if "torch" not in sys.modules:
    sys.meta_path.insert(0, AfterTorch())
