"""The doctor's checks of GPUs: which there are, their health, MPS, and the workers' CPUs.

All checks use one list of the GPUs. If the driver hangs, for example since a GPU has fallen off the
bus, the doctor reports that.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Mapping

from hpclaunch.core.health.findings import GPUS, Finding, Grade, Problem
from hpclaunch.core.placement import binding
from hpclaunch.core.placement.mps_shares import Settings, plan
from hpclaunch.core.protocol.model import Allocation, Share, Shares
from hpclaunch.core.protocol.node_facts import LaunchNote, LaunchNoteKind
from hpclaunch.observe.node_console import words_of_launch, words_of_mps
from hpclaunch.system.gpus import mps
from hpclaunch.system.gpus.gpu_watcher_client import GpuWatcherClient
from hpclaunch.system.gpus.inventory import GpuSurvey
from hpclaunch.system.hosts.checks_torch import Torch
from hpclaunch.system.processes import affinity

from .worker_count import ROCM


def there(torch: Torch | None, environ: Mapping[str, str], seen: GpuSurvey) -> Finding:
    check, visible = GPUS, len(seen.gpus)
    if seen.wrong:
        return Finding(check, seen.wrong, Grade.FAIL)
    granted = environ.get("SLURM_GPUS_ON_NODE", "0").removeprefix("0")
    if seen.broken:
        grade = Grade.FAIL if granted or visible else Grade.WARN
        found = "; ".join(filter(None, [seen.models, seen.broken]))
        return Problem.GPU_SILENT.finding(found, grade)
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    chosen = "" if chosen is None else f"CUDA_VISIBLE_DEVICES={chosen}"
    amd = not visible and ROCM.exists()
    driver = "AMD's driver" if amd else seen.models or "no NVIDIA driver"
    found = "; ".join(filter(None, [driver, chosen]))
    if not visible and not amd and granted:
        advice = "start a container with --nv, and leave CUDA_VISIBLE_DEVICES as Slurm sets it"
        found += f", but Slurm has given {granted}"
        return Finding(check, found, Grade.WARN, advice)
    # A process can use only one MIG instance.
    usable = 1 if any(gpu.mig for gpu in seen.gpus) else visible
    if torch is not None and torch.gpus < usable:
        return Finding(check, f"{found}; torch can use {torch.gpus}", Grade.FAIL, _why_not(torch))
    return Finding(check, found)


def _why_not(torch: Torch) -> str:
    if not torch.cuda:
        return "install a torch with CUDA: this one is a build for CPUs only"
    return f"the driver may be too old for CUDA {torch.cuda}: install a torch for an older CUDA"


def health(seen: GpuSurvey) -> list[Finding]:
    """Check the GPUs as a launch does before its first round."""
    if not seen.gpus:
        return []
    watcher = GpuWatcherClient(seen.gpus)
    watcher.check(0)
    found: list[Finding] = []
    while (deadline := watcher.next_deadline()) < math.inf:  # the check is not answered yet
        if select.select([watcher], [], [], max(0.0, deadline - time.monotonic()))[0]:
            reports = list(watcher.reports())
        else:
            reports = [watcher.expire()]
        found += [finding for report in reports for finding in report.findings]
    watcher.close()
    nothing = Finding("GPU health", "nothing is wrong with " + ", ".join(g.name for g in seen.gpus))
    return found or [nothing]


def sharing(environ: Mapping[str, str], seen: GpuSurvey, host: str) -> list[Finding]:
    """Return how workers would share GPUs if there were more workers than GPUs."""
    if not seen.gpus:
        return []
    check, count = "MPS", len(seen.gpus)
    found = mps.find(environ)
    two_on_each = Shares(tuple(Share((k,), sharers=2) for k in range(count)), isolated=True)
    planned = plan(Settings(), two_on_each, seen.gpus, found, host=host)
    if planned.error:
        unusable = any(gpu.mode == "prohibited" for gpu in seen.gpus)
        return [Finding(check, planned.error, Grade.FAIL if unusable else Grade.WARN)]
    notes = [words_of_mps(note) for note in planned.notes]
    if not planned.groups:
        return [Finding(check, "; ".join(notes))]
    alone = [f"{gpu.name} needs it for more than one" for gpu in seen.gpus if gpu.mode != "default"]
    return [Finding(check, "; ".join([found.control, *alone, *notes]))]


def cpus_of_workers(where: Allocation, seen: GpuSurvey) -> list[Finding]:
    """Return how a launch without options would bind its workers. Without a GPU, return nothing.

    Where a host has several tasks, each reports only its own CPUs.
    """
    if not seen.gpus:
        return []
    cpus = affinity.available()
    topology = affinity.topology(cpus)
    alone = where.tasks_here == 1
    each = [[gpu] for gpu in seen.gpus] if alone else [list(seen.gpus)]
    localities = [binding.locality(group) for group in each]
    mode = binding.Mode.AUTO if alone else binding.Mode.NONE
    bindings = binding.bind(mode, cpus, topology, localities)
    lines = [binding.placed(b, s) for b, s in zip(bindings, localities, strict=True)]
    far = binding.remarks(bindings, localities, cpus)
    cores = binding.threads(bindings, topology)
    note = LaunchNote("", LaunchNoteKind.CORES, {"cores": cores})
    few = words_of_launch(note) if cores < binding.FEW_CORES else ""
    grade = Grade.WARN if far or few else Grade.OK
    advice = "; ".join(filter(None, [binding.NEARER if far else "", few]))
    return [Finding("binding", "; ".join([*lines, *far]), grade, advice)]
