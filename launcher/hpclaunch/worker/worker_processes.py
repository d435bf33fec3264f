"""The activity of a worker's processes, as /proc shows it."""

from __future__ import annotations

import os
from typing import NamedTuple, TypeAlias

from .fork_server_messages import Described
from .processes import (
    CPU_TIMES,
    MACHINE,
    STATE,
    TICKS,
    VIRTUAL_MEMORY,
    io_of,
    queued,
    read_proc,
    stat,
    status_of,
    threads_of,
)

MOST_PROCESSES = 32  # of one worker
SAMPLER = b"py-spy"

# The numbers of system calls that write to a file, or wait until it is written: write, pwrite,
# writev, pwritev, sendfile, copy_file_range, fallocate, ftruncate, fsync, fdatasync, syncfs,
# sync_file_range, close.
WRITING = {
    "x86_64": {1, 3, 18, 20, 40, 74, 75, 77, 277, 285, 296, 306, 326, 328},
    "aarch64": {46, 47, 57, 64, 66, 68, 70, 71, 82, 83, 84, 267, 285, 287},
}.get(MACHINE, set())
# The same without a descriptor as the first argument: rename, renameat2, sync, msync.
RENAMING = {"x86_64": {26, 82, 162, 264, 316}, "aarch64": {38, 81, 227, 276}}.get(MACHINE, set())


class Work(NamedTuple):
    """The work of a process so far."""

    read: int  # bytes
    written: int
    cpu: float  # seconds
    queued: float  # seconds for which its main thread could have run, but had no CPU


Works: TypeAlias = dict[int, Work]  # by pid, of a worker and its descendants


def tree(pid: int) -> list[int]:
    """Return the pids of a worker's process and its descendants."""
    found = [pid]
    for process in found:
        for thread in threads_of(process):  # nothing without CONFIG_PROC_CHILDREN in the kernel
            found += map(int, read_proc(f"{process}/task/{thread}/children").split())
        if len(found) >= MOST_PROCESSES:
            break
    return found[:MOST_PROCESSES]


def work_of(pid: int) -> Works:
    """Return what a worker's process and its descendants have done."""
    found = {}
    for process in tree(pid):
        fields = stat(process)
        if not fields:
            continue
        counts = io_of(process)
        read, written = counts.get(b"rchar", 0), counts.get(b"wchar", 0)
        cpu = sum(map(int, fields[CPU_TIMES])) / TICKS
        found[process] = Work(read, written, cpu, queued(process) or 0.0)
    return found


def wanted(work: Works) -> float:
    """Return the CPU time that processes have used or waited for, in seconds: on an overloaded
    machine, a worker that is busy may get little of it."""
    return sum(each.cpu + each.queued for each in work.values())


def is_traced(pid: int) -> bool:
    """Return whether a debugger traces a process. py-spy, which the agent may start, does so only
    for moments, and does not count."""
    tracer = int(status_of(pid).get(b"TracerPid", b"0"))
    return bool(tracer) and status_of(tracer).get(b"Name") != SAMPLER


def is_exiting(pid: int) -> bool:
    """Return whether the kernel takes a process down, which no signal would speed up."""
    fields = stat(pid)
    return bool(fields) and fields[VIRTUAL_MEMORY] == b"0"


def saves(pid: int) -> bool:
    """Return whether a thread of a process writes to a file, or waits until it is written."""
    return any(_writes(pid, thread) for thread in threads_of(pid))


def _writes(pid: int, thread: str) -> bool:
    try:
        call, *arguments = read_proc(f"{pid}/task/{thread}/syscall").split()
        if call == b"running":
            return False
        if int(call) in WRITING:
            file = os.readlink(f"/proc/{pid}/fd/{int(arguments[0], 16)}".encode())
            return file.startswith(b"/") and not file.startswith(b"/dev/")
        return int(call) in RENAMING
    except (OSError, ValueError, IndexError):
        return False  # it has just ended, or may not be seen


def described(pid: int) -> Described:
    status, fields = status_of(pid), stat(pid)
    return {
        "pid": pid,
        "name": status.get(b"Name", b"?").decode(errors="replace"),
        "state": fields[STATE].decode() if fields else "gone",
        "wchan": read_proc(f"{pid}/wchan").decode(errors="replace"),
        "threads": int(status.get(b"Threads", b"0")),
    }
