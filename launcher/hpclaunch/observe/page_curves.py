"""The curves of a page: figures of a job over time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from ..core.head.round_shares import BEFORE_STEPS, scaled, sums
from ..core.member.moments import AgentHistory, GpusMoment, WorkersMoment
from ..core.protocol.facts import Category, SeatSeconds
from ..core.protocol.model import Doing
from ..core.protocol.values import value
from .ledger_entries import LedgerEntry
from .page_lanes import TimeAxis, job_bars

MOST_POINTS = 400  # of a curve
LEAST = 15.0  # seconds over which a rate is taken: an agent learns the steps every five
SAME = 1.0  # seconds: closer times are of the same reading of the steps
GAP = 3  # times the usual distance of two moments, beyond which a curve is interrupted
FEWEST = 10.0  # seconds that become one point, at least

OVERHEAD = (*BEFORE_STEPS, Category.SAVING)
FAULTS = (Category.REDONE, Category.DETECTION, Category.RESTART, Category.LOST)
IDLE = (Category.SCRIPT, Category.WAITING, Category.SPARE, Category.END, Category.UNKNOWN)

Point = tuple[float, float]  # time, value
Curve = list[list[Point]]  # pieces, with gaps between them


@value(frozen=True)
class Loss:
    """Seat seconds until `at` for all but training, and the share of training."""

    at: float
    overhead: float
    faults: float
    idle: float
    goodput: float


def losses(entries: Iterable[LedgerEntry], *, steps_seen: bool) -> list[Loss]:
    """Return the losses until the end of each bar of the job on the time line. Without
    `steps_seen`, all time after the rendezvous is training.
    """
    found: list[Loss] = []
    spent: SeatSeconds = {}
    for entry in entries:
        if not found:
            found.append(Loss(entry.begin, 0.0, 0.0, 0.0, 0.0))
        for at, part in _parts(entry):
            spent = sums((spent, part))
            training = spent.get(Category.TRAINING, 0.0)
            if not steps_seen:
                spent[Category.TRAINING] = training = training + spent.pop(Category.LOADING, 0.0)
            overhead, faults, idle = (
                sum(spent.get(category, 0.0) for category in family)
                for family in (OVERHEAD, FAULTS, IDLE)
            )
            total = sum(spent.values())
            goodput = training / total if total > 0 else 0.0
            found.append(Loss(at, overhead, faults, idle, goodput))
    return found


def _parts(entry: LedgerEntry) -> Iterator[tuple[float, SeatSeconds]]:
    """Split an entry at the ends of its bars. Saves are in the bar of the training, as on the time
    line. Other categories without a bar are spread evenly.
    """
    bars = job_bars([entry])
    beside = dict(entry.spent)
    in_bars = {bar.category: {bar.category: beside.pop(bar.category)} for bar in bars}
    if Category.TRAINING in in_bars and Category.SAVING in beside:
        in_bars[Category.TRAINING][Category.SAVING] = beside.pop(Category.SAVING)
    for bar in bars if entry.end > entry.begin else ():
        share = (bar.end - bar.begin) / (entry.end - entry.begin)
        yield bar.end, sums((in_bars[bar.category], scaled(beside, share)))


def step_rates(histories: Iterable[AgentHistory]) -> Curve:
    """Return the steps per second of rank 0's agent, with a piece for each round."""
    found: Curve = []
    for history in histories:
        moments = [m for m in history.moments if m.workers.first == 0]
        for _, same in groupby(moments, key=lambda m: m.round):
            steps = {
                m.at - m.workers.elapsed + m.workers.seen: m.workers.steps
                for m in same
                if m.workers.spent[Doing.NOTHING] != Doing.NOTHING
            }
            if piece := _rates(list(steps.items())):
                found.append(piece)
    return sorted(found, key=lambda piece: piece[0][0])


def _rates(steps: Sequence[tuple[float, int]]) -> list[Point]:
    """Return the rate at each time, over the last LEAST seconds or since the first step. The first
    rate is there twice, from the first step on: a curve of one point would not be seen.
    """
    made = [(at, number) for at, number in steps if number > 0]
    found, i = list[Point](), 0
    for at, number in made[1:]:
        while made[i + 1][0] <= at - LEAST:
            i += 1
        since, before = made[i]
        if at > since + SAME:
            rate = (number - before) / (at - since)
            found += [(at, rate)] if found else [(since, rate), (at, rate)]
    return found


def farthest(histories: Iterable[AgentHistory]) -> int:
    """Return the furthest step as the script counts; 0 if it does not say."""
    return max((m.workers.step for history in histories for m in history.moments), default=0)


@value(frozen=True)
class Gathered:
    """Moments of several agents at about the same time, for one point of a curve."""

    at: float
    apart: float  # seconds to the moments before
    workers: tuple[WorkersMoment, ...]


def gathered(histories: Iterable[AgentHistory], axis: TimeAxis) -> list[Gathered]:
    """Group the moments that have vitals by time: a group for each point of a curve."""
    width = max(FEWEST, axis.length / MOST_POINTS)
    workers = defaultdict[int, list[WorkersMoment]](list)
    apart = defaultdict[int, float](float)
    for history in histories:
        before = math.inf
        for moment in history.moments:
            seen = moment.workers
            if seen.memory or seen.gpus:
                place = int((moment.at - axis.begin) // width)
                workers[place].append(seen)
                apart[place] = max(apart[place], moment.at - before)
                before = moment.at
    return [
        Gathered(axis.begin + (i + 0.5) * width, max(width, apart[i]), tuple(workers[i]))
        for i in sorted(workers)
    ]


def curve(
    points: Iterable[Gathered],
    value: Callable[[WorkersMoment], float | None],
    together: Callable[[Sequence[float]], float],
) -> Curve:
    """Return the curve of one figure, with gaps where nothing was noted for long."""
    found: Curve = []
    last = -math.inf
    for point in points:
        values = [each for workers in point.workers if (each := value(workers)) is not None]
        if not values:
            continue
        if point.at - last > GAP * point.apart or not found:
            found.append([])
        found[-1].append((point.at, together(values)))
        last = point.at
    return found


def of_gpus(value: Callable[[GpusMoment], float | None]) -> Callable[[WorkersMoment], float | None]:
    return lambda workers: None if workers.gpus is None else value(workers.gpus)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def points(pieces: Curve, axis: TimeAxis, factor: float) -> tuple[tuple[int, float | None], ...]:
    """Return (x, value times `factor`), with (x, None) between two pieces."""
    found: list[tuple[int, float | None]] = []
    for piece in filter(None, pieces):
        if found:
            found.append((found[-1][0], None))
        found += [(axis.x(at), _short(value * factor)) for at, value in thinned(piece)]
    return tuple(found)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return the points; if they are too many, the highest and the lowest of each group."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MOST_POINTS)
    found = [points[0]]
    for i in range(0, len(points), size):
        few = points[i : i + size]
        ends = {min(few, key=lambda p: p[1]), max(few, key=lambda p: p[1])}
        found += sorted(ends)
    return [*found, points[-1]]
