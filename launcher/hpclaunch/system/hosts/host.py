"""The state of this host before a round: disks, shared memory, memory, load, clock.

Reading it is quick and writes nothing, since every restart waits for it. A value that cannot be
read is None: some containers hide most of /proc. `core/health/host_rules.py` judges the values.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from hpclaunch.core.health.host_rules import Disk, Host
from hpclaunch.system.shared.memory_groups import memory_groups

SHM = Path("/dev/shm")  # noqa: S108 - it is what is checked
MEMORY = Path("/proc/meminfo")  # psutil would take as long to import as half of the agent
LOAD = Path("/proc/loadavg")
UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def read(workers: int, *, logs: Disk | None, first: bool, several: bool) -> Host:
    """Read the state of this host. `logs` is the disk of the log directory, which another process
    has read, since that can take long. `first`: no worker has run yet. `several`: there are other
    hosts, whose clocks matter.
    """
    available, limit = _available(), memory_limit()
    return Host(
        workers,
        logs=logs,
        shm=_shm(),
        memory=min((m for m in (available, limit) if m is not None), default=None),
        load=load() if first else None,
        cpus=os.cpu_count() or 1,
        synchronised=clock_is_synchronised() if several else None,
    )


def load() -> float | None:
    """Return the load average of the last minute, or the number of runnable threads if lower.

    A job script that unpacks its data with every core leaves a high average behind.
    """
    try:
        average, _, _, running, _ = LOAD.read_text().split()  # proc(5)
    except OSError:
        return None
    return min(float(average), float(running.partition("/")[0]))


def _available() -> int | None:
    """Return the bytes of memory that are available."""
    with suppress(OSError), MEMORY.open() as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _shm() -> int | None:
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def clock_is_synchronised() -> bool | None:
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # modes 0: changes nothing
    return None if state < 0 else state != UNSYNCHRONISED


def memory_limit() -> int | None:
    """Return the lowest memory limit of this process's control groups; None if there is none."""
    return min((group.limit for group in memory_groups()), default=None)
