"""CPU binding: the CPUs of its task that each worker runs on, if possible near its GPU.

No memory policy is set: a worker's memory is local by default, since the kernel puts a page on the
memory node of the CPU that touches it first. A memory policy of the user (numactl) remains.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from ..protocol import ranges
from ..protocol.values import value
from .devices import Gpu

Cpus = tuple[int, ...]

NEARER = "#SBATCH --gres-flags=enforce-binding asks Slurm for CPUs near the GPUs"
FEW_CORES = 2  # of a worker; with fewer, its GPU waits for its data loaders


class Mode(str, Enum):
    """The values of `--bind`: which CPUs a worker gets. All but the first two are values of
    torchrun's --numa-binding, with the same meaning.
    """

    AUTO = "auto"  # a share of its own, near its GPU if possible; no CPU of the task is left idle
    NONE = "none"  # all CPUs of the task
    NODE = "node"  # the CPUs of its GPU's memory node
    SOCKET = "socket"  # the CPUs of its GPU's socket
    EXCLUSIVE = "exclusive"  # a share of its own of the CPUs of its GPU's memory node
    CORE_COMPLEX = "core-complex"  # the CPUs of that node that share one last-level cache


@value(frozen=True)
class Cpu:
    """The place of a CPU, which is a hardware thread. All numbers are unique on the machine."""

    core: int
    socket: int = 0
    node: int = 0  # the memory node
    complex: int = 0  # the group of cores that share a last-level cache


Topology = Mapping[int, Cpu]  # by the number of the CPU


@value(frozen=True)
class Locality:
    """The GPUs of a worker, and the CPUs and memory nodes near them."""

    name: str = ""  # of its GPUs
    near: tuple[int, ...] = ()  # the CPUs near its GPUs; () without a GPU, or if unknown
    nodes: tuple[int, ...] = ()  # the memory nodes near its GPUs; () if unknown


@value(frozen=True)
class Binding:
    """The CPUs of one worker."""

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]  # the memory nodes of these CPUs
    near: bool = True  # False: less than half of the CPUs that could be near its GPU are near it


def locality(gpus: Sequence[Gpu]) -> Locality:
    """Return the locality of a worker with these GPUs."""
    return Locality(
        ", ".join(gpu.name for gpu in gpus),
        tuple(sorted({cpu for gpu in gpus for cpu in gpu.cpus})),
        tuple(sorted({gpu.node for gpu in gpus if gpu.node >= 0})),
    )


def bind(
    mode: Mode, cpus: Iterable[int], topology: Topology, localities: Sequence[Locality]
) -> tuple[Binding, ...]:
    """Return a binding for each worker.

    `localities` are those of all workers that share `cpus`, in the order of their local ranks. If
    several tasks of a node have the same CPUs, each must pass the `localities` of all these tasks:
    otherwise their bindings overlap. A task that does not know the GPUs of the others passes
    `Locality()` for all workers, including its own.
    """
    order = _in_order(cpus, topology)
    if mode is Mode.NONE:
        found = [tuple(order)] * len(localities)
    elif mode is Mode.AUTO:
        found = _auto(order, topology, localities)
    else:
        found = _like_torch(mode, order, topology, localities)
    bindings = []
    for s, mine in zip(localities, found, strict=True):
        nodes = tuple(sorted({topology[cpu].node for cpu in mine}))
        near = 2 * len(set(mine).intersection(s.near)) >= min(len(mine), len(s.near))
        bindings.append(Binding(tuple(sorted(mine)), nodes, near))
    return tuple(bindings)


def _in_order(cpus: Iterable[int], topology: Topology) -> list[int]:
    """Sort the CPUs so that neighbours share a core, a cache, a memory node or a socket."""

    def position(cpu: int) -> tuple[int, ...]:
        where = topology[cpu]
        return where.socket, where.node, where.complex, where.core, cpu

    return sorted(cpus, key=position)


def _auto(order: list[int], topology: Topology, localities: Sequence[Locality]) -> list[Cpus]:
    """Divide the CPUs so that each worker gets CPUs near its GPU, no CPU is idle, and the shares
    are not too unequal.

    Workers that are near the same CPUs divide these. CPUs that are near no worker go to the workers
    of their socket, or else to all workers.

    If many workers are near the same CPUs, a share may be less than half of an equal share. Then
    these workers get shares of their whole socket instead, or of all CPUs.
    """
    wishes = [_wishes(s, order, topology) for s in localities]
    everything = [wish[-1] for wish in wishes]
    beside = [wish[-2] if len(wish) > 1 else wish[-1] for wish in wishes]
    cores = _cores(order, topology)
    while True:
        first = [wish[0] for wish in wishes]
        found = _disjoint(first, order, topology)
        for wider in (beside, everything):
            found = _with_idle(found, wider, order, topology)
        poor = []
        for group in _overlapping(first):
            theirs = _cores(set().union(*(found[k] for k in group)), topology)
            few = 2 * theirs * len(localities) < cores * len(group)
            near = set().union(*(first[k] for k in group))
            # A core is not divided if there are enough cores for all workers.
            units = _cores(near, topology) if cores >= len(localities) else len(near)
            if few or units < len(group):
                poor += [k for k in group if len(wishes[k]) > 1]
        if not poor:
            return found
        for k in poor:
            del wishes[k][0]


def _with_idle(
    found: Sequence[Cpus], wishes: Sequence[frozenset[int]], order: list[int], topology: Topology
) -> list[Cpus]:
    """Give each idle CPU to a worker that has it among its wishes.

    Each core goes to the worker with the fewest: a training is as fast as its slowest worker.
    """
    taken = set().union(*found)
    idle = frozenset(cpu for cpu in order if cpu not in taken)
    more = list(found)
    for group in _overlapping([wish & idle for wish in wishes]):
        union = set().union(*(wishes[k] & idle for k in group))
        cores = _by_core([cpu for cpu in order if cpu in union], topology)
        group = _by_place(group, found, order)
        have = {k: _cores(found[k], topology) for k in group}
        gets = dict.fromkeys(group, 0)
        for _ in cores:
            gets[min(group, key=lambda k: have[k] + gets[k])] += 1
        rest = iter(cores)
        for k in group:  # each worker gets cores that are neighbours
            more[k] += tuple(cpu for core in itertools.islice(rest, gets[k]) for cpu in core)
    return more


def _wishes(locality: Locality, order: list[int], topology: Topology) -> list[frozenset[int]]:
    """Return sets of CPUs that a worker could use: near its GPU, on the same socket, all."""
    everything = frozenset(order)
    near = everything.intersection(locality.near)
    sockets = {topology[cpu].socket for cpu in locality.near if cpu in topology}
    beside = frozenset(cpu for cpu in order if topology[cpu].socket in sockets)
    return [*filter(None, (near, beside)), everything]


def _like_torch(
    mode: Mode, order: list[int], topology: Topology, localities: Sequence[Locality]
) -> list[Cpus]:
    """Bind as torch/numa/binding.py (2.13) does, but within these CPUs only.

    torch divides a memory node among its GPUs, since each has one worker. Here a GPU may have
    several workers, and these divide the memory node.
    """
    homes = _homes(order, topology, localities)
    of_home = [frozenset(cpu for cpu in order if topology[cpu].node in home) for home in homes]
    if mode is Mode.EXCLUSIVE:
        return _disjoint(of_home, order, topology)
    found: list[Cpus] = []
    for k, (home, mine) in enumerate(zip(homes, of_home, strict=True)):
        if mode is Mode.SOCKET:
            sockets = {topology[cpu].socket for cpu in mine}
            mine = frozenset(cpu for cpu in order if topology[cpu].socket in sockets)
        elif mode is Mode.CORE_COMPLEX:
            behind: dict[int, list[int]] = {}
            for cpu in mine:
                behind.setdefault(topology[cpu].complex, []).append(cpu)
            largest = sorted(behind.values(), key=lambda group: (-len(group), min(group)))
            mine = frozenset(largest[homes[:k].count(home) % len(largest)])
        found.append(tuple(mine))
    return found


def _homes(
    order: list[int], topology: Topology, localities: Sequence[Locality]
) -> list[frozenset[int]]:
    """Return the memory nodes that each worker belongs to. If none of the task's CPUs is near its
    GPU, use the node of most CPUs in its equal share.
    """
    plain = _divide(order, topology, len(localities))
    homes = []
    for s, share in zip(localities, plain, strict=True):
        wanted = set(s.nodes) or {topology[cpu].node for cpu in s.near if cpu in topology}
        nodes = wanted & {topology[cpu].node for cpu in order}
        most = Counter(topology[cpu].node for cpu in share).most_common(1)
        homes.append(frozenset(nodes or (node for node, _ in most)))
    return homes


def _disjoint(wishes: Sequence[frozenset[int]], order: list[int], topology: Topology) -> list[Cpus]:
    """Divide the CPUs among the workers that have them in their wishes, in the order of `order`."""
    found: list[Cpus] = [()] * len(wishes)
    for group in _overlapping(wishes):
        union = set().union(*(wishes[k] for k in group))
        own = [cpu for cpu in order if cpu in union]
        parts = _divide(own, topology, len(group))
        for k, part in zip(_by_place(group, wishes, own), parts, strict=True):
            found[k] = part
    return found


def _by_place(
    group: Iterable[int], cpus: Sequence[Collection[int]], order: Sequence[int]
) -> list[int]:
    """Sort the workers by the middle of their CPUs in `order`."""
    position = {cpu: place for place, cpu in enumerate(order)}
    middle = {k: sum(position[cpu] for cpu in cpus[k]) / len(cpus[k]) for k in group}
    return sorted(middle, key=lambda k: (middle[k], k))


def _overlapping(wishes: Sequence[frozenset[int]]) -> list[list[int]]:
    """Group the wishes so that no two groups have a CPU in common. Return their positions."""
    groups: list[tuple[frozenset[int], list[int]]] = []
    for k, wish in enumerate(wishes):
        apart = [entry for entry in groups if entry[0].isdisjoint(wish)]
        joined = [entry for entry in groups if not entry[0].isdisjoint(wish)]
        union = wish.union(*(cpus for cpus, _ in joined))
        groups = [*apart, (union, [*(m for _, members in joined for m in members), k])]
    return [members for _, members in groups]


def _divide(order: Sequence[int], topology: Topology, parts: int) -> list[Cpus]:
    """Divide CPUs into equal parts, of whole cores if there are enough cores. As in torch, the
    first parts get one more each if needed. With fewer CPUs than parts, each part has all CPUs.
    """
    units = _by_core(order, topology)
    if len(units) < parts:
        units = [[cpu] for unit in units for cpu in unit]
    if len(units) < parts:
        return [tuple(order)] * parts
    each, more = divmod(len(units), parts)
    starts = [k * each + min(k, more) for k in range(parts + 1)]
    return [
        tuple(cpu for unit in units[start:end] for cpu in unit)
        for start, end in itertools.pairwise(starts)
    ]


def _by_core(cpus: Iterable[int], topology: Topology) -> list[list[int]]:
    """Return the CPUs of each core."""
    cores: dict[int, list[int]] = {}
    for cpu in cpus:
        cores.setdefault(topology[cpu].core, []).append(cpu)
    return list(cores.values())


def _cores(cpus: Iterable[int], topology: Topology) -> int:
    return len({topology[cpu].core for cpu in cpus})


# Uses of the bindings


def threads(bindings: Sequence[Binding], topology: Topology) -> int:
    """Return OMP_NUM_THREADS for these workers: the cores of the worker with the fewest, or 1."""
    return min(_counted([{topology[cpu].core for cpu in b.cpus} for b in bindings]), default=1)


def cpus_each(bindings: Sequence[Binding]) -> list[int]:
    """Return the number of CPUs that each worker can count on, at least 1."""
    return _counted([set(b.cpus) for b in bindings])


def _counted(sets: Sequence[set[int]]) -> list[int]:
    """Return the size of each set, at least 1. A member of n sets counts 1/n for each of them."""
    users = Counter(member for s in sets for member in s)
    whole = math.lcm(*users.values())
    return [max(1, sum(whole // users[member] for member in s) // whole) for s in sets]


def remarks(
    bindings: Sequence[Binding], localities: Sequence[Locality], cpus: Iterable[int]
) -> tuple[str, ...]:
    """Return remarks on GPUs that are far from this task's CPUs, one for all GPUs near the same
    CPUs. NEARER is the advice.
    """
    far: dict[Cpus, list[str]] = {}
    for b, s in zip(bindings, localities, strict=True):
        if not b.near and s.name not in far.setdefault(s.near, []):
            far[s.near].append(s.name)
    have = ranges.written(cpus)
    return tuple(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} near CPUs "
        f"{ranges.written(near)}, but this task has {have}"
        for near, names in far.items()
    )


def describe(
    bindings: Sequence[Binding], localities: Sequence[Locality], first_rank: int
) -> list[str]:
    """Return a line for each worker: `rank 0: GPU 0, CPUs 0-15, memory node 0`."""
    pairs = zip(bindings, localities, strict=True)
    return [f"rank {rank}: {placed(b, s)}" for rank, (b, s) in enumerate(pairs, first_rank)]


def placed(binding: Binding, locality: Locality) -> str:
    words = [
        locality.name,
        f"CPUs {ranges.written(binding.cpus)}",
        f"memory node{'s' * (len(binding.nodes) > 1)} {ranges.written(binding.nodes)}",
        "" if binding.near else "far from its GPU",
    ]
    return ", ".join(filter(None, words))
