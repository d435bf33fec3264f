"""Whether a host is fit for training, its GPUs apart: readings in, findings out.

FAIL only for what would surely break the training. An ordinary machine or container without
anything special passes in silence, so that a warning is worth reading; the doctor tells more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..protocol.wording import GIB, size
from .findings import Finding, Grade

MIB = 1 << 20
LOGS_FULL = 16 * MIB  # the workers' files and the journal: below this, lines are lost at once
DISK_LEAST = GIB  # a checkpoint of a model of 100 million parameters, with Adam's moments
FILES_LEAST = 16  # inodes: a round makes a directory, and two files per worker
SHM_LEAST = 32 * MIB  # free; an empty /dev/shm of a container has 64 MiB
MEMORY_LEAST = 256 * MIB  # per worker: `import torch` alone takes 225 MB
FILES_OF_AGENT = 48  # open at once: up to 30, and a few more for a moment
LOAD_MOST = 2  # per CPU: with more, a worker gets less than half of its CPUs
LOAD_SPARE = 8  # and this many more on small machines, where a few processes are soon gone


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a directory, or of where it would be made."""

    path: str
    free: int = 0  # bytes that this user may take
    files: int | None = None  # inodes likewise; None where the file system does not count them
    writable: bool = True
    error: str = ""  # why it cannot be looked at


@dataclass(frozen=True, slots=True)
class Host:
    """One look at a host. None: not looked at, or nobody tells."""

    workers: int  # that this agent is about to start
    logs: Disk | None = None
    shm: int | None = None  # bytes free in /dev/shm
    memory: int | None = None  # bytes available to this job
    load: float | None = None  # processes that want a CPU, before the first round only
    cpus: int = 1  # of the whole host
    synchronised: bool | None = None  # its clock; of interest where there are several hosts


def files_needed(agents: int, workers: int) -> int:
    """Open files of one agent: any of the others may come to report to it, and it follows two files
    of each of its workers."""
    return FILES_OF_AGENT + agents + 2 * workers


def judge_host(now: Host) -> list[Finding]:
    return [*_logs(now.logs), *_memory(now), *_rest(now)]


def _logs(disk: Disk | None) -> Iterable[Finding]:
    if disk is None:
        return
    advice = "make room, or give --log-dir"
    if disk.error or not disk.writable:
        found = disk.error or "is not writable"
        yield Finding("log directory", f"{disk.path}: {found}", Grade.FAIL, advice)
    elif disk.free < LOGS_FULL:
        found = f"{disk.path} has {size(disk.free)} left"
        yield Finding("log directory", found, Grade.FAIL, advice)
    elif disk.files is not None and disk.files < FILES_LEAST:
        found = f"{disk.path} has room for {disk.files} more files"
        yield Finding("log directory", found, Grade.FAIL, advice)
    elif disk.free < DISK_LEAST:
        found = f"{disk.path} has {size(disk.free)} left"
        yield Finding("log directory", found, Grade.WARN, advice)


def judge_checkpoints(disk: Disk) -> list[Finding]:
    """Never FAIL: whether and how much the script saves is not known here."""
    advice = "make room, or give --checkpoint-dir: the script may fail when it saves"
    if disk.error or not disk.writable:
        found = disk.error or "is not writable"
    elif disk.free < DISK_LEAST:
        found = f"{size(disk.free)} left"
    elif disk.files is not None and disk.files < FILES_LEAST:
        found = f"room for {disk.files} more files"
    else:
        return []
    return [Finding("checkpoint directory", f"{disk.path}: {found}", Grade.WARN, advice)]


def _memory(now: Host) -> Iterable[Finding]:
    if now.shm is not None and now.shm < SHM_LEAST:
        found = f"{size(now.shm)} left, through which the DataLoader's workers pass batches"
        advice = "look for what a job has left there (ls -l /dev/shm); a container needs --shm-size"
        yield Finding("shared memory", found, Grade.WARN, advice)
    if now.memory is not None and now.memory < now.workers * MEMORY_LEAST:
        found = f"{size(now.memory)} available for {now.workers} workers"
        yield Finding("memory", found, Grade.WARN, "#SBATCH --mem=...; --mem=0 is all of a node")


def _rest(now: Host) -> Iterable[Finding]:
    if now.load is not None and now.load > LOAD_MOST * now.cpus + LOAD_SPARE:
        found = f"{now.load:.0f} on {now.cpus} CPUs, before the training has begun"
        advice = "somebody else computes on this host, and every step waits for the slowest: top"
        yield Finding("load", found, Grade.WARN, advice)
    # No training suffers from it, and nothing here compares clocks: a note for whoever compares
    # the logs of several hosts. The doctor measures how far they are apart.
    if now.synchronised is False:
        yield Finding("clock", "not synchronised")
