"""The time line of a page: its axis, and its lanes with what the whole job did, and each node or
rank.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ..core.head.round_shares import BEFORE_STEPS, CATEGORIES
from ..core.member.moments import AgentHistory, AgentMoment
from ..core.protocol.facts import Category
from ..core.protocol.model import Doing
from ..core.protocol.values import replace, value
from .ledger_entries import LedgerEntry

FEW_RANKS = 16  # with a lane each; with more ranks, each node has one
MOST_LANES = 96  # of more nodes, several consecutive ones share a lane
MOST_BARS = 5_000  # on a page: of more, the shortest are merged

BESIDE = (Category.WAITING, Category.SPARE, Category.LOST)  # shown if the job did nothing else
UNITS = 20_000  # of a drawing, from its left to its right
PREPARING = tuple(doing for doing, category in CATEGORIES.items() if category in BEFORE_STEPS)


@value(frozen=True)
class TimeAxis:
    """From `begin` to `end`, in seconds since the epoch: at least one second."""

    begin: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin

    def share(self, at: float) -> float:
        return min(1.0, max(0.0, (at - self.begin) / self.length))

    def x(self, at: float) -> int:
        """Return the place in units of a drawing."""
        return round(UNITS * self.share(at))


@value(frozen=True)
class Bar:
    """A category from one time until another."""

    begin: float
    end: float
    category: Category


Run = tuple[Category, int, int]  # a bar in units of the axis: category, begin, end


@value(frozen=True)
class Lane:
    name: str
    bars: tuple[Bar, ...]
    hosts: frozenset[str]
    rank: int | None = None  # None: a lane of nodes


# The whole job


def job_bars(entries: Iterable[LedgerEntry]) -> list[Bar]:
    """Return the bars of the whole job. A round goes through its categories one after the other, in
    the order in which `Category` has them. The times of its saves are not known here, so they count
    as training.
    """
    found: list[Bar] = []
    for entry in entries:
        spent = dict(entry.spent)
        if Category.SAVING in spent and spent.get(Category.TRAINING, 0.0) > 0:
            spent[Category.TRAINING] += spent.pop(Category.SAVING)
        had = {c: spent[c] for c in Category if spent.get(c, 0.0) > 0}
        of_job = {c: seconds for c, seconds in had.items() if c not in BESIDE}
        waiting = {c: seconds for c, seconds in had.items() if c is Category.WAITING}
        parts = of_job or waiting or had
        total, at = sum(parts.values()), entry.begin
        for category, seconds in parts.items():
            until = at + (entry.end - entry.begin) * seconds / total
            found.append(Bar(at, until, category))
            at = until
    return found


# Agents


def agent_bars(
    history: AgentHistory,
    uses: Sequence[tuple[float, Category]],
    rounds: Mapping[int, tuple[float, float]],
    until: float,
    least: float,
) -> list[Bar]:
    """Return the bars of an agent. `uses` has the times at which its node began another category;
    UNKNOWN means that it had workers. `rounds` has the begin and the end of each round, and `until`
    is the end of the launch. Saves of less than `least` seconds are left out.
    """
    own = defaultdict[int, list[AgentMoment]](list)
    for moment in history.moments:
        own[moment.round].append(moment)
    lost = [at for at, category in uses if category is Category.LOST]
    working: list[Bar] = []
    for number, moments in sorted(own.items()):
        end = rounds.get(number, (0.0, until))[1]
        gone = next((at for at in lost if moments[0].at < at < end), end)
        working += _round_bars(moments, min(gone, until), least)
    ends = [*(at for at, _ in uses[1:]), until]
    idle = [
        Bar(at, end, category)
        for (at, category), end in zip(uses, ends, strict=False)
        if category is not Category.UNKNOWN and at < end
    ]
    return sorted([*_between(idle, working), *working], key=lambda bar: bar.begin)


def _round_bars(moments: Sequence[AgentMoment], end: float, least: float) -> list[Bar]:
    """Return the bars of an agent's workers in a round."""
    last = moments[-1]
    workers, found = last.workers, list[Bar]()
    begin = at = last.at - workers.elapsed
    spent = [milliseconds / 1000 for milliseconds in workers.spent[: Doing.NOTHING]]
    doing = Doing(workers.spent[Doing.NOTHING])
    is_over = doing is Doing.NOTHING
    end = min(end, last.at) if is_over else end
    over = min(end, begin + sum(spent)) if is_over else end
    for each in PREPARING:
        until = over if each is doing else min(over, at + spent[each])
        if until > at:
            found.append(Bar(at, until, CATEGORIES[each]))
            at = until
    if at < over:
        saves = [
            Bar(max(at, s.begin), min(over, s.end), s.category) for s in _saves(moments, least)
        ]
        saves = [bar for bar in saves if bar.begin < bar.end]
        found += [*_between([Bar(at, over, Category.TRAINING)], saves), *saves]
    return [*found, Bar(over, end, Category.END)] if over < end else found


def _saves(moments: Sequence[AgentMoment], least: float) -> list[Bar]:
    """Return the saves. Each ends at the first moment that includes it."""
    found = []
    for one, other in pairwise(moments):
        before, after = (moment.workers.spent[Doing.SAVING] for moment in (one, other))
        seconds = (after - before) / 1000
        if seconds > 0 and seconds >= least:
            found.append(Bar(max(one.at, other.at - seconds), other.at, Category.SAVING))
    return found


def _between(bars: Iterable[Bar], others: Sequence[Bar]) -> list[Bar]:
    """Return the parts of `bars` that none of the `others` overlaps."""
    found = []
    for bar in bars:
        at = bar.begin
        for other in sorted(others, key=lambda other: other.begin):
            if other.end <= at or other.begin >= bar.end:
                continue
            if other.begin > at:
                found.append(replace(bar, begin=at, end=other.begin))
            at = max(at, other.end)
        if at < bar.end:
            found.append(replace(bar, begin=at))
    return found


# Lanes


def lanes(
    by_host: Mapping[str, Sequence[Bar]], by_rank: Mapping[int, tuple[str, Sequence[Bar]]]
) -> list[Lane]:
    """Return a lane for each rank if they are few, and for each other node. `by_rank` has the host
    and the bars of each rank; it is empty if ranks have changed hosts.
    """
    few = by_rank if len(by_rank) <= FEW_RANKS else {}
    found = [
        Lane(f"rank {rank}", tuple(bars), frozenset([host]), rank)
        for rank, (host, bars) in sorted(few.items())
    ]
    with_ranks = {host for host, _ in few.values()}
    hosts = [host for host in by_host if host not in with_ranks]
    size = max(1, math.ceil(len(hosts) / MOST_LANES))
    groups = [hosts[i : i + size] for i in range(0, len(hosts), size)]
    return found + [
        Lane(
            group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}",
            tuple(most([by_host[host] for host in group])),
            frozenset(group),
        )
        for group in groups
    ]


def most(lists: Sequence[Sequence[Bar]]) -> list[Bar]:
    """Return the most common category between two changes."""
    if len(lists) == 1:
        return list(lists[0])
    times = sorted({at for bars in lists for bar in bars for at in (bar.begin, bar.end)})
    begins = [[bar.begin for bar in bars] for bars in lists]
    found: list[Bar] = []
    for at, until in pairwise(times):
        doing = Counter[Category]()
        for bars, begun in zip(lists, begins, strict=True):
            i = bisect.bisect_right(begun, at) - 1
            if i >= 0 and bars[i].end > at:
                doing[bars[i].category] += 1
        if not doing:
            continue
        category = doing.most_common(1)[0][0]
        if found and found[-1].category is category and found[-1].end == at:
            found[-1] = replace(found[-1], end=until)
        else:
            found.append(Bar(at, until, category))
    return found


def runs(rows: Sequence[Sequence[Bar]], axis: TimeAxis) -> list[list[Run]]:
    """Return the bars of each row in units of the axis. If there are too many, close ones become
    one bar, of the category that takes most of their time.
    """
    width = 1
    while True:
        found = [_runs(bars, axis, width) for bars in rows]
        if width >= UNITS or sum(map(len, found)) <= MOST_BARS:
            return found
        width *= 2


def _runs(bars: Sequence[Bar], axis: TimeAxis, width: int) -> list[Run]:
    """Return the bars in columns of this width, each of the category that takes most of it."""
    columns: dict[int, dict[Category, float]] = {}
    found: list[Run] = []
    units = UNITS / width
    for bar in bars:
        x, until = units * axis.share(bar.begin), units * axis.share(bar.end)
        first = min(int(x), int(units) - 1)
        last = max(first, math.ceil(until) - 1)
        for column in (first,) if first == last else (first, last):  # the bar fills the rest
            within = min(until, column + 1) - max(x, column)
            of = columns.setdefault(column, {})
            of[bar.category] = of.get(bar.category, 0.0) + within
        if last > first + 1:
            found.append((bar.category, first + 1, last))
    for column, of in columns.items():
        found.append((max(of, key=of.__getitem__), column, column + 1))
    merged: list[Run] = []
    for category, begin, end in sorted(found, key=lambda run: run[1]):
        if merged and merged[-1][0] is category and begin <= merged[-1][2]:
            merged[-1] = (category, merged[-1][1], end)
        else:
            merged.append((category, begin, end))
    return [(category, width * begin, width * end) for category, begin, end in merged]
