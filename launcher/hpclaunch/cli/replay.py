"""Make the decisions of a job once more from its journals, and show what happened when.

    hpclaunch replay hpclaunch-logs/71.0                   all agents of a job, merged by time
    hpclaunch replay hpclaunch-logs/71.0/journal.jsonl     one of them
    hpclaunch replay DIR --until 14:03:22                  where everybody stood at that time

Nothing is started and nothing is sent: the journal has every event with its time, and the decisions
depend on nothing else. Where this version of hpclaunch would decide otherwise than was recorded,
the first difference is shown. Exit code 1 then, 2 for what is no journal, else 0.
"""

from __future__ import annotations

import argparse
import datetime
import errno
import heapq
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import EXIT_FAILED, EXIT_USAGE
from hpclaunch.core.protocol.wording import count, for_console

from . import say, write_bytes
from .parser import Parser

if TYPE_CHECKING:
    from hpclaunch.system.logs.journal.replaying import Decision, Happening, NewCore, Position

LATE = 0.5  # seconds that a loop may be behind before it is worth a word
QUIET = 1.0  # seconds between two lines, of which it is said that nothing happened
LENGTH = 72  # of a value, without --verbose
INDENT = " " * 14

Line = tuple[float, str]  # the time at which it is to be printed


def prepare_parser(parser: Parser) -> None:
    parser.add_argument(
        "journal", type=Path, metavar="DIR|FILE", help="the log directory of a job, or one journal"
    )
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="stop there: 14:03:22, '2026-05-01 14:03:22', or +90 for seconds after the begin",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="every beat, and all that messages say"
    )


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    files = _files(options.journal)
    names: dict[str, int] = {}
    agents = [_Agent(path, names, verbose=options.verbose) for path in files]
    lines = heapq.merge(*(agent.lines() for agent in agents), key=lambda line: line[0])
    write_bytes(for_console(f"{text}\n") for text in _until(lines, options.until))
    wrong = [f"{agent.path}: {agent.wrong}" for agent in agents if agent.wrong]
    if len(agents) == 1 and wrong:
        raise UsageError(wrong[0])
    for text in wrong:
        say(f"error: {text}")
    if any(agent.differs for agent in agents):
        return EXIT_FAILED
    return EXIT_USAGE if wrong else 0


def _files(where: Path) -> list[Path]:
    try:
        if not where.is_dir():
            open(where, "rb", opener=_regular).close()
            return [where]
        files = sorted(where.glob("journal*.jsonl*"))
    except OSError as e:
        raise UsageError(f"cannot read {where}: {e.strerror}") from e
    if not files:
        raise UsageError(
            f"no journal in {where}: name the directory of one job, which is "
            "hpclaunch-logs/<job>.<step> or its --log-dir"
        )
    return files


def _regular(path: str, flags: int) -> int:
    """Open a regular file of any owner; an opener for `open`."""
    # Without O_NONBLOCK, a pipe in its place could make this wait.
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


def _until(lines: Iterator[Line], until: str | None) -> Iterator[str]:
    end = None
    for time, text in lines:
        if until is not None and end is None:
            end = _moment(until, time)
        if end is not None and time > end:
            break
        yield text


def _moment(text: str, begin: float) -> float:
    """What the user calls a time, of a journal that begins then."""
    if re.fullmatch(r"\+\d+(\.\d*)?", text):
        return begin + float(text)
    day = datetime.datetime.fromtimestamp(begin).astimezone()
    try:
        if "-" in text:
            return datetime.datetime.fromisoformat(text).timestamp()
        at = day.replace(**_clock(text))
    except ValueError:
        raise UsageError(
            f"--until {text}: write 14:03:22, '2026-05-01 14:03:22', or +90 for seconds after the "
            "begin"
        ) from None
    return (at if at >= day else at + datetime.timedelta(days=1)).timestamp()


def _clock(text: str) -> dict[str, Any]:
    at = datetime.time.fromisoformat(text)
    parts = ("hour", "minute", "second", "microsecond")
    # All of the second, or the minute, that was named.
    given = {1: {"second": 59, "microsecond": 999_999}, 2: {"microsecond": 999_999}}
    more = {} if "." in text else given.get(text.count(":"), {})
    return {part: getattr(at, part) for part in parts} | more


class _Agent:
    """The journal of one agent, as lines of text."""

    def __init__(self, path: Path, names: dict[str, int], *, verbose: bool) -> None:
        self.path, self.verbose = path, verbose
        self._names = names  # of all agents, with their index
        self.wrong = ""  # why it cannot be replayed
        self.differs = False
        self._host = path.name
        self._time = 0.0
        self._events = self._beats = 0
        self._skipped: list[float] = []  # the times of beats that were not shown
        self._seen: dict[tuple[str, int], dict[str, Any]] = {}  # the last messages, from and to
        self._late_for = 0.0
        self._position: Position | None = None
        self._over = ""

    def lines(self) -> Iterator[Line]:
        from hpclaunch.system.logs.journal.records import JournalError
        from hpclaunch.system.logs.journal.replaying import DAMAGED, replay
        from hpclaunch.system.shared.bounded_json import MOST

        began = None
        try:
            with open(self.path, "rb", opener=_regular) as file:
                # The file may be no journal: limit the length of a line.
                for each in replay(iter(partial(file.readline, MOST), b"")):
                    self._time = max(self._time, each.time) if hasattr(each, "time") else self._time
                    began = self._time if began is None else began
                    for text in self._tell(each):
                        yield self._time, text
                    if self.differs:
                        break
        except JournalError as e:
            self.wrong = str(e)
        except OSError as e:
            self.wrong = e.strerror or str(e)
        except DAMAGED as e:
            self.wrong = f"what it says makes no sense: {type(e).__name__}: {e}"
        if began is not None:
            yield from ((self._time, text) for text in self._end(self._time - began))

    def _tell(self, each: Happening) -> Iterator[str]:
        from hpclaunch.system.logs.journal import replaying

        match each:
            case replaying.Decision():
                yield from self._step(each)
            case replaying.NewCore():
                yield from self._begun(each)
            case replaying.Noted(name=name, value=value):
                yield from self._pass_over()
                yield self._at(f"({name}: {self._short(value)})")
            case replaying.CutOff(line=line):
                self._over = f"the journal is cut off in line {line}"
                yield self._at(self._over)

    def _begun(self, begun: NewCore) -> Iterator[str]:
        core, self._over = begun.core, ""
        if begun.resumed and self._position is not None:
            self._skipped.clear()
            yield self._at(f"... nothing but beats for {_length(begun.quiet)}")
            return
        places = core.job.places
        self._host = host = places[core.index].host
        alone = [place.host for place in places].count(host) == 1
        if not alone or self._names.setdefault(host, core.index) != core.index:
            self._host = f"{host}[{core.index}]"
        day = datetime.datetime.fromtimestamp(begun.time).astimezone()
        how = "goes on here" if begun.resumed else "begins"
        yield self._at(
            f"{how}, {day:%Y-%m-%d %H:%M:%S %Z}: agent {core.index} of {len(places)}, "
            f"hpclaunch {begun.version}"
        )

    def _step(self, step: Decision) -> Iterator[str]:
        self._position = step.after
        self._events += not step.beat
        self._beats += step.beat
        if step.late > LATE and step.now - step.late != self._late_for:
            self._late_for = step.now - step.late
            yield from self._pass_over()
            yield self._at(f"... this agent was held up for {step.late:.1f} s")
        if step.same and step.beat and step.before == step.after and not self.verbose:
            self._skipped.append(step.time)
            return
        yield from self._pass_over()
        event = self._words(_plain(step), "from", "sender")
        if not step.same:
            self.differs = True
            yield self._at(f"DIFFERS (line {step.line}): {event}")
            yield from (f"{INDENT}{line}" for line in self._difference(step))
            return
        yield self._at(event)
        for effect in step.effects:
            yield f"{INDENT}  -> {self._words(effect, 'to', 'to')}"
        if changes := _changes(step.before, step.after):
            yield f"{INDENT}  =  {changes}"

    def _pass_over(self) -> Iterator[str]:
        """Beats that were not shown."""
        times, self._skipped = self._skipped, []
        if times and times[-1] - times[0] >= QUIET:
            yield self._at(
                f"... {count(len(times), 'beat')} in {_length(times[-1] - times[0])}", times[-1]
            )

    def _end(self, lasted: float) -> Iterator[str]:
        yield from self._pass_over()
        if self.wrong:
            return
        told = f"{count(self._events, 'event')} and {count(self._beats, 'beat')}"
        told += f" in {_length(lasted)}"
        if self.differs:
            yield self._at(f"after {told}, this version decides otherwise than was recorded")
            return
        left = self._position is not None and self._position.phase == "ended"
        over = "" if left or self._over else "; the journal ends here, without the end of the job"
        where = "" if self._position is None or left else f": {_where(self._position)}"
        yield self._at(f"{told}, all decided as recorded{over}{where}")

    def _at(self, text: str, time: float | None = None) -> str:
        moment = datetime.datetime.fromtimestamp(self._time if time is None else time)
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}  {self._host}  {text}"

    # Words

    def _words(self, told: Mapping[str, Any], way: str, peer: str) -> str:
        """Of an event or effect; of a message only what differs from the last one."""
        name = told.get("event") or told.get("effect")
        body = dict(told["with"])
        if "of" not in told:
            return f"{name} {self._fields(body)}".rstrip()
        other, message = body.pop(peer), body.pop("message")
        key = (way + told["of"], other)
        last, self._seen[key] = self._seen.get(key), message
        if last is None or self.verbose:
            fields = self._fields(message)
        else:
            changed = {k: v for k, v in message.items() if k not in last or last[k] != v}
            fields = self._fields(changed, empty=True)
        return f"{name} {way} {other}: {told['of']} {fields}".rstrip()

    def _fields(self, body: Mapping[str, Any], *, empty: bool = False) -> str:
        empty = empty or self.verbose
        shown = {k: v for k, v in body.items() if empty or v or type(v) in (int, float)}
        return " ".join(f"{name}={self._short(value)}" for name, value in shown.items())

    def _short(self, value: Any) -> str:
        match value:
            case dict():
                text = "{" + self._fields(value) + "}"
            case list():
                text = "[" + ", ".join(map(self._short, value)) + "]"
            case str():
                return repr(value) if re.search(r"\s|^$", value) else value
            case float():
                text = f"{value:.3f}"
            case _:
                text = str(value)
        return text if self.verbose or len(text) <= LENGTH else f"{text[:LENGTH]}..."

    def _difference(self, step: Decision) -> Iterator[str]:
        now = list(step.effects)
        if step.error:
            yield f"now: the core fails: {step.error}"
        if step.recorded is None:
            yield "recorded: what repeats the last effects; of these a checksum was kept"
            yield from (f"+ {self._whole(effect)}" for effect in now)
            return
        recorded = list(step.recorded)
        same = 0
        while recorded[same : same + 1] and recorded[same : same + 1] == now[same : same + 1]:
            yield f"  {self._whole(recorded[same])}"
            same += 1
        for i in range(same, max(len(recorded), len(now))):
            before, after = recorded[i : i + 1], now[i : i + 1]
            yield from (f"- {text}" for text in self._beside(before, after))
            yield from (f"+ {text}" for text in self._beside(after, before))
        yield "(- recorded, + now)"

    def _beside(self, one: Iterable[dict[str, Any]], other: list[dict[str, Any]]) -> Iterator[str]:
        """An effect; if the other is of the same kind, no more than what is not the same."""
        for effect in one:
            kind = effect["effect"], effect.get("of")
            if not other or (other[0]["effect"], other[0].get("of")) != kind:
                yield self._whole(effect)
                continue
            there = dict(_flat(other[0]["with"]))
            mine = {k: v for k, v in _flat(effect["with"]) if k not in there or there[k] != v}
            if not mine and effect == other[0]:
                continue
            fields = " ".join(f"{name}={self._short(value)}" for name, value in mine.items())
            yield " ".join(filter(None, (*kind, fields)))

    def _whole(self, effect: Mapping[str, Any]) -> str:
        kind = filter(None, (effect["effect"], effect.get("of"), self._fields(effect["with"])))
        return " ".join(kind)


def _plain(step: Decision) -> dict[str, Any]:
    from hpclaunch.system.logs.journal import records

    return records.plain("event", step.event)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        yield name, value
        return
    for key, part in value.items():
        yield from _flat(part, f"{name}.{key}" if name else str(key))


def _changes(before: Position, after: Position) -> str:
    told = []
    for name in ("stage", "phase", "round"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new and (new or name == "round"):
            told.append(f"{name} {old} -> {new}" if old != "" else f"leads, stage {new}")
        elif old != new:
            told.append("leads no more")
    return ", ".join(told)


def _where(position: Position) -> str:
    stage = f"stage {position.stage}, " if position.stage else ""
    return f"{stage}phase {position.phase}, round {position.round}"


def _length(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))
