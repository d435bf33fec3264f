"""The doctor's checks of one host: names, clock, memory, CPUs, limits, interfaces, files.

Each function checks one thing, changes nothing, and says what to do if something is wrong.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from hpclaunch.core.health.findings import CLOCK, LOGS, MEMORY, SHM, Finding, Grade, Problem
from hpclaunch.core.health.host_rules import files_needed
from hpclaunch.core.protocol.wording import GIB, size
from hpclaunch.system.shared import disk

SHM_PATH = Path("/dev/shm")  # noqa: S108 - it is what is checked
SHM_LEAST = GIB  # a container's default is 64 MiB
MEMORY_LEAST = 2 * GIB  # per worker
DISK_LEAST = GIB
FILES_LEAST = 1024
RDMA = Path("/sys/class/infiniband")
_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,
}
_IN_BYTES = ("locked memory", "core")


def own_name(host: str, *, several: bool) -> Finding:
    """Check the addresses of the host's name, which programs take for their own."""
    check = "host name"
    advice = "fix /etc/hosts on this host, or the name service"
    try:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return Finding(check, f"{host} resolves to nothing here", Grade.WARN, advice)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    said = f"{host}, {', '.join(addresses)}"
    ours = {a.address for entries in psutil.net_if_addrs().values() for a in entries}
    loopback = [a.startswith("127.") or a == "::1" for a in addresses]
    if all(loopback):
        if not several:
            return Finding(check, said)
        return Finding(check, f"{said}: loopback, no address for others", Grade.WARN, advice)
    if not any(a in ours for a, near in zip(addresses, loopback, strict=True) if not near):
        return Finding(check, f"{said}: not an address of this host", Grade.WARN, advice)
    return Finding(check, said)


def interfaces(environ: Mapping[str, str]) -> list[Finding]:
    """Check the interfaces that the user has chosen for gloo and NCCL."""
    there = psutil.net_if_addrs()
    findings = []
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if not (value := environ.get(name)):
            continue
        matches = _gloo(value, there) if name.startswith("GLOO") else _nccl(value, there)
        if matches:
            findings.append(Finding("interfaces", f"{name}={value}"))
            continue
        advice = f"unset {name} in the job script, or name one of {', '.join(sorted(there))}"
        findings.append(
            Finding("interfaces", f"{name}={value} names none of this host", Grade.FAIL, advice)
        )
    return findings


def _gloo(value: str, there: Mapping[str, Any]) -> bool:
    return all(name in there for name in value.split(","))


def _nccl(value: str, there: Mapping[str, Any]) -> bool:
    """Return whether NCCL would find an interface. The value has prefixes of names; `=` in front
    means whole names, `^` all but these. NCCL ignores empty names, and in each what follows `:`.
    """
    chosen = value.removeprefix("^")
    names = [name.partition(":")[0] for name in chosen.removeprefix("=").split(",")]
    names = [name for name in names if name]
    whole = chosen.startswith("=")
    hit = [n for n in there if (n in names if whole else n.startswith(tuple(names)))]
    return len(hit) < len(there) if value.startswith("^") else bool(hit or not names)


def clock(synchronised: bool | None) -> Finding:
    """Check the clock: `synchronised` is what the kernel reports, None if it does not."""
    if synchronised is None:
        return Finding(CLOCK, "the kernel does not report whether it is synchronised")
    if not synchronised:
        return Problem.CLOCK_FREE.finding("not synchronised")
    return Finding(CLOCK, "synchronised")


def shared_memory() -> Finding:
    """Check the memory through which the DataLoader's workers pass their batches."""
    try:
        usage = shutil.disk_usage(SHM_PATH)
    except OSError as e:
        return Problem.SHM_SMALL.finding(f"{SHM_PATH}: {e.strerror}")
    found = f"{size(usage.free)} free of {size(usage.total)} in {SHM_PATH}"
    if not os.access(SHM_PATH, os.W_OK | os.X_OK):
        return Problem.SHM_SMALL.finding(f"{found}, but not writable")
    if usage.total < SHM_LEAST:
        return Problem.SHM_SMALL.finding(found)
    if usage.free < SHM_LEAST:
        return Problem.SHM_FULL.finding(found)
    return Finding(SHM, found)


def limits(agents: int, workers: int) -> Finding:
    """Check the limits for a launcher that starts `workers` in a job of so many `agents`."""
    found, wrong, advice, grade = [], [], [], Grade.OK
    for name, number in _LIMITS.items():
        soft = resource.getrlimit(number)[0]
        say = size if name in _IN_BYTES else str
        found.append(f"{name} {'unlimited' if soft == resource.RLIM_INFINITY else say(soft)}")
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(agents, workers)  # the launcher raises its limit to this, if allowed
    if 0 <= most < needed:
        wrong.append(f"too few open files: a launcher needs {needed}, and the hard limit is {most}")
        advice.append(f"ulimit -Hn {needed}; or ask for LimitNOFILE={needed} of slurmd")
        grade = Grade.FAIL
    elif 0 <= files < FILES_LEAST:
        wrong.append("few open files for a worker and its data")
        can = "" if 0 <= most < FILES_LEAST else " (the hard limit allows it)"
        advice.append(f"ulimit -n {FILES_LEAST}{can}")
        grade = Grade.WARN
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY and RDMA.is_dir() and any(RDMA.iterdir()):
        wrong.append("InfiniBand needs unlimited locked memory")
        advice.append("ulimit -l unlimited; or ask for LimitMEMLOCK=infinity of slurmd")
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        wrong.append("address space limited, but CUDA reserves a lot of it")
        advice.append("ulimit -v unlimited")
    if resource.getrlimit(resource.RLIMIT_CPU)[0] != resource.RLIM_INFINITY:
        wrong.append("CPU time limited")
        advice.append("start the training in a job, not on a login node")
    if wrong and grade is Grade.OK:
        grade = Grade.WARN
    return Finding("limits", "; ".join([", ".join(found), *wrong]), grade, "; ".join(advice))


def cpus(workers: int) -> Finding:
    """Check the CPUs of this task for its workers (one per GPU)."""
    mine, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{mine} of this host's {all_of_them}"
    advice = "#SBATCH --cpus-per-task=N, and from Slurm 22.05 to 23.02 srun --cpus-per-task=N too"
    if mine < workers:
        found += f", for {workers} workers"
        return Finding("CPUs", found, Grade.WARN, advice)
    if mine == 1 and all_of_them > 1:
        found += ": the DataLoader's workers share it with the training"
        return Finding("CPUs", found, Grade.WARN, advice)
    return Finding("CPUs", found)


def memory(workers: int, limit: int | None) -> Finding:
    """Check the memory for the workers. `limit` is the job's memory limit, if it has one."""
    try:
        machine = psutil.virtual_memory()
    except OSError:
        return Finding(MEMORY, "/proc/meminfo cannot be read here")
    found = f"{size(machine.available)} available of {size(machine.total)}"
    mine = machine.available
    if limit is not None and limit < machine.total:
        found += f", {size(limit)} for this job"
        mine = min(mine, limit)
    if mine < workers * MEMORY_LEAST:
        return Problem.MEMORY_SHORT.finding(found)
    return Finding(MEMORY, found)


def log_directory(path: Path) -> Finding:
    """Check whether logs can be written, with a temporary file."""
    directory = path.absolute()
    try:
        directory = disk.nearest(path)
        with tempfile.TemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as e:
        found = f"cannot write to {directory}: {e.strerror}"
        return Problem.LOGS_NOT_WRITABLE.finding(found, Grade.FAIL)
    found = f"{directory} is writable, {size(free)} free, on {file_system(directory)}"
    if free < DISK_LEAST:
        return Problem.LOGS_FULL.finding(found)
    return Finding(LOGS, found)


def file_system(path: Path) -> str:
    """Return the kind of file system that holds a path: nfs4, lustre, ext4, ..."""
    real = os.path.realpath(path)
    kind, longest = "an unknown file system", -1
    for mount in psutil.disk_partitions(all=True):
        point = mount.mountpoint.rstrip("/")
        if (real == point or real.startswith(f"{point}/")) and len(point) >= longest:
            kind, longest = mount.fstype, len(point)
    return kind
