"""The control groups that limit the memory of this process, of cgroup v2 and v1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GROUP = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")


class MemoryGroup(NamedTuple):
    """A control group with a limit of memory."""

    directory: Path
    limit: int  # bytes
    usage_file: str
    prefix: str  # of the fields of memory.stat that include the groups below
    mapped: str  # the field with the page cache that processes have mapped

    def used(self) -> int:
        """Return the bytes in use, without page cache that can be freed. Raises OSError."""
        used = int((self.directory / self.usage_file).read_text())
        lines = (self.directory / "memory.stat").read_text().splitlines()
        fields = {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}
        inactive, active, mapped = (
            fields.get(self.prefix + name, 0)
            for name in ("inactive_file", "active_file", self.mapped)
        )
        return max(0, used - inactive - max(0, active - mapped))  # such as libraries, read anew


def memory_groups() -> Iterator[MemoryGroup]:
    """Yield this process's groups that have a limit, and those above them."""
    try:
        lines = GROUP.read_bytes().split(b"\n")
    except OSError:
        return
    for line in filter(None, lines):  # a group's name may be any file name
        _, controllers, path = os.fsdecode(line).split(":", 2)
        if not controllers:
            root, limit, more = ROOT, "memory.max", ("memory.current", "", "file_mapped")
        elif "memory" in controllers.split(","):
            root, limit = ROOT / "memory", "memory.limit_in_bytes"
            more = ("memory.usage_in_bytes", "total_", "mapped_file")
        else:
            continue
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            with suppress(OSError, ValueError):  # "max", or not a group
                yield MemoryGroup(directory, int((directory / limit).read_text()), *more)
