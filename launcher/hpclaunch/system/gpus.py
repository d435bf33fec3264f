"""GPUs that this task may use, as NVML and CUDA_VISIBLE_DEVICES tell; no CUDA context is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def visible(environ: Mapping[str, str], nvml: Any) -> int:
    """How many GPUs CUDA would show a program started here; 0 without a driver.

    `nvml` is the module `pynvml`, which the caller imports only when it needs this count.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return 0
    try:
        return _count(environ.get("CUDA_VISIBLE_DEVICES"), _names(nvml))
    finally:
        nvml.nvmlShutdown()


def _names(nvml: Any) -> list[str]:
    """UUIDs of the devices that can be opened: NVML counts those that a cgroup hides as well."""
    names = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            names.append(str(nvml.nvmlDeviceGetUUID(handle)))
        except nvml.NVMLError:
            continue
    return names


def _count(selection: str | None, names: list[str]) -> int:
    """CUDA's own rule: entries count up to the first one that names no device."""
    if selection is None:
        return len(names)
    count = 0
    for entry in filter(None, (e.strip() for e in selection.split(","))):
        if entry.startswith("MIG-"):
            count += 1
        elif entry.startswith("GPU-"):
            if not any(name.startswith(entry) for name in names):
                break
            count += 1
        elif entry.isdigit() and int(entry) < len(names):
            count += 1
        else:
            break
    return count
