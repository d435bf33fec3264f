"""The CPUs of this task, and how its workers share them."""

from __future__ import annotations

import os
from collections.abc import Collection

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"


def available() -> tuple[int, ...]:
    """The CPUs that this process may run on, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def share(cpus: Collection[int], slot: int, slots: int) -> tuple[int, ...]:
    """The CPUs for one of `slots` workers; () when there are fewer CPUs than workers.

    Shares are disjoint, as equal as can be, neighbours on the same socket, and the hardware threads
    of one core stay together where there are enough cores.
    """
    if len(cpus) < slots:
        return ()
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        core = (_read(cpu, "physical_package_id"), _read(cpu, "core_id"))
        # Where the kernel does not tell (-1), every CPU counts as a core.
        cores.setdefault(core if core[1] >= 0 else (-1, cpu), []).append(cpu)
    units = [cores[core] for core in sorted(cores)]
    if len(units) < slots:
        units = [[cpu] for unit in units for cpu in unit]
    mine = units[slot * len(units) // slots : (slot + 1) * len(units) // slots]
    return tuple(sorted(cpu for unit in mine for cpu in unit))


def _read(cpu: int, what: str) -> int:
    try:
        with open(_TOPOLOGY.format(cpu, what)) as f:
            return int(f.read())
    except (OSError, ValueError):
        return -1
