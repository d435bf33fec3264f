"""Health rules for a host apart from its GPUs: they judge readings, and return findings.

FAIL means that the training would certainly break. An ordinary machine or container has no
findings, so that each warning is worth reading. `hpclaunch doctor` reports more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..protocol.wording import GIB, count, size
from .findings import Finding, Grade, Problem

MIB = 1 << 20
DISK_LEAST = GIB  # a checkpoint of a model with 100 million parameters and Adam's moments
FILES_LEAST = 16  # inodes: each round makes a directory, and two files per worker
SHM_LEAST = 32 * MIB  # free; an empty /dev/shm of a container has 64 MiB
MEMORY_LEAST = 256 * MIB  # per worker: `import torch` alone takes 225 MB
FILES_OF_AGENT = 48  # open files of an agent itself: up to 30, and a few more at times
LOAD_MOST = 2  # per CPU: with more, a worker gets less than half of its CPUs
LOAD_SPARE = 8  # added for small machines, where a few short-lived processes are a high load


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a directory, which need not exist yet."""

    path: str
    free: int = 0  # bytes that this user may still use
    files: int | None = None  # free inodes; None if the file system does not count them
    writable: bool = True
    error: str = ""  # why it cannot be read; "" if it can
    silent: bool = False  # the file system has not answered in time


@dataclass(frozen=True, slots=True)
class Host:
    """One reading of a host. None stands for a value that is not known."""

    workers: int  # the number that agents are about to start
    logs: Disk | None = None
    shm: int | None = None  # bytes free in /dev/shm
    memory: int | None = None  # bytes available to this job
    load: float | None = None  # processes that need a CPU; read before the first round only
    cpus: int = 1  # of the whole host
    synchronised: bool | None = None  # whether its clock is; read only if there are several hosts


def files_needed(agents: int, workers: int) -> int:
    """Return how many files one agent may have open. The head has a connection to each other agent,
    and every agent two files for each of its workers.
    """
    return FILES_OF_AGENT + agents + 2 * workers


def judge_host(now: Host) -> list[Finding]:
    """Judge one reading of a host."""
    return [*_logs(now.logs), *_memory(now), *_rest(now)]


def _logs(disk: Disk | None) -> Iterable[Finding]:
    if disk is None:
        return
    if disk.silent:  # this may pass
        yield Problem.LOGS_SILENT.finding(f"{disk.path}: its file system does not answer")
    elif disk.error or not disk.writable:
        found = f"{disk.path}: {disk.error or 'is not writable'}"
        yield Problem.LOGS_NOT_WRITABLE.finding(found, Grade.FAIL)
    elif disk.files is not None and disk.files < FILES_LEAST:
        yield Problem.LOGS_FULL.finding(
            f"{disk.path} has room for {count(disk.files, 'more file')}"
        )
    elif disk.free < DISK_LEAST:
        yield Problem.LOGS_FULL.finding(f"{disk.path} has {size(disk.free)} left")


def judge_checkpoints(disk: Disk) -> list[Finding]:
    """Judge the file system for checkpoints. Never FAIL: the size of a checkpoint is not known."""
    if disk.error or not disk.writable:
        found = disk.error or "is not writable"
    elif disk.free < DISK_LEAST:
        found = f"{size(disk.free)} left"
    elif disk.files is not None and disk.files < FILES_LEAST:
        found = f"room for {count(disk.files, 'more file')}"
    else:
        return []
    return [Problem.CHECKPOINTS_FULL.finding(f"{disk.path}: {found}")]


def _memory(now: Host) -> Iterable[Finding]:
    if now.shm is not None and now.shm < SHM_LEAST:
        found = f"{size(now.shm)} left, through which the DataLoader's workers pass batches"
        yield Problem.SHM_FULL.finding(found)
    if now.memory is not None and now.memory < now.workers * MEMORY_LEAST:
        found = f"{size(now.memory)} available for {count(now.workers, 'worker')}"
        yield Problem.MEMORY_SHORT.finding(found)


def _rest(now: Host) -> Iterable[Finding]:
    if now.load is not None and now.load > LOAD_MOST * now.cpus + LOAD_SPARE:
        found = f"{now.load:.0f} on {count(now.cpus, 'CPU')}, before the training has begun"
        yield Problem.LOADED.finding(found)
    # A note for people who compare the logs of several hosts. The doctor measures the difference.
    if now.synchronised is False:
        yield Problem.CLOCK_FREE.finding("not synchronised", Grade.OK)
