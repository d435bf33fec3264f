"""How many workers one task starts."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpclaunch.core.errors import UsageError
from hpclaunch.core.model import Allocation

ROCM = Path("/dev/kfd")  # AMD's driver, which NVML knows nothing of
ASK_LIMIT = 120.0  # seconds for a first `import torch` on a busy file system


@dataclass(frozen=True, slots=True)
class Count:
    nproc: int
    visible_gpus: int  # 0 also where it did not matter
    note: str = ""


def count_workers(
    nproc: str | None, where: Allocation, environ: Mapping[str, str], *, python: str, cpus: int
) -> Count:
    """`nproc` as on the command line; None: one per GPU, or the one that a task stands for."""
    tasks = where.tasks_here
    if nproc is not None and nproc.isdigit():
        visible = _visible_gpus(environ, python) if tasks > 1 else 0
        note = ""
        if tasks > 1 and int(nproc) > 1:
            note = (
                f"{tasks} tasks on {where.places[where.index].host}, each with --nproc {nproc}: "
                "leave --nproc out for one worker per task"
            )
        return Count(int(nproc), visible, note)
    if nproc == "cpu":
        return Count(cpus, 0)
    if nproc == "xpu":
        return Count(_found(_ask_torch(python, "xpu"), "xpu", environ), 0)
    visible = _visible_gpus(environ, python)
    if nproc == "gpu":
        return Count(_found(visible, "gpu", environ), visible)
    if tasks > 1:  # started once per GPU: that is what such a step means
        return Count(1, visible)
    if visible:
        return Count(visible, visible)
    if nproc == "auto":
        return Count(cpus, 0, f"no GPU here: one worker for each of the {cpus} CPUs of this task")
    return Count(1, 0)


def _found(count: int, kind: str, environ: Mapping[str, str]) -> int:
    if count:
        return count
    selection = environ.get("CUDA_VISIBLE_DEVICES") if kind == "gpu" else None
    because = "" if selection is None else f" with CUDA_VISIBLE_DEVICES={selection!r}"
    raise UsageError(f"--nproc {kind}, but no {kind.upper()} is visible here{because}")


def _visible_gpus(environ: Mapping[str, str], python: str) -> int:
    import pynvml

    from hpclaunch.system import gpus

    found = gpus.visible(environ, pynvml)
    if not found and ROCM.exists():
        return _ask_torch(python, "cuda")  # torch calls them so as well
    return found


def check_selection(environ: Mapping[str, str]) -> None:
    """Raises UsageError when CUDA_VISIBLE_DEVICES names a GPU that is not there."""
    if not environ.get("CUDA_VISIBLE_DEVICES"):
        return
    import pynvml

    from hpclaunch.system import gpus

    if wrong := gpus.not_there(environ, pynvml):
        raise UsageError(wrong)


def _ask_torch(python: str, device: str) -> int:
    """In a process of its own: torch is not for the agent."""
    code = f"import torch; print(torch.{device}.device_count())"
    try:
        answer = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=ASK_LIMIT, check=True
        )
        return int(answer.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
