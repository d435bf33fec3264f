"""Which CPUs each worker runs on: those nearest to its GPU first, within those of its task.

No policy for memory is set. A page lies on the memory node of the CPU that touches it first, and
the threads of a worker run on its own CPUs: what is bound is local. Where its CPUs are of two
nodes, that rule is still the best there is, and a policy that the user has set (numactl) holds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ..protocol import ranges
from .devices import Gpu

Cpus = tuple[int, ...]

NEARER = "#SBATCH --gres-flags=enforce-binding asks Slurm for CPUs near the GPUs"
FEW_CORES = 2  # of a worker with a GPU: with less, its data loaders starve it


class Mode(str, Enum):
    """What `--bind` says; all but the first two as torchrun's --numa-binding means them."""

    AUTO = "auto"  # a share of its own, near its GPU first; no CPU is idle
    NONE = "none"  # all of the task's
    NODE = "node"  # those of its GPU's memory node
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"  # a share of its own of the node, and of nothing else
    CORE_COMPLEX = "core-complex"  # those behind one of the node's last-level caches


@dataclass(frozen=True, slots=True)
class Cpu:
    """Where a CPU of the kernel's, a hardware thread, is. Numbers are unique on the machine."""

    core: int
    socket: int = 0
    node: int = 0  # of memory
    complex: int = 0  # of cores that share the last-level cache


Topology = Mapping[int, Cpu]  # of all the CPUs that are named here


@dataclass(frozen=True, slots=True)
class Locality:
    """What a worker that wants CPUs is to be near to."""

    name: str = ""  # of its GPU
    near: tuple[int, ...] = ()  # CPUs; () without a GPU, or when nobody knows
    nodes: tuple[int, ...] = ()  # of memory; () when unknown


@dataclass(frozen=True, slots=True)
class Binding:
    cpus: tuple[int, ...]
    nodes: tuple[int, ...]  # of memory
    near: bool = True  # False: of what could be near its GPU, less than half is


def locality(gpus: Sequence[Gpu]) -> Locality:
    """Of a worker with these GPUs."""
    return Locality(
        ", ".join(gpu.name for gpu in gpus),
        tuple(sorted({cpu for gpu in gpus for cpu in gpu.cpus})),
        tuple(sorted({gpu.node for gpu in gpus if gpu.node >= 0})),
    )


def bind(
    mode: Mode, cpus: Iterable[int], topology: Topology, localities: Sequence[Locality]
) -> tuple[Binding, ...]:
    """For each worker its CPUs.

    `localities` are those of all workers that share `cpus`, in the order of their local ranks.
    Where several tasks of a node have the same CPUs, each must give the same ones, those of the
    others included, or their shares overlap; `Locality()` for all is always right, and near to
    nothing.
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
    """Such that neighbours share as much as can be."""

    def position(cpu: int) -> tuple[int, ...]:
        where = topology[cpu]
        return where.socket, where.node, where.complex, where.core, cpu

    return sorted(cpus, key=position)


def _auto(order: list[int], topology: Topology, localities: Sequence[Locality]) -> list[Cpus]:
    """Those who are near to the same CPUs divide them. What nobody is near to goes to the workers
    of its socket, and then to all: being near costs nobody a CPU that would be idle.

    Nor does anybody get less than half of an equal share for the sake of others that are near.
    Where so few are left, the share is of the whole socket, or of all.
    """
    wishes = [_wishes(s, order, topology) for s in localities]
    beside, everything = [wish[-2:][0] for wish in wishes], [wish[-1] for wish in wishes]
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
            # Nor is a core divided where there is one for each.
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
    """What everybody has, and of the CPUs that nobody has those that they wish for: core by core to
    whoever has the fewest, so that the poorest worker, for which the others wait, has the most.
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
        for k in group:  # neighbours to each
            more[k] += tuple(cpu for core in itertools.islice(rest, gets[k]) for cpu in core)
    return more


def _wishes(locality: Locality, order: list[int], topology: Topology) -> list[frozenset[int]]:
    """The nearest first; all CPUs last."""
    everything = frozenset(order)
    near = everything.intersection(locality.near)
    sockets = {topology[cpu].socket for cpu in locality.near if cpu in topology}
    beside = frozenset(cpu for cpu in order if topology[cpu].socket in sockets)
    return [*filter(None, (near, beside)), everything]


def _like_torch(
    mode: Mode, order: list[int], topology: Topology, localities: Sequence[Locality]
) -> list[Cpus]:
    """As torch/numa/binding.py (2.13) has it, but for these CPUs only.

    It has one worker per GPU, and divides a node among its GPUs; here workers divide it.
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
    """The memory nodes of each; by its equal share for one whose GPU is near to none of these."""
    plain = _divide(order, topology, len(localities))
    homes = []
    for s, share in zip(localities, plain, strict=True):
        wanted = set(s.nodes) or {topology[cpu].node for cpu in s.near if cpu in topology}
        nodes = wanted & {topology[cpu].node for cpu in order}
        most = Counter(topology[cpu].node for cpu in share).most_common(1)
        homes.append(frozenset(nodes or (node for node, _ in most)))
    return homes


def _disjoint(wishes: Sequence[frozenset[int]], order: list[int], topology: Topology) -> list[Cpus]:
    """Those who wish for the same CPUs divide them, in the order of where their wishes lie."""
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
    """In the order of where their CPUs lie."""
    position = {cpu: place for place, cpu in enumerate(order)}
    middle = {k: sum(position[cpu] for cpu in cpus[k]) / len(cpus[k]) for k in group}
    return sorted(middle, key=lambda k: (middle[k], k))


def _overlapping(wishes: Sequence[frozenset[int]]) -> list[list[int]]:
    """Positions of the wishes, in groups that have no CPU in common."""
    groups: list[tuple[frozenset[int], list[int]]] = []
    for k, wish in enumerate(wishes):
        apart = [entry for entry in groups if entry[0].isdisjoint(wish)]
        joined = [entry for entry in groups if not entry[0].isdisjoint(wish)]
        union = wish.union(*(cpus for cpus, _ in joined))
        groups = [*apart, (union, [*(m for _, members in joined for m in members), k])]
    return [members for _, members in groups]


def _divide(order: Sequence[int], topology: Topology, parts: int) -> list[Cpus]:
    """Equal parts, of whole cores where there are enough; all for all where CPUs are too few.

    As with torch, the first parts have what is left over.
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
    """The CPUs of each core."""
    cores: dict[int, list[int]] = {}
    for cpu in cpus:
        cores.setdefault(topology[cpu].core, []).append(cpu)
    return list(cores.values())


def _cores(cpus: Iterable[int], topology: Topology) -> int:
    return len({topology[cpu].core for cpu in cpus})


# What follows from it


def threads(bindings: Sequence[Binding], topology: Topology) -> int:
    """OMP_NUM_THREADS for these workers, at least 1: the cores that the poorest can count on."""
    return min(_counted([{topology[cpu].core for cpu in b.cpus} for b in bindings]), default=1)


def cpus_each(bindings: Sequence[Binding]) -> list[int]:
    """The number of CPUs that each worker can count on, at least 1."""
    return _counted([set(b.cpus) for b in bindings])


def _counted(sets: Sequence[set[int]]) -> list[int]:
    """What several have counts for each of them in part."""
    users = Counter(member for s in sets for member in s)
    whole = math.lcm(*users.values())
    return [max(1, sum(whole // users[member] for member in s) // whole) for s in sets]


def advice(cores: int) -> str:
    """What to tell a user whose workers have GPUs, and so many cores each; "" for enough."""
    if cores >= FEW_CORES:
        return ""
    return (
        f"a worker has {cores} core: its data loaders share it with the training, and the GPU "
        "waits. #SBATCH --cpus-per-task=N gives a task more (from Slurm 22.05 to 23.02 srun "
        "--cpus-per-task=N too)"
    )


def remarks(
    bindings: Sequence[Binding], localities: Sequence[Locality], cpus: Iterable[int]
) -> tuple[str, ...]:
    """A line for each place from which this task's CPUs are far; NEARER says what to do."""
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
    """A line for each worker: `rank 0: GPU 0, CPUs 0-15, memory node 0`."""
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
