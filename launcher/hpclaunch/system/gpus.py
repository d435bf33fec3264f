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


def not_there(environ: Mapping[str, str], nvml: Any) -> str:
    """What is wrong with CUDA_VISIBLE_DEVICES, "" when nothing is or no driver can tell.

    CUDA itself says nothing: it hides the entry and all that follow.
    """
    selection = environ.get("CUDA_VISIBLE_DEVICES", "")
    entries = [e for e in (e.strip() for e in selection.split(",")) if e]
    if not entries or not _names_a_gpu(entries[0]):
        return ""  # -1, NoDevFiles: hidden on purpose
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ""
    try:
        names = _names(nvml)
    finally:
        nvml.nvmlShutdown()
    seen = _count(selection, names)
    if not names or seen == len(entries) or not _names_a_gpu(entries[seen]):
        return ""
    there = f"{len(names)} (0 to {len(names) - 1})" if len(names) > 1 else "one, number 0"
    return (
        f"CUDA_VISIBLE_DEVICES={selection} names GPU {entries[seen]}, which is not there: this "
        f"task has {there}. Under Slurm leave it as Slurm sets it"
    )


def _names_a_gpu(entry: str) -> bool:
    return entry.isdigit() or entry.startswith(("GPU-", "MIG-"))


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
