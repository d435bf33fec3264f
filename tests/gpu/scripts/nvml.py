"""Show which devices NVML opens in a process that only reads a GPU, as the GPU watcher does."""

import pynvml
from open_files import opened


def show(when: str) -> None:
    devices = [path for path in opened() if path.startswith("/dev/nvidia")]
    print(f"{when}: {' '.join(devices) or 'none'}")


pynvml.nvmlInit()
show("initialised")
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
show("a handle")
for name in (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetRemappedRows",
):
    getattr(pynvml, name)(handle)
    show(name)
pynvml.nvmlShutdown()
show("shut down")
