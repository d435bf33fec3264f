"""Show which devices NVML opens: those of a process that only reads a GPU, as our watcher does."""

import os

import pynvml


def show(when: str) -> None:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # that of the listing
            continue
    devices = sorted(link for link in links if link.startswith("/dev/nvidia"))
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
