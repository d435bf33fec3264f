"""The number of processes in this process's cgroup that the kernel has killed to free memory.

Workers are in the same cgroup: Slurm makes one for each task. The limit may be that of a cgroup
above, but the kernel counts a kill in the cgroup of the process.
"""

from __future__ import annotations

import re

from .processes import read_proc

CGROUP = re.compile(rb"^(\d+):([^:]*):(/.*)$", re.MULTILINE)
COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


def file_of(cgroups: bytes, root: bytes = b"/sys/fs/cgroup") -> bytes | None:
    """Return the file with the count, by the content of /proc/PID/cgroup, for cgroup v2 or v1; None
    if there is none."""
    for number, controllers, path in CGROUP.findall(cgroups):
        if number == b"0" and not controllers:
            v2 = b"%s%s/memory.events" % (root, path.rstrip(b"/"))
            if count_in(v2) is not None:
                return v2
        elif b"memory" in controllers.split(b","):
            return b"%s/memory%s/memory.oom_control" % (root, path.rstrip(b"/"))
    return None


def count_in(file: bytes) -> int | None:
    """Return the count in a file; None if it has none."""
    try:
        with open(file, "rb") as f:
            found = COUNT.search(f.read())
    except OSError:
        return None
    return None if found is None else int(found[1])


class MemoryKills:
    """The count at the beginning of the round, and since."""

    def __init__(self) -> None:
        self._file = file_of(read_proc("self/cgroup"))
        self._before = 0

    def begin(self) -> None:
        """Begin a round."""
        self._before = self._count()

    def happened(self) -> bool:
        """Return whether the count has grown since `begin`, or since the last call."""
        before, self._before = self._before, self._count()
        return self._before > before

    def _count(self) -> int:
        return 0 if self._file is None else count_in(self._file) or 0
