"""The number of processes in this process's cgroup that the kernel has killed to free memory.

Workers are in the same cgroup: Slurm makes one for each task. The limit may be that of a cgroup
above, but the kernel counts a kill in the cgroup of the process.
"""

from __future__ import annotations

import re

CGROUP = re.compile(rb"^(\d+):([^:]*):(/.*)$", re.MULTILINE)
COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


def file_of(cgroups: bytes, root: bytes = b"/sys/fs/cgroup") -> bytes | None:
    """Return the file with the count, by the content of /proc/PID/cgroup, for cgroup v2 or v1; None
    if there is none."""
    for number, controllers, path in CGROUP.findall(cgroups):
        if number == b"0" and not controllers:
            v2 = b"%s%s/memory.events" % (root, path.rstrip(b"/"))
            if has_count(v2):
                return v2
        elif b"memory" in controllers.split(b","):
            return b"%s/memory%s/memory.oom_control" % (root, path.rstrip(b"/"))
    return None


def has_count(file: bytes) -> bool:
    try:
        with open(file, "rb") as f:
            return COUNT.search(f.read()) is not None
    except OSError:
        return False


class MemoryKills:
    """The count at the beginning of the round, and since."""

    def __init__(self) -> None:
        try:
            with open("/proc/self/cgroup", "rb") as f:
                self._file = file_of(f.read())
        except OSError:
            self._file = None
        self._before = 0

    def begin(self) -> None:
        """Begin a round."""
        self._before = self._count()

    def happened(self) -> bool:
        """Return whether the count has grown since `begin`, or since the last call."""
        before, self._before = self._before, self._count()
        return self._before > before

    def _count(self) -> int:
        if self._file is None:
            return 0
        try:
            with open(self._file, "rb") as f:
                found = COUNT.search(f.read())
        except OSError:
            return 0
        return int(found.group(1)) if found else 0
