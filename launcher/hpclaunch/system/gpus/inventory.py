"""The GPUs that this task may use: NVIDIA's from NVML and CUDA_VISIBLE_DEVICES, without a CUDA
context; AMD's as torch counts them.

NVML orders GPUs by PCI address, as CUDA does under CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.protocol import ranges
from hpclaunch.core.protocol.values import replace, value

PCI = Path("/sys/bus/pci/devices")
ADVICE = "Under Slurm leave it as Slurm sets it"
WORDS = 128  # of 64 bits, in a set of CPUs: as many as a kernel can be built for
_MODES = {1: "exclusive", 2: "prohibited", 3: "exclusive"}  # NVML_COMPUTEMODE_*, 0 is the default


@value(frozen=True)
class GpuSurvey:
    """The driver's description of the GPUs. Everything is empty if there is no driver."""

    gpus: tuple[Gpu, ...] = ()  # of this task, in the order in which its programs see them
    wrong: str = ""  # what is wrong with CUDA_VISIBLE_DEVICES, for the user
    broken: str = ""  # what is wrong with the driver, or with a GPU
    models: str = ""  # "4 x NVIDIA H100, driver 550.54"


def survey(environ: Mapping[str, str], nvml: Any) -> GpuSurvey:
    """Return the GPUs that this task may use. `nvml` is the module `pynvml`, which the caller
    imports only when it needs this.

    NVML stays open as long as this process lives. Without persistence mode the driver initialises a
    GPU when the first process opens it, and releases it when the last one closes it
    (https://docs.nvidia.com/deploy/driver-persistence). This takes 1 to 3 s, for which the GPU
    watcher, the first worker, and the workers of the next round would wait again. The price: as
    long as the agent lives, nobody can reset its GPUs or unload the driver.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as e:
        absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return GpuSurvey(broken="" if e.value in absent else f"NVML cannot be initialised: {e}")
    try:
        return _survey(environ.get("CUDA_VISIBLE_DEVICES"), nvml)
    except nvml.NVMLError as e:
        return GpuSurvey(broken=f"NVML cannot list the GPUs: {e}")


@value(frozen=True)
class PhysicalGpu:
    """A whole GPU, and the instances that it is divided into where MIG is enabled."""

    whole: Gpu
    instances: tuple[Gpu, ...] | None = None  # `entry` is the name that drivers before 470 use

    def usable(self, entry: str) -> list[Gpu]:
        """Return what `entry` selects if it is this GPU. An instance is named by its UUID only."""
        if self.instances is None:
            return [replace(self.whole, entry=entry)]
        return [replace(gpu, entry=gpu.uuid) for gpu in self.instances]


def _survey(selection: str | None, nvml: Any) -> GpuSurvey:
    driver = str(_ask(nvml, nvml.nvmlSystemGetDriverVersion, ""))
    devices: list[PhysicalGpu] = []
    broken = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            devices.append(_device(index, nvml.nvmlDeviceGetHandleByIndex(index), nvml))
        except nvml.NVMLError as e:
            if e.value != nvml.NVML_ERROR_NO_PERMISSION:  # else a cgroup hides it from this task
                broken.append(f"GPU {index}: {e}")
    chosen, wrong = choose(selection, devices)
    models = Counter(device.whole.model for device in devices)
    said = [f"{n} x {model}" for model, n in models.items()]
    said += [f"driver {driver}"] if driver else []
    return GpuSurvey(
        gpus=chosen,
        wrong=wrong,
        broken=", ".join(broken),
        models=", ".join(said),
    )


def _ask(nvml: Any, call: Any, otherwise: Any, *words: Any) -> Any:
    """Return the answer of NVML, or `otherwise` if the GPU or its driver has none."""
    try:
        return call(*words)
    except nvml.NVMLError as e:
        if e.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return otherwise


def _device(index: int, handle: Any, nvml: Any) -> PhysicalGpu:
    def ask(call: Any, otherwise: Any, *words: Any) -> Any:
        return _ask(nvml, call, otherwise, handle, *words)

    found = ask(nvml.nvmlDeviceGetPciInfo, None)
    bus = "" if found is None else _text(found.busId).lower()
    scope = nvml.NVML_AFFINITY_SCOPE_NODE
    cpus = _members(ask(nvml.nvmlDeviceGetCpuAffinityWithinScope, (), WORDS, scope))
    nodes = _members(ask(nvml.nvmlDeviceGetMemoryAffinity, (), WORDS, scope))
    whole = Gpu(
        entry="",
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        model=str(ask(nvml.nvmlDeviceGetName, "unknown GPU")),
        mode=_MODES.get(ask(nvml.nvmlDeviceGetComputeMode, 0), "default"),
        cpus=cpus or _local_cpus(bus),
        node=nodes[0] if nodes else _local_node(bus),
    )
    if not ask(nvml.nvmlDeviceGetMigMode, (0, 0))[0]:
        return PhysicalGpu(whole)
    places = range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, 0))
    handles = (ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, None, place) for place in places)
    return PhysicalGpu(whole, tuple(_instance(whole, i, nvml) for i in handles if i is not None))


def _instance(whole: Gpu, handle: Any, nvml: Any) -> Gpu:
    gi = _ask(nvml, nvml.nvmlDeviceGetGpuInstanceId, "", handle)
    ci = _ask(nvml, nvml.nvmlDeviceGetComputeInstanceId, "", handle)
    uuid = str(nvml.nvmlDeviceGetUUID(handle))
    return replace(whole, entry=f"MIG-{whole.uuid}/{gi}/{ci}", uuid=uuid, mig=True)


def choose(selection: str | None, devices: Sequence[PhysicalGpu]) -> tuple[tuple[Gpu, ...], str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, and what is wrong with it.

    The rules are CUDA's, which applies them silently: entries count up to the first that names no
    device, indices and UUIDs do not mix, a UUID may be shortened as long as it is unambiguous, and
    a device that is named twice hides all. CUDA shows a process one MIG instance; here all are
    listed, since each worker can be given its own.
    """
    if selection is None:
        return tuple(gpu for i, device in enumerate(devices) for gpu in device.usable(str(i))), ""
    entries = [entry.strip() for entry in selection.split(",")]
    while entries and not entries[-1]:
        entries.pop()
    said = f"CUDA_VISIBLE_DEVICES={selection}"
    chosen: list[Gpu] = []
    for position, entry in enumerate(entries):
        named = _named(entry, devices) if _kind(entry) == _kind(entries[0]) else None
        if named is None:
            why = _why_not(entry, entries[0], len(devices), more=any(entries[position + 1 :]))
            return tuple(chosen), f"{said} {why}. {ADVICE}" if why else ""
        if not named:
            return tuple(chosen), (
                f"{said} names GPU {entry}, which is divided by MIG, and no instance of it was "
                "made: ask for another, or for instances (nvidia-smi mig -lgi lists them)"
            )
        if {gpu.uuid for gpu in named} & {gpu.uuid for gpu in chosen}:
            return (), f"{said} names GPU {entry} twice, and then CUDA shows none. {ADVICE}"
        chosen += named
    return tuple(chosen), ""


def _named(entry: str, devices: Sequence[PhysicalGpu]) -> list[Gpu] | None:
    """Return the GPUs of an entry; None if it names nothing, or is ambiguous."""
    if entry.isdecimal():
        return devices[int(entry)].usable(entry) if int(entry) < len(devices) else None
    if entry.startswith("GPU-"):
        whole = [device for device in devices if device.whole.uuid.startswith(entry)]
        return whole[0].usable(entry) if len(whole) == 1 else None
    if entry.startswith("MIG-"):
        instances = [gpu for device in devices for gpu in device.instances or ()]
        exact = [gpu for gpu in instances if entry in (gpu.uuid, gpu.entry)]
        found = exact or [gpu for gpu in instances if gpu.uuid.startswith(entry)]
        return [replace(found[0], entry=entry)] if len(found) == 1 else None
    return None


def _kind(entry: str) -> str:
    return "index" if entry.isdecimal() else entry[:4]


def _why_not(entry: str, first: str, count: int, *, more: bool) -> str:
    """Return why an entry names nothing; "" if the list ends on purpose (-1, NoDevFiles), or it is
    not known which devices exist.
    """
    if not count:
        return ""
    if not entry:
        return "has an empty entry, at which CUDA stops" if more else ""
    if not entry.isdecimal() and not entry.startswith(("GPU-", "MIG-")):
        return ""
    if _kind(entry) != _kind(first):
        return f"mixes indices and UUIDs, and CUDA stops at {entry}"
    there = f"{count} (0 to {count - 1})" if count > 1 else "one, number 0"
    return f"names GPU {entry}, which is not there: this task has {there}"


def amd(environ: Mapping[str, str], count: int) -> GpuSurvey:
    """Return the survey of `count` AMD GPUs, as counted by torch: NVML knows nothing of them.

    ROCR_VISIBLE_DEVICES selects GPUs of the node, and HIP_VISIBLE_DEVICES selects among these. If
    the latter is not set, HIP reads CUDA_VISIBLE_DEVICES.
    """
    rocr = _entries(environ.get("ROCR_VISIBLE_DEVICES"))
    hip = _entries(environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")))
    gpus = []
    for position in range(count):
        entry = hip[position] if position < len(hip) else str(position)
        known = entry.isdecimal() and int(entry) < len(rocr)
        gpus.append(Gpu(entry, rocr[int(entry)] if known else entry, position, "AMD GPU"))
    return GpuSurvey(tuple(gpus), models=f"{count} x AMD GPU" if count else "")


def _entries(selection: str | None) -> list[str]:
    return [] if selection is None else [e.strip() for e in selection.split(",") if e.strip()]


# CPUs and memory nodes nearby


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _members(words: Sequence[int]) -> tuple[int, ...]:
    """Return the members of a set of CPUs or memory nodes, which NVML gives as words of bits."""
    return tuple(
        i * 64 + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1
    )


def _local_cpus(bus: str) -> tuple[int, ...]:
    """Return the CPUs near a device according to the kernel, if NVML does not say."""
    return tuple(sorted(ranges.parsed(_sysfs(bus, "local_cpulist"))))


def _local_node(bus: str) -> int:
    return int(_sysfs(bus, "numa_node") or -1)


def _sysfs(bus: str, name: str) -> str:
    """Return a device's file, or "". NVML writes a PCI domain with 8 digits, the kernel with 4."""
    try:
        return (PCI / bus[-len("0000:00:00.0") :] / name).read_text().strip() if bus else ""
    except OSError:
        return ""
