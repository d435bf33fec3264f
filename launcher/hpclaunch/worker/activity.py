"""A watch for workers that were asked to stop and no longer do anything.

A worker that saves a checkpoint must be left alone, however it saves: through write(), mmap(),
io_uring, libaio or a socket. So a worker counts as idle only if all of this is true, for all of its
processes, since the last look:

- No process has started or ended.
- They have used next to no CPU time, moved next to no bytes, and touched next to no new memory.
- Every thread sleeps in a system call that only waits, such as futex() or poll(). (Where Yama's
  ptrace_scope is 1, /proc shows the call only to a parent and to root.)
- No TCP connection has data that the other side has not acknowledged yet, or a request that has
  been sent since the workers were asked to stop and has not been answered.

Whatever cannot be found out counts as activity. A rank that waits for another one in a collective
of gloo sleeps, and so is idle. In NCCL it usually spins, and cannot be distinguished from one that
computes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from .processes import MACHINE, PARENT, SESSION, STATE, TICKS, all_pids, io_of, read_proc, stat
from .sock_diag import Connection, sockets_of, tcp_connections

CPU = 0.05  # seconds; gloo wakes a hundred times a second, which takes a quarter of this in 5 s
BYTES = 1 << 16
FAULTS = 16  # pages of memory; one fault may map several
LOOKS = 5  # at a thread that runs
# Further fields of /proc/PID/stat; each slice includes the counts of children that have ended.
PAGE_FAULTS, CPU_TIMES = slice(7, 11), slice(11, 15)
THREADS = 17

# The numbers of system calls: poll, select, nanosleep, pause, accept, recv, wait, sigtimedwait,
# sigsuspend, restart_syscall, futex, epoll_wait and their variants. read and readv only wait if
# they do not read from a file.
WAITING = {
    "x86_64": {
        7, 23, 34, 35, 43, 45, 47, 61, 128, 130, 202, 219, 230, 232, 247, 270, 271, 281, 288, 299,
        441, 449, 455,
    },
    "aarch64": {
        22, 72, 73, 95, 98, 101, 115, 128, 133, 137, 202, 207, 212, 242, 243, 260, 441, 449, 455,
    },
}.get(MACHINE, set())  # fmt: skip
READING = {"x86_64": {0, 19}, "aarch64": {63, 65}}.get(MACHINE, set())
WITHOUT_DISK = (b"pipe:[", b"socket:[", b"anon_inode:", b"/dev/pts/", b"/dev/tty", b"/dev/null")


class Usage(NamedTuple):
    """The use of resources by a process so far."""

    cpu: float  # seconds
    bytes: int
    faults: int


Usages: TypeAlias = dict[int, Usage | None]  # by pid; None: it may not be seen
Stats: TypeAlias = Mapping[int, list[bytes]]  # the fields of /proc/PID/stat


class Activity:
    """The activity of a fork server's workers, each of which leads its session."""

    def __init__(self) -> None:
        self._stopped = 0.0  # when they were asked to stop
        self._usage: dict[int, Usages] = {}  # by worker
        self._connections: dict[int, Connection] | None = {}

    def begin(self, workers: Iterable[int], others: Container[int]) -> None:
        """Begin when the workers are asked to stop. `others` are the fork server's own children."""
        self._stopped = time.monotonic()
        self._usage = _usage(workers, others)
        self._connections = tcp_connections()

    def idle(self, workers: Iterable[int], others: Container[int]) -> list[int]:
        """Return the workers that have done nothing since `begin` or the last call."""
        usage, before = _usage(workers, others), self._usage
        candidates = [w for w in workers if _rested(before.get(w, {}), usage[w])]
        connections = tcp_connections()
        waited = 1000 * (time.monotonic() - self._stopped)
        found = []
        for worker in candidates:
            try:
                if all(
                    _sleeps(pid) and self._no_traffic(pid, connections, waited)
                    for pid in usage[worker]
                ):
                    found.append(worker)
            except (OSError, ValueError, IndexError):
                pass  # a process or thread of it has just ended, or may not be read
        self._usage, self._connections = usage, connections
        return found

    def _no_traffic(
        self, pid: int, connections: dict[int, Connection] | None, waited: float
    ) -> bool:
        if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
            return False
        sockets = sockets_of(pid)
        if connections is None or self._connections is None:
            return not sockets
        moved = 0
        for inode in sockets:
            now = connections.get(inode)
            if now is None:
                continue  # not TCP
            asks = now.sent < waited and now.sent <= now.received
            if now.unacknowledged or asks:
                return False
            before = self._connections.get(inode)
            moved += now.bytes - (before.bytes if before else 0)
        return moved < BYTES


def _rested(before: Usages, now: Usages) -> bool:
    if before.keys() != now.keys() or not now:
        return False
    for pid, usage in now.items():
        then = before[pid]
        if usage is None or then is None:
            return False
        least = (CPU, BYTES, FAULTS)
        if any(b - a >= limit for a, b, limit in zip(then, usage, least, strict=True)):
            return False
    return True


def _usage(workers: Iterable[int], others: Container[int]) -> dict[int, Usages]:
    """Return {worker: {pid: Usage, None if it may not be read}} of the processes of each worker.

    These are the processes of its session, their descendants, and every process that has lost its
    parent, because that may belong to any worker.
    """
    found: dict[int, Usages] = {worker: {} for worker in workers}
    stats = {pid: stat(pid) for pid in all_pids()} if found else {}
    for pid, fields in stats.items():
        if not fields or (fields[STATE] == b"Z" and int(fields[THREADS]) == 1):
            continue  # it has ended
        owners = _owners(pid, stats, found.keys(), others)
        usage = _usage_of(pid, fields) if owners else None
        for worker in owners:
            found[worker][pid] = usage
    return found


def _owners(pid: int, stats: Stats, workers: Collection[int], others: Container[int]) -> list[int]:
    while stats.get(pid):
        session, parent = int(stats[pid][SESSION]), int(stats[pid][PARENT])
        if session in workers:
            return [session]
        if parent == os.getpid():
            return [] if pid in others else list(workers)
        pid = parent
    return []


def _usage_of(pid: int, fields: list[bytes]) -> Usage | None:
    counts = io_of(pid)
    if not counts:
        return None
    names = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
    cpu = sum(map(int, fields[CPU_TIMES])) / TICKS
    moved = sum(counts[name] for name in names)
    return Usage(cpu, moved, sum(map(int, fields[PAGE_FAULTS])))


def _sleeps(pid: int) -> bool:
    return all(_waits(pid, thread) for thread in os.listdir(f"/proc/{pid}/task"))


def _waits(pid: int, thread: str) -> bool:
    """Return whether a thread waits for something that is not a file. A thread that runs is looked
    at again: it may have been woken for a moment, or get no CPU time on a busy machine."""
    for _ in range(LOOKS):
        state = stat(f"{pid}/task/{thread}")[STATE]
        if state in (b"Z", b"X"):
            return True
        call, *arguments = read_proc(f"{pid}/task/{thread}/syscall").split()
        if state == b"R" or call == b"running":
            time.sleep(0.01)
            continue
        if int(call) in READING:
            file = os.readlink(f"/proc/{pid}/fd/{int(arguments[0], 16)}".encode())
            return state == b"S" and file.startswith(WITHOUT_DISK)
        return state == b"S" and int(call) in WAITING
    return False
