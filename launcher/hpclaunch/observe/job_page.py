"""The page of a job as values, which a template writes as HTML.

Its texts have no control characters. They may be hostile: the template escapes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..core.hangs.tracebacks import HangStacks
from ..core.member.moments import AgentHistory, GpusMoment
from ..core.protocol.facts import Category, RoundEnded
from ..core.protocol.model import EndCause
from ..core.protocol.values import replace, value
from ..core.protocol.wording import GIB, count, harmless, plain, signal_name, some
from . import page_curves as curves
from . import page_lanes as lanes
from .end_causes import BY_SLURM
from .job_report import EndReport, JobOutcome, JobReport
from .launch_past import Happening, HappeningKind, LaunchPast
from .launches import Launch, job_entries, round_ends
from .page_lanes import UNITS, TimeAxis
from .text_style import DAY, MOMENT, LocalTime, seat_time, share

MOST_TEXT = 200_000  # characters of output and stacks on a page
MOST_MARKS = 400  # of each kind; of marks at nearly the same place, only the first is drawn
MOST_EVENTS = 200
ALIKE = 1.0  # seconds between two records of one event, at most
NODES = 6
FAMILIES = {
    "useful": (Category.TRAINING,),
    "overhead": curves.OVERHEAD,
    "faults": curves.FAULTS,
    "idle": curves.IDLE,
}
WANTED = {cause.value for cause in (EndCause.GROWTH, EndCause.USER, *BY_SLURM.values())}
LEAST_LOSS = 0.05  # seconds: less is shown as none
ROOM = 0.007  # of the length of the job, left empty after its end: room for marks at the end
STATES = {None: "running", JobOutcome.DONE: "done", JobOutcome.FAILED: "failed"}
WITH_DATE = 20 * 3600  # seconds: on the page of a longer job, times include the date
JOB_ROWS = ("rounds", "job", "events", "checkpoints")  # of the time line, above its lanes
MINUTE_SCALE, HOUR_SCALE = 120.0, 7200.0  # seconds from which a chart has minutes, or hours


@value(frozen=True)
class KeyFigure:
    name: str
    value: str
    note: str = ""


@value(frozen=True)
class Mark:
    """Something that happened at one time, as it is drawn."""

    kind: HappeningKind
    x: int
    rows: tuple[int, ...]  # of the time line
    text: str
    link: str = ""  # an anchor of the page with more about it


@value(frozen=True)
class RoundSpan:
    number: int
    x: int
    until: int
    text: str


@value(frozen=True)
class TimeLine:
    """The time line. `x` and `until` are units of the axis. After JOB_ROWS, each row is a lane."""

    rows: tuple[str, ...]
    of_ranks: bool  # the lanes are ranks, not nodes
    categories: tuple[str, ...]
    bars: tuple[tuple[int, int, int, int], ...]  # row, number of the category, x, until
    rounds: tuple[RoundSpan, ...]
    marks: tuple[Mark, ...]

    @property
    def lanes(self) -> int:
        return len(self.rows) - len(JOB_ROWS)


@value(frozen=True)
class Drawn:
    """A curve, or an area on top of the one before it."""

    name: str
    style: str
    points: tuple[tuple[int, float | None], ...]  # x, value; None: the curve is interrupted
    last: str  # the value at its end
    is_area: bool = False


@value(frozen=True)
class Chart:
    name: str
    unit: str  # written after each value
    top: float | None  # of the scale, which begins at 0; None: the page chooses
    drawn: tuple[Drawn, ...]  # () if there is nothing to show
    empty: str = ""  # the reason if nothing is drawn


@value(frozen=True)
class LedgerRow:
    category: str
    family: str
    spent: str
    part: float  # of the whole, 0 to 1
    share: str  # the same as a text


@value(frozen=True)
class EndCard:
    """The end of a round: its cause, with the evidence."""

    anchor: str
    when: str
    round: int
    cause: str
    who: str
    text: str
    is_wanted: bool  # not a fault: the user or the launcher ended the round
    facts: tuple[str, ...]
    evidence: tuple[str, ...]
    tail: str
    consequences: tuple[str, ...]
    stacks: tuple[tuple[str, str], ...]
    stacks_at: str


@value(frozen=True)
class JobPage:
    name: str
    state: str  # "done", "failed", "ended" in another way, or "running"
    result: str
    reason: str
    facts: tuple[KeyFigure, ...]
    begin: float
    end: float
    time_line: TimeLine
    charts: tuple[Chart, ...]
    gpu_charts: tuple[Chart, ...]
    ledger: tuple[LedgerRow, ...]
    total: str
    seat: str
    steps_seen: bool
    ends: tuple[EndCard, ...]
    events: tuple[tuple[str, str, str, str], ...]  # time, kind, text, anchor or ""
    events_left_out: int
    logs: tuple[str, ...]
    version: str


def job_page(
    report: JobReport,
    launches: Sequence[Launch],
    pasts: Mapping[str, LaunchPast],
    histories: Sequence[AgentHistory],
    stacks: Sequence[HangStacks],
    local: LocalTime,
    *,
    logs: Sequence[str],
    version: str,
) -> JobPage:
    """Return the page of these launches, with their report, their pasts by name, and the histories
    of their agents.
    """
    noted = [history.moments[-1].at for history in histories if history.moments]
    end = max(noted, default=report.end) if not report.over else report.end
    end = max(end, report.end, report.begin + 1)
    axis = TimeAxis(report.begin, end + ROOM * (end - report.begin))
    form = "%b %d %H:%M:%S" if axis.length > WITH_DATE else "%H:%M:%S"

    def clock(at: float) -> str:
        return local(at, form)

    ends = round_ends(launches)
    rows = _lanes(launches, pasts, histories, axis)
    points = curves.gathered(histories, axis)
    happened = _happened(report, ends, pasts.values())
    return JobPage(
        name=plain(some(report.launches, 3)),
        state=STATES.get(report.outcome, "ended"),
        result=_result(report),
        reason=plain(report.reason) if report.over and report.code else "",
        facts=tuple(_facts(report, pasts.values(), histories, local)),
        begin=axis.begin,
        end=axis.end,
        time_line=_time_line(launches, rows, happened, axis),
        charts=_charts(report, launches, histories, points, axis),
        gpu_charts=_gpu_charts(points, axis),
        ledger=tuple(_ledger(report)),
        total=seat_time(report.total),
        seat=report.seat,
        steps_seen=report.steps_seen,
        ends=tuple(_cards(report.ends, stacks, clock)),
        events=tuple((clock(h.at), h.kind, h.text, h.link) for h in happened[-MOST_EVENTS:]),
        events_left_out=max(0, len(happened) - MOST_EVENTS),
        logs=tuple(map(harmless, logs)),
        version=version,
    )


# The top of the page


def _result(report: JobReport) -> str:
    outcome = report.outcome
    if outcome is None:
        return "not known to be over"
    why = "" if outcome is JobOutcome.DONE else f": {report.cause}, exit code {report.code}"
    return plain(f"{outcome.value}{why}")


def _facts(
    report: JobReport,
    pasts: Iterable[LaunchPast],
    histories: Sequence[AgentHistory],
    local: LocalTime,
) -> Iterable[KeyFigure]:
    begin, end = (local(at, MOMENT) for at in (report.begin, report.end))
    is_one_day = begin[:10] == end[:10] and report.end - report.begin < DAY
    until = end[11:] if is_one_day else end
    yield KeyFigure(
        "Goodput",
        share(report.goodput),
        f"of all {report.seat} time was training whose steps were not lost",
    )
    yield KeyFigure("Time", seat_time(report.end - report.begin), f"{begin} to {until}")
    seats = count(round(report.seats), report.seat)
    names = f": {plain(some(report.nodes, NODES))}" if report.nodes else ""
    yield KeyFigure("Size", seats, f"{count(len(report.nodes), 'node')}{names}")
    rounds = count(report.rounds, "round")
    launches = f"{len(report.launches)} launches" if len(report.launches) > 1 else ""
    restarts = count(report.restarts, "restart")
    yield KeyFigure("Rounds", rounds, ", ".join(filter(None, [restarts, launches])))
    if step := curves.farthest(histories):
        yield KeyFigure("Step", f"{step:,}", "the furthest that was seen")
    # The first head records the checkpoint that it finds, which may be older than the job.
    saves = [save for past in pasts for save in past.saves if save.at >= report.begin]
    if saves:
        last = max(saves, key=lambda save: save.at)
        step_of = "" if last.step is None else f"step {last.step:,}"
        ago = f"saved at {local(last.at, MOMENT)[11:]}"
        yield KeyFigure("Checkpoint", step_of or ago, ago if step_of else "")


# What happened


def _happened(
    report: JobReport, ends: Sequence[RoundEnded], pasts: Iterable[LaunchPast]
) -> list[Happening]:
    """Return what happened, in the order of time."""
    # Each head records the newest checkpoint that it finds: one save may be recorded repeatedly,
    # and the first one may be older than the job.
    happenings = [each for past in pasts for each in past.happenings]
    found: list[Happening] = []
    for each in sorted(happenings, key=lambda happening: (happening.text, happening.at)):
        last = found[-1] if found else None
        is_known = last and last.text == each.text and each.at - last.at < ALIKE
        is_older = each.kind is HappeningKind.SAVE and each.at < report.begin
        if not is_known and not is_older:
            found.append(each)
    for i, (seen, end) in enumerate(zip(report.ends, ends, strict=True)):
        who = f", {seen.who}" if seen.who else ""
        text = plain(f"round {seen.round} ended: {seen.cause}{who}")
        kind = HappeningKind.CHANGE if seen.cause in WANTED else HappeningKind.FAULT
        first = end.failures[0] if seen.who else None
        host, rank = ("", None) if first is None else (first.host, first.rank)
        found.append(Happening(seen.at, kind, text, host, rank, f"end-{i}"))
    return sorted(found, key=lambda happening: happening.at)


# The time line


def _lanes(
    launches: Sequence[Launch],
    pasts: Mapping[str, LaunchPast],
    histories: Sequence[AgentHistory],
    axis: TimeAxis,
) -> list[lanes.Lane]:
    by_host = defaultdict[str, list[lanes.Bar]](list)
    by_rank: dict[int, tuple[str, list[lanes.Bar]]] = {}
    is_stable = True  # no rank has changed its host
    for launch in launches:
        rounds = {e.round: (e.begin, e.end) for e in launch.entries if e.round is not None}
        uses = pasts[launch.name].nodes if launch.name in pasts else {}
        own = _by_agent(histories, launch.name)
        hosts = {history.host for history in own}
        own += [AgentHistory(launch.name, -1, host, ()) for host in uses if host not in hosts]
        of_host = dict[str, list[list[lanes.Bar]]]((host, []) for host in uses)
        for history in own:
            host, seen = history.host, uses.get(history.host, ())
            bars = lanes.agent_bars(history, seen, rounds, launch.until, axis.length / UNITS)
            of_host.setdefault(host, []).append(bars)
            ranks = {
                rank
                for m in history.moments
                for rank in range(m.workers.first, m.workers.first + m.workers.count)
            }
            for rank in ranks if len(ranks) <= lanes.FEW_RANKS else ():
                known, so_far = by_rank.setdefault(rank, (host, []))
                is_stable = is_stable and known == host
                so_far += bars
            is_stable = is_stable and len(ranks) <= lanes.FEW_RANKS
        for host, of_agents in of_host.items():
            by_host[host] += lanes.most(of_agents)
    return lanes.lanes(by_host, by_rank if is_stable else {})


def _by_agent(histories: Iterable[AgentHistory], launch: str) -> list[AgentHistory]:
    """Return one history for each agent of a launch, joined from all starts of the agent."""
    found = dict[int, AgentHistory]()
    for history in histories:
        if history.launch == launch:
            known = found.get(history.index, replace(history, moments=()))
            moments = sorted((*known.moments, *history.moments), key=lambda m: m.at)
            found[history.index] = replace(known, moments=tuple(moments))
    return [found[index] for index in sorted(found)]


def _time_line(
    launches: Sequence[Launch],
    rows: Sequence[lanes.Lane],
    happened: Sequence[Happening],
    axis: TimeAxis,
) -> TimeLine:
    of_job = lanes.runs([lanes.job_bars(job_entries(launches))], axis)[0]
    of_rows = {JOB_ROWS.index("job"): of_job}
    of_rows |= enumerate(lanes.runs([row.bars for row in rows], axis), len(JOB_ROWS))
    seen = {category for each in of_rows.values() for category, _, _ in each}
    categories = [category for category in Category if category in seen]
    return TimeLine(
        rows=(*JOB_ROWS, *(plain(row.name) for row in rows)),
        of_ranks=any(row.rank is not None for row in rows),
        categories=tuple(category.value for category in categories),
        bars=tuple(
            (row, categories.index(category), x, until)
            for row, each in of_rows.items()
            for category, x, until in each
        ),
        rounds=tuple(_rounds(launches, axis)),
        marks=tuple(_marks(happened, rows, axis)),
    )


def _rounds(launches: Sequence[Launch], axis: TimeAxis) -> Iterable[RoundSpan]:
    for launch in launches:
        for entry in launch.entries:
            if entry.round is not None:
                text = f"round {entry.round}, {seat_time(entry.end - entry.begin)}"
                yield RoundSpan(entry.round, axis.x(entry.begin), axis.x(entry.end), text)


def _marks(
    happened: Sequence[Happening], rows: Sequence[lanes.Lane], axis: TimeAxis
) -> Iterable[Mark]:
    """Yield a mark for each happening; of several at nearly the same place, only the first."""
    taken = set[tuple[str, int]]()
    for happening in happened:
        place = (happening.kind, int(MOST_MARKS * axis.share(happening.at)))
        if place in taken:
            continue
        taken.add(place)
        of_job = JOB_ROWS.index("checkpoints" if happening.kind is HappeningKind.SAVE else "events")
        lane = _lane(happening, rows)
        on = (of_job,) if lane is None else (of_job, len(JOB_ROWS) + lane)
        yield Mark(happening.kind, axis.x(happening.at), on, happening.text, happening.link)


def _lane(happening: Happening, rows: Sequence[lanes.Lane]) -> int | None:
    for i, row in enumerate(rows):
        if happening.host in row.hosts and row.rank in (None, happening.rank):
            return i
    return None


# Charts


def _charts(
    report: JobReport,
    launches: Sequence[Launch],
    histories: Sequence[AgentHistory],
    points: Sequence[curves.Gathered],
    axis: TimeAxis,
) -> tuple[Chart, ...]:
    rates = curves.step_rates(histories)
    seen = curves.losses(job_entries(launches), steps_seen=report.steps_seen)
    goodput = [[(loss.at, loss.goodput) for loss in seen[1:]]] if seen[1:] else []
    memory = curves.curve(points, lambda w: w.memory / w.count if w.memory else None, curves.mean)
    largest = curves.curve(points, lambda workers: workers.largest or None, max)
    of_memory = [("mean", "one", memory), ("largest", "two", largest)]
    why = "no optimizer steps were seen" if not report.steps_seen else "it was not noted"
    return (
        _chart("Steps per second", axis, [("steps per second", "one", rates)], _number, why),
        _chart("Goodput so far", axis, [("goodput", "one", goodput)], _share, why, top=100.0),
        _lost(seen, axis, report.seat),
        _chart("Memory of a rank", axis, of_memory, _gib, "it was not noted"),
    )


def _gpu_charts(points: Sequence[curves.Gathered], axis: TimeAxis) -> tuple[Chart, ...]:
    """Return the charts of the GPUs; () without GPUs."""
    busy = curves.curve(points, curves.of_gpus(lambda gpus: gpus.busy), curves.mean)
    idlest = curves.curve(points, curves.of_gpus(lambda gpus: gpus.idlest), min)
    used = curves.curve(points, curves.of_gpus(_memory_share), curves.mean)
    hottest = curves.curve(points, curves.of_gpus(lambda gpus: gpus.temperature or None), max)
    if not used:
        return ()
    why = "these GPUs do not report it"
    of_busy = [("mean", "one", busy), ("idlest", "two", idlest)]
    return (
        _chart("GPUs busy", axis, of_busy, _share, why, top=100.0),
        _chart("GPU memory in use", axis, [("mean", "one", used)], _share, why, top=100.0),
        _chart("Hottest GPU", axis, [("temperature", "one", hottest)], _celsius, why),
    )


def _memory_share(gpus: GpusMoment) -> float | None:
    return gpus.used / gpus.total if gpus.total else None


def _chart(
    name: str,
    axis: TimeAxis,
    of: Sequence[tuple[str, str, curves.Curve]],
    written: _Written,
    empty: str,
    top: float | None = None,
) -> Chart:
    drawn = []
    for label, style, curve in filter(lambda each: each[2], of):
        points, last = curves.points(curve, axis, written.factor), written(curve[-1][-1][1])
        drawn.append(Drawn(label, style, points, f"last {last}"))
    return Chart(name, written.unit, top, tuple(drawn), "" if drawn else empty)


def _lost(seen: Sequence[curves.Loss], axis: TimeAxis, seat: str) -> Chart:
    """Return the chart of lost time: stacked areas with points at the same times."""
    step = -(-len(seen) // (curves.MOST_POINTS - 1)) or 1
    seen = [*seen[::step], *seen[-1:]]
    name = f"{seat} time that was no training, so far"
    styles = ("faults", "overhead", "idle")
    lines = [(style, [(loss.at, getattr(loss, style)) for loss in seen]) for style in styles]
    layers = [(style, line) for style, line in lines if line and line[-1][1] >= LEAST_LOSS]
    if not layers:
        return Chart(name, "", None, (), "nothing was lost")
    most = sum(line[-1][1] for _, line in layers)
    units = ((" h", 3600.0, HOUR_SCALE), (" min", 60.0, MINUTE_SCALE), (" s", 1.0, 0.0))
    unit, seconds = next((unit, s) for unit, s, least in units if most >= least)
    drawn = []
    for style, line in layers:
        points = curves.points([line], axis, 1 / seconds)
        drawn.append(Drawn(style, f"area-{style}", points, seat_time(line[-1][1]), is_area=True))
    return Chart(name[0].upper() + name[1:], unit, None, tuple(drawn))


@value(frozen=True)
class _Written:
    """The form in which the values of a chart are written."""

    form: str
    unit: str
    factor: float = 1.0

    def __call__(self, value: float) -> str:
        return f"{format(value * self.factor, self.form)}{self.unit}"


_number = _Written(".3g", "")
_gib = _Written(".3g", " GiB", 1 / GIB)
_share = _Written(".0f", " %", 100)
_celsius = _Written(".0f", " °C")


# The ledger


def _ledger(report: JobReport) -> Iterable[LedgerRow]:
    """Yield a row for each category that took time, family by family."""
    for family, categories in FAMILIES.items():
        for category in categories:
            seconds = report.seconds.get(category.value, 0.0)
            if seconds > 0 and report.total:
                part = seconds / report.total
                yield LedgerRow(category.value, family, seat_time(seconds), part, share(part))


# Failures


def _cards(
    ends: Sequence[EndReport], stacks: Sequence[HangStacks], clock: Callable[[float], str]
) -> Iterable[EndCard]:
    room = MOST_TEXT
    for i, end in enumerate(ends):
        tail, room = _fitting(end.tail, room)
        found = _stacks_of(end, stacks) if end.cause == EndCause.HANG.value else None
        shown = []
        for name, text in () if found is None else found.files:
            fits, room = _fitting(text, room)
            shown += [(plain(name), fits)] if fits else []
        how = signal_name(end.signal) if end.signal else f"exit code {end.code}" if end.code else ""
        followed = (*end.consequences, *(each for each in end.lost if each != end.text))
        late = end.seen - end.at
        facts = [how, f"seen after {seat_time(late)}" if late >= 1 else ""]
        yield EndCard(
            anchor=f"end-{i}",
            when=clock(end.at),
            round=end.round,
            cause=end.cause,
            who=plain(end.who),
            text=plain(end.text),
            is_wanted=end.cause in WANTED,
            facts=tuple(filter(None, facts)),
            evidence=tuple(map(plain, end.evidence)),
            tail=tail,
            consequences=tuple(plain(each) for each in followed if each),
            stacks=tuple(shown),
            stacks_at="" if found is None else harmless(found.where),
        )


def _stacks_of(end: EndReport, stacks: Sequence[HangStacks]) -> HangStacks | None:
    """Return the stacks of a round. Several launches of a job may have a round with its number: the
    nearest in time counts.
    """
    mine = [each for each in stacks if each.round == end.round]
    return min(mine, key=lambda each: abs(each.at - end.seen), default=None)


def _fitting(text: str, room: int) -> tuple[str, int]:
    """Return the text, or "" if there is no room for it, and the room that is left."""
    shown = "\n".join(map(harmless, text.splitlines()))
    return (shown, room - len(shown)) if len(shown) <= room else ("", room)
