"""One look at this host before a round: disks, shared memory, memory, load, clock.

Quick, and without writing anything: it comes before every restart. What it means is `core/host.py`.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import psutil

from hpclaunch.core.host import Disk, Host

SHM = Path("/dev/shm")  # noqa: S108 - the very thing that is looked at
UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def read(
    workers: int,
    *,
    logs: Path | None,
    checkpoints: Path | None,
    limit: int | None = None,
    first: bool,
    several: bool,
) -> Host:
    """`limit` is that of the job's memory (a control group's); `first`, nothing of ours runs yet;
    `several` hosts compare their clocks.
    """
    available = int(psutil.virtual_memory().available)
    return Host(
        workers,
        logs=None if logs is None else disk(logs),
        checkpoints=None if checkpoints is None else disk(checkpoints),
        shm=_shm(),
        memory=available if limit is None else min(available, limit),
        load=os.getloadavg()[0] if first else None,
        cpus=os.cpu_count() or 1,
        synchronised=_synchronised() if several else None,
    )


def disk(path: Path) -> Disk:
    """A directory yet to come is made in the nearest one above it."""
    directory = path.absolute()
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    try:
        found = os.statvfs(directory)
    except OSError as e:
        return Disk(str(path), error=e.strerror or str(e))
    return Disk(
        str(path),
        free=found.f_bavail * found.f_frsize,
        files=found.f_favail if found.f_files else None,
        writable=os.access(directory, os.W_OK | os.X_OK),
    )


def _shm() -> int | None:
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _synchronised() -> bool | None:
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # modes 0: only asks
    return None if state < 0 else state != UNSYNCHRONISED
