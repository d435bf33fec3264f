"""The CPUs of this task, and their topology according to the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hpclaunch.core.placement.binding import Cpu
from hpclaunch.core.protocol import ranges

SYSTEM = Path("/sys/devices/system")
_DATA = ("Data", "Unified")  # the types of caches that contain data


def available() -> tuple[int, ...]:
    """Return the CPUs that this process may run on, in order."""
    return tuple(sorted(os.sched_getaffinity(0)))


def topology(cpus: Iterable[int], root: Path = SYSTEM) -> dict[int, Cpu]:
    """Return the topology of these CPUs and of all others that are online.

    Where a container or a kernel does not show it, every CPU is a core, all are in one socket and
    one memory node, and each node has one cache. Cores and caches are numbered by their lowest CPU.
    """
    everything = sorted({*cpus, *_list(f"{root}/cpu/online")})
    nodes = {
        cpu: int(path.name.removeprefix("node"))
        for path in root.glob("node/node[0-9]*")
        for cpu in _list(f"{path}/cpulist")
    }
    cores: dict[int, tuple[int, int]] = {}  # with its socket
    complexes: dict[int, int] = {}
    found = {}
    for cpu in everything:
        here = f"{root}/cpu/cpu{cpu}"
        if cpu not in cores:
            together = _list(f"{here}/topology/thread_siblings_list") or (cpu,)
            socket = max(0, _number(f"{here}/topology/physical_package_id"))
            cores |= dict.fromkeys(together, (min(together), socket))
        if cpu not in complexes:
            together = _behind_last_cache(f"{here}/cache")
            complexes |= dict.fromkeys(together, min(together, default=cpu))
        core, socket = cores[cpu]
        node = nodes.get(cpu, 0)
        # Without a known cache each node is one complex. Its number is negative, unlike a CPU's.
        found[cpu] = Cpu(core, socket, node, complexes.get(cpu, -1 - node))
    return found


def _behind_last_cache(caches: str) -> tuple[int, ...]:
    """Return the CPUs that share the last-level cache; () if that is not known."""
    last = index = 0
    shared: tuple[int, ...] = ()
    while (level := _number(f"{caches}/index{index}/level")) >= 0:
        if level > last and _text(f"{caches}/index{index}/type") in _DATA:
            last, shared = level, _list(f"{caches}/index{index}/shared_cpu_list")
        index += 1
    return shared


def _text(path: str) -> str:
    try:
        with open(path) as f:
            return f.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: str) -> int:
    try:
        return int(_text(path))
    except ValueError:
        return -1


def _list(path: str) -> tuple[int, ...]:
    try:
        return tuple(sorted(ranges.parsed(_text(path))))
    except ValueError:
        return ()
