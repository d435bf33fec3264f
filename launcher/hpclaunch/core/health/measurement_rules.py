"""Rules for measurements of nodes: which pairs of ranks exchange data, and which figures are slow.

Each figure is measured in many short windows of time, and has a best and a usual value. A device or
link is slow if even its best value is far below the usual value of others of its kind. Noise raises
best values and lowers usual ones, so it may hide a slow device, but never accuses a good one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..protocol.wording import some
from .findings import COMPUTE, LINKS, MEMORY_SPEED, Finding, Grade, Problem
from .task_reports import Row

# Up to this number of players, each meets all others; with more, each meets about log2(count).
ALL_PAIRS = 8
# GPUs of one model differ by a few percent. A throttled one is slower by far more than 20 %.
SLOW = 0.8
# A process on the other hardware thread of a rank's core takes nearly half of its speed.
SLOW_CPU = 0.5
# Pairs also differ by their path (switches, sockets). A link at a lower rate has half or less.
SLOW_LINK = 0.5
NAMED = 8  # ranks named in one line

Ends = tuple[int, int]  # ranks
Pairs = list[Ends]


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed in the best window of time, and in the usual one."""

    best: float
    usual: float


class FaultKind(str, Enum):
    WRONG = "wrong"  # results, or data that arrived, were wrong
    FAILED = "failed"  # an error
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason why something could not be measured."""

    kind: FaultKind
    text: str


@dataclass(frozen=True, slots=True)
class RankMeasurement:
    """The measurement of one rank alone."""

    rank: int
    node: int
    host: str
    device: str = "CPU"  # model and number format; ranks with the same are compared
    gpu: str = ""  # the GPU's name for the user; "" on a CPU
    sharers: int = 1  # workers on its GPU
    compute: Speed | None = None  # TFLOP/s
    memory: Speed | None = None  # GB/s, read and written; of a GPU
    cpu: float = 1.0  # the CPU time that it got, as a share of what it could have used
    fault: Fault | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}" + (f" ({self.gpu})" if self.gpu else "")


@dataclass(frozen=True, slots=True)
class Link:
    """The measurement of an all-reduce between two ranks."""

    ends: Ends
    speed: Speed | None = None  # GB/s in each direction
    fault: Fault | None = None


Figure = tuple[Ends, Speed]


@dataclass(frozen=True, slots=True)
class MeasuredProblem:
    """A wrong result or a low speed: of a rank, or of the link between two."""

    problem: Problem
    ranks: tuple[int, ...]
    text: str


# The schedule


def schedule(nodes: Sequence[int], *, within: bool) -> list[Pairs]:
    """Return rounds of pairs. In each round, a rank is in at most one pair. `nodes` has the node of
    each rank.

    With `within`, pairs within nodes come first, on all nodes at once: with NCCL, they measure the
    links between the GPUs of a node. Then come pairs across nodes, of ranks with the same position
    on their nodes, so that in every round all pairs of a node get equal shares of its network.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        members[node].append(rank)
    groups = list(members.values())
    inner = [tournament(len(group) if within else 0) for group in groups]
    rounds: list[Pairs] = []
    for number in range(max(map(len, inner), default=0)):
        pairs = [
            (group[a], group[b])
            for group, meetings in zip(groups, inner, strict=True)
            if number < len(meetings)
            for a, b in meetings[number]
        ]
        rounds.append(pairs)
    for meetings in tournament(len(groups)):
        across = [pair for a, b in meetings for pair in zip(groups[a], groups[b], strict=False)]
        rounds.append(across)
    return rounds


def tournament(count: int) -> list[Pairs]:
    """Return rounds in which `count` players meet in pairs. No two players meet twice."""
    even = count + count % 2  # with an odd count, a player that meets the extra one has a rest
    wanted = even - 1 if count <= ALL_PAIRS else math.ceil(math.log2(count)) + 3
    wanted = min(wanted, even - 1) if count > 1 else 0
    rounds = []
    for number in (i * (even - 1) // wanted for i in range(wanted)):
        circle = [
            ((number + step) % (even - 1), (number - step) % (even - 1))
            for step in range(1, even // 2)
        ]
        pairs = [(number, even - 1), *circle]
        rounds.append([(min(p), max(p)) for p in pairs if max(p) < count])
    return rounds


# The judgement


_OF_RANK = {
    FaultKind.WRONG: Problem.WRONG_RESULTS,
    FaultKind.FAILED: Problem.FAILED_COMPUTE,
    FaultKind.SILENT: Problem.SILENT_RANK,
}
_SLOW = (Problem.SLOW_COMPUTE, Problem.SLOW_MEMORY, Problem.SLOW_LINK)


def judge(ranks: Sequence[RankMeasurement], links: Sequence[Link]) -> list[MeasuredProblem]:
    """Return the problems: of single ranks first, then of links."""
    found = [
        MeasuredProblem(_OF_RANK[r.fault.kind], (r.rank,), f"{r.name}: {r.fault.text}")
        for r in ranks
        if r.fault is not None
    ]
    slow = Problem.SLOW_COMPUTE
    found += slow_devices(ranks, slow, "computes", "TFLOP/s", lambda r: r.compute)
    slow = Problem.SLOW_MEMORY
    found += slow_devices(ranks, slow, "copies memory with", "GB/s", lambda r: r.memory)
    return found + _links(ranks, links)


def slow_devices(
    ranks: Sequence[RankMeasurement],
    problem: Problem,
    verb: str,
    unit: str,
    figure: Callable[[RankMeasurement], Speed | None],
) -> list[MeasuredProblem]:
    """Return a finding for each rank that is much slower than others on the same kind of device.

    `figure` gives the speed to compare; `verb` and `unit` describe it in the findings.
    """
    same_kind: dict[Hashable, list[tuple[RankMeasurement, Speed]]] = defaultdict(list)
    for rank in ranks:
        speed = figure(rank)
        if speed is not None:
            same_kind[rank.device, rank.sharers].append((rank, speed))
    found = []
    for members in same_kind.values():
        median = reference((speed.usual for _, speed in members), rank=2)
        for rank, speed in members:
            if speed.best >= (SLOW if rank.gpu else SLOW_CPU) * median:
                continue
            text = f"{rank.name} {verb} {compared(speed.best, median, unit)}"
            if rank.cpu < SLOW:
                text += f"; it got {rank.cpu:.0%} of its CPU time: other processes run there"
            found.append(MeasuredProblem(problem, (rank.rank,), text))
    return found


def reference(figures: Iterable[float], *, rank: int) -> float:
    """Return the figure that at least one in `rank` attains: with 2, the median."""
    descending = sorted(figures, reverse=True)
    return descending[(len(descending) - 1) // rank]


def compared(figure: float, usual: float, unit: str) -> str:
    return f"{figure:.3g} {unit}, others {usual:.3g} ({figure / usual:.0%})"


def _links(ranks: Sequence[RankMeasurement], links: Sequence[Link]) -> list[MeasuredProblem]:
    by_rank = {rank.rank: rank for rank in ranks}
    found = []
    for link in links:
        if link.fault is not None:
            names = " and ".join(by_rank[end].name for end in link.ends)
            text = f"all-reduce between {names}: {link.fault.text}"
            is_wrong = link.fault.kind is FaultKind.WRONG
            problem = Problem.WRONG_RESULTS if is_wrong else Problem.FAILED_LINK
            found.append(MeasuredProblem(problem, link.ends, text))
    for across in (False, True):
        ours = [
            (link.ends, link.speed)
            for link in links
            if link.speed is not None and is_across(link.ends, by_rank) == across
        ]
        if ours:
            found += _slow_links(by_rank, ours, across=across)
    return found


def is_across(ends: Ends, by_rank: dict[int, RankMeasurement]) -> bool:
    a, b = (by_rank[end].node for end in ends)
    return a != b


def _slow_links(
    by_rank: dict[int, RankMeasurement], links: Sequence[Figure], *, across: bool
) -> list[MeasuredProblem]:
    """Return a finding for each slow link, or one for a node or rank whose links are all slow.

    The speed that a third of the links attain counts as usual. With three or four ends, one bad end
    slows at least half of the links, so the median would be slow itself.
    """
    usual = reference((speed.usual for _, speed in links), rank=3)
    slow = [(ends, speed) for ends, speed in links if speed.best < SLOW_LINK * usual]
    found = []

    def add(what: str, ranks: Sequence[int], its: Sequence[Figure]) -> None:
        fastest = compared(max(speed.best for _, speed in its), usual, "GB/s")
        text = f"{what}: all-reduce with {fastest}"
        found.append(MeasuredProblem(Problem.SLOW_LINK, tuple(ranks), text))

    where = " to other nodes" if across else ""
    if across:
        for node in guilty(links, slow, lambda rank: by_rank[rank].node):
            ranks = sorted({r for ends, _ in slow for r in ends if by_rank[r].node == node})
            numbers = some(map(str, ranks), NAMED)
            its = [figure for figure in slow if set(ranks) & set(figure[0])]
            who = f"rank{'s' * (len(ranks) > 1)} {numbers}"
            add(f"all links of {by_rank[ranks[0]].host} ({who}){where}", ranks, its)
            slow = [figure for figure in slow if figure not in its]
    for rank in guilty(links, slow, lambda rank: rank):
        its = [figure for figure in slow if rank in figure[0]]
        if its:
            add(f"all links of {by_rank[rank].name}{where}", (rank,), its)
        slow = [figure for figure in slow if figure not in its]
    for ends, speed in slow:
        add("between " + " and ".join(by_rank[end].name for end in ends), ends, [(ends, speed)])
    return found


def guilty(
    links: Iterable[Figure], slow: Iterable[Figure], end_of: Callable[[int], int]
) -> list[int]:
    """Return the ends that have links to several others, all of them slow.

    `end_of` gives the end that a rank belongs to: the rank itself, or its node.
    """
    others = defaultdict(set)
    for (a, b), _ in links:
        others[end_of(a)].add(b)
        others[end_of(b)].add(a)
    bad = defaultdict(set)
    for (a, b), _ in slow:
        bad[end_of(a)].add(b)
        bad[end_of(b)].add(a)
    return [
        end
        for end, met in others.items()
        if bad[end] == met and len({end_of(other) for other in met}) > 1
    ]


# The report


def report(
    ranks: Sequence[RankMeasurement],
    links: Sequence[Link],
    backend: str,
    planned: int,
) -> list[Row]:
    """Return the rows of the doctor's table: one with the figures of each kind of device and link,
    then one for each problem. `planned` is the number of pairs that should have been measured.
    """
    by_rank = {rank.rank: rank for rank in ranks}
    figures: dict[tuple[str, str, str], list[tuple[float, str]]] = defaultdict(list)
    for rank in ranks:
        like = rank.device + (f", {rank.sharers} on each" if rank.sharers > 1 else "")
        if rank.compute:
            figures[COMPUTE, "TFLOP/s", like].append((rank.compute.best, rank.name))
        if rank.memory:
            figures[MEMORY_SPEED, "GB/s", like].append((rank.memory.best, rank.name))
    for link in links:
        if link.speed:
            where = "across nodes" if is_across(link.ends, by_rank) else "in a node"
            ends = " and ".join(by_rank[end].name for end in link.ends)
            like = f"pairs {where}, all-reduce with {backend}"
            figures[LINKS, "GB/s", like].append((link.speed.best, ends))
    everywhere = tuple(dict.fromkeys(rank.host for rank in ranks))
    rows = []
    for (check, unit, like), those in figures.items():
        least, who = min(those)
        median = reference((figure for figure, _ in those), rank=2)
        text = f"{len(those)} x {like}: median {median:.3g} {unit}, least {least:.3g} ({who})"
        rows.append(Row(Finding(check, text), everywhere))
    if missing := planned - len(links):
        why = "one of their ranks had failed or was silent"
        text = f"{missing} of {planned} pairs not measured: {why}"
        advice = "repair what failed, and measure again"
        rows.append(Row(Finding(LINKS, text, Grade.WARN, advice), everywhere))
    for each in judge(ranks, links):
        is_slow = each.problem in _SLOW
        finding = each.problem.finding(each.text, Grade.WARN if is_slow else Grade.FAIL)
        rows.append(Row(finding, tuple(dict.fromkeys(by_rank[r].host for r in each.ranks))))
    return rows
