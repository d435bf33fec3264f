"""The bytes that checkpoints may still take in the staging directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hpclaunch.core.protocol.wording import size as written
from hpclaunch.system.shared.memory_groups import memory_groups

MEMORY = Path("/proc/meminfo")
MOUNTS = Path("/proc/self/mountinfo")
RESERVE = 1.1  # times the bytes that are needed
AT_LEAST = 1 << 30  # bytes, for checkpoints of an unknown size
FULL = 100  # full: less than a hundredth is free
KEPT_FREE = 512 << 20  # bytes of memory; a 25th of it if that is less


class Room(NamedTuple):
    """The free bytes of a directory."""

    free: int
    limit: int  # what there would be if nothing were in use
    what: str  # what limits it, for the user
    kept: int = 0  # of `free`: the guard (`guard.py`) ends a save that takes more than half of them

    def lack(self, size: int, generations: int) -> str:
        """Return why so many checkpoints of this size do not fit; "" if they do."""
        if (needed := int(size * generations * RESERVE) + self.kept) <= self.free:
            return ""
        several = f"{generations} checkpoints" if generations > 1 else "another checkpoint"
        return (
            f"{several} of {written(size)} and a reserve need {written(needed)}, but "
            f"{self.what} has {written(self.free)} free"
        )

    def lack_of_any(self) -> str:
        """Return why checkpoints of an unknown size are not likely to fit; "" if they are."""
        needed = min(AT_LEAST, self.limit // 10)
        if needed <= self.free:
            return ""
        return f"{self.what} has only {written(self.free)} of {written(self.limit)} free"

    def full(self) -> str:
        """Return that almost nothing is free, after which saves fail; "" if there is more."""
        if self.free >= self.limit // FULL:
            return ""
        return f"{self.what} was full when a worker failed"


def room(directory: str) -> Room:
    """Return the least of what limits the directory. Raises OSError. On a disk, that is its free
    space. In memory (tmpfs), each byte also counts as memory of this job.
    """
    found = os.statvfs(directory)
    block = found.f_frsize
    rooms = [Room(found.f_bavail * block, found.f_blocks * block, f"the disk of {directory}")]
    if is_in_memory(directory):
        rooms[0] = rooms[0]._replace(what="the file system in memory (tmpfs)")
        rooms += memory_rooms()
    return least(rooms)


def least(rooms: Iterable[Room]) -> Room:
    """Return the one in which a save can take least."""
    return min(rooms, key=lambda each: each.free - each.kept)


def memory_rooms() -> Iterator[Room]:
    """Yield what limits the memory of this job."""
    with contextlib.suppress(OSError, KeyError):
        fields = dict(line.split(":") for line in MEMORY.read_text().splitlines())
        total, free = (int(fields[n].split()[0]) << 10 for n in ("MemTotal", "MemAvailable"))
        yield Room(free, total, "the memory of this node", _kept(total))
    for group in memory_groups():
        with contextlib.suppress(OSError):
            free = max(0, group.limit - group.used())
            kept = _kept(group.limit)
            yield Room(free, group.limit, "the memory limit of this job (cgroup)", kept)


def _kept(limit: int) -> int:
    return min(KEPT_FREE, limit // 25)


def is_in_memory(directory: str) -> bool:
    """Return whether the file system of a directory is a tmpfs."""
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in MOUNTS.read_text(errors="replace").splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == number:
            return kind.split()[0] in ("tmpfs", "ramfs")
    return False
