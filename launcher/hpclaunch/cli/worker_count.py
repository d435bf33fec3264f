"""The number of workers that a task starts, and its GPUs."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hpclaunch.core.health.findings import Finding
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.placement.worker_environment import CUDA, HIP
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import Allocation
from hpclaunch.core.protocol.node_facts import LaunchNote, LaunchNoteKind
from hpclaunch.core.protocol.values import value
from hpclaunch.system.gpus import inventory

ROCM = Path("/dev/kfd")  # exists where AMD's driver is
NVML = "libnvidia-ml.so.1"  # a part of NVIDIA's driver
ASK_LIMIT = 120.0  # seconds, enough for a first `import torch` on a busy file system


@value(frozen=True)
class Count:
    nproc: int
    gpus: tuple[Gpu, ...] = ()  # AMD's only where their number matters
    selector: str = CUDA
    broken: tuple[Finding, ...] = ()  # GPUs that did not answer
    notes: tuple[LaunchNote, ...] = ()


def survey(environ: Mapping[str, str], limit: float | None = None) -> inventory.GpuSurvey:
    """Return the NVIDIA GPUs, or what is wrong with CUDA_VISIBLE_DEVICES, within `limit` seconds
    (None: the time that NVML may take to start).
    """
    try:
        ctypes.CDLL(NVML)
    except OSError:
        return inventory.GpuSurvey()  # no driver: the imports below would be wasted
    import threading

    import pynvml

    from hpclaunch.system.gpus.gpu_watcher_client import INIT_LIMIT

    limit = INIT_LIMIT if limit is None else limit
    answers: list[inventory.GpuSurvey] = []

    def ask() -> None:
        try:
            answers.append(inventory.survey(environ, pynvml))
        except Exception as e:  # reported as any other fault of the driver
            answers.append(inventory.GpuSurvey(broken=f"NVML's answer cannot be read: {e!r}"))

    # NVML may hang if a GPU has fallen off the bus.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(limit)
    silent = inventory.GpuSurvey(broken=f"NVML did not answer within {limit:g} s")
    return answers[0] if answers else silent


def count_workers(
    nproc: str | None,
    where: Allocation,
    environ: Mapping[str, str],
    *,
    python: str,
    cpus: int,
    per_worker: int = 1,
) -> Count:
    """Return how many workers this task starts. `nproc` is as on the command line; None: one for
    each GPU, or one if several tasks run on this node.
    """
    found = survey(environ)
    if found.wrong:
        raise UsageError(found.wrong)
    notes: list[LaunchNote] = []
    host = where.places[where.index].host
    tasks, selector = where.tasks_here, CUDA
    number = int(nproc) if nproc is not None and nproc.isdecimal() else 0
    matters = nproc not in ("cpu", "xpu") and (tasks > 1 or not number or per_worker > 1)
    if not found.gpus and matters and ROCM.exists():
        # torch calls AMD's GPUs cuda
        found, selector = inventory.amd(environ, _ask_torch(python, "cuda")), HIP
    models = len(found.gpus) // per_worker
    if per_worker > 1 and not models:
        raise UsageError(
            f"--gpus-per-worker {per_worker}, but this task has {len(found.gpus)}: ask Slurm for "
            "more (--gpus-per-node)"
        )
    if number:
        count = number
        if tasks > 1 and number > 1:
            notes.append(LaunchNote(host, LaunchNoteKind.NPROC, {"tasks": tasks, "nproc": number}))
    elif nproc == "cpu":
        count = cpus
    elif nproc == "xpu":
        count = _found(_ask_torch(python, "xpu"), "xpu", environ)
    elif nproc == "gpu":
        count = _found(models, "gpu", environ)
    elif tasks > 1:
        count = 1  # such a step has one task per GPU
    elif models:
        count = models
    elif nproc == "auto":
        count = cpus
        notes.append(LaunchNote(host, LaunchNoteKind.NO_GPU, {"cpus": cpus}))
    else:
        count = 1
    return Count(count, found.gpus, selector, _broken(found, environ), tuple(notes))


def _broken(found: inventory.GpuSurvey, environ: Mapping[str, str]) -> tuple[Finding, ...]:
    if not found.broken:
        return ()
    from hpclaunch.core.health.gpu_rules import judge_survey

    return tuple(judge_survey(found.broken, len(found.gpus), _given(environ)))


def _given(environ: Mapping[str, str]) -> int | None:
    """Return how many GPUs Slurm or the user has chosen for this task."""
    selection = environ.get(CUDA)
    if selection is not None:
        return len(list(filter(None, selection.split(","))))
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    return int(on_node) if on_node.isdecimal() else None


def _found(count: int, kind: str, environ: Mapping[str, str]) -> int:
    if count:
        return count
    selection = environ.get("CUDA_VISIBLE_DEVICES") if kind == "gpu" else None
    because = "" if selection is None else f" with CUDA_VISIBLE_DEVICES={selection!r}"
    raise UsageError(f"--nproc {kind}, but no {kind.upper()} is visible here{because}")


def _ask_torch(python: str, device: str) -> int:
    """Ask torch for the number of devices, in another process: the agent does not import it."""
    from hpclaunch.system.hosts.checks_torch import WITHOUT_CWD

    code = f"{WITHOUT_CWD}import torch; print(torch.{device}.device_count())"
    try:
        answer = subprocess.run(
            [python, "-c", code], capture_output=True, timeout=ASK_LIMIT, check=True
        )
        return int(answer.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
