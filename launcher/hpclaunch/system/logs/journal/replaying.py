"""A journal, read again: its core is made anew, told the same, and compared in what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hpclaunch.core.control import Control
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.effects import Effect

from ...shared import bounded_json
from . import records, snapshot
from .records import JournalError

LATEST = 1e11  # seconds since the epoch, as of the ledger
# What reading a damaged journal, or one that somebody has made up, may raise.
DAMAGED = (
    *(ValueError, KeyError, TypeError, IndexError, AttributeError),
    *(OverflowError, RecursionError, MemoryError),
)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a core stands."""

    phase: str  # of this agent's own workers
    round: int
    stage: str = ""  # of the job, as long as this agent leads


@dataclass(frozen=True, slots=True)
class NewCore:
    """A core is there. `resumed`: from a state in the middle of a run."""

    time: float
    now: float
    core: Control
    version: str  # of hpclaunch, that has written this
    resumed: bool
    quiet: float  # seconds before it that were not kept, since nothing happened in them


@dataclass(frozen=True, slots=True)
class Noted:
    time: float
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Decision:
    """One event. The effects are as lines of the journal have them."""

    line: int
    time: float
    now: float
    event: events.Event
    beat: bool  # it said nothing new, and only the checksum of its effects was kept
    late: float  # seconds since the core wanted to be asked again
    before: Position
    after: Position
    effects: tuple[dict[str, Any], ...]  # of the core of today
    recorded: tuple[dict[str, Any], ...] | None  # None for a beat
    same: bool
    error: str = ""  # with which the core of today failed


@dataclass(frozen=True, slots=True)
class CutOff:
    """The line is no whole one: the node went down, or this is a copy of a file in use."""

    line: int


Happening = NewCore | Noted | Decision | CutOff


@dataclass(slots=True)
class _Told:
    """An event whose effects are yet to be read."""

    line: int
    time: float
    now: float
    event: events.Event
    effects: list[dict[str, Any]] = field(default_factory=list)
    checksum: int | None = None


def replay(lines: Iterable[bytes]) -> Iterator[Happening]:
    """Of all runs in a file. Raises JournalError for what cannot be replayed."""
    return _Replay().run(lines)


class _Replay:
    def __init__(self) -> None:
        self._core: Control | None = None
        self._last: dict[int, events.Received] = {}  # of each sender
        self._now = 0.0  # of the newest line
        self._offset = 0.0  # of the wall clock
        self._told: _Told | None = None

    def run(self, lines: Iterable[bytes]) -> Iterator[Happening]:
        number, damaged = 0, 0
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            told = _parsed(line)
            if told is None and number == 1:
                raise JournalError("this is not a journal of hpclaunch")
            begins = told is not None and ("state" in told or told.get("note") == "core")
            if damaged and not begins:
                raise JournalError(f"line {damaged} is damaged")
            if told is None:
                yield from _checked(number, self._step(whole=False))
                self._core, damaged = None, number
                yield CutOff(number)
                continue
            damaged = 0
            if self._core is None and not begins:
                raise JournalError(
                    "it does not begin with how the core was made: it was written by an older "
                    "version of hpclaunch"
                )
            yield from _checked(number, self._read(number, told))
        if not number:
            raise JournalError("it is empty")
        yield from _checked(number, self._step(whole=False))

    def _read(self, number: int, told: dict[str, Any]) -> Iterator[Happening]:
        if "effect" in told:
            if self._told is not None:
                self._told.effects.append(_as_said(told, "effect"))
            return
        yield from self._step(whole=True)
        if "time" in told:
            self._offset = _seconds(told["time"]) - _seconds(told["now"])
        before, self._now = self._now, _seconds(told["now"])
        time = self._now + self._offset
        if told.get("note") == "core":
            _check(told["with"])
            self._core, self._last = records.core(told["with"]["made"]), {}
            yield NewCore(time, self._now, self._core, told["with"]["version"], False, 0.0)
        elif "state" in told:
            _check(told["state"])
            quiet = self._now - before if self._core is not None else 0.0
            self._core, self._last = _state(told["state"]["core"])
            yield NewCore(time, self._now, self._core, told["state"]["version"], True, quiet)
        elif "note" in told:
            yield Noted(time, told["note"], told["with"])
        elif "beats" in told:
            for now, checksum, *message in told["beats"]:
                self._now = _seconds(now)
                event = self._repeated(*message) if message else events.Tick()
                self._told = _Told(number, now + self._offset, now, event, checksum=checksum)
                yield from self._step(whole=True)
        else:
            event = records.event(told)
            if isinstance(event, events.Received):
                self._last[event.sender] = event
            self._told = _Told(number, time, self._now, event)

    def _repeated(self, sender: int, changes: Mapping[str, Any]) -> events.Event:
        last = self._last[sender]
        fields = msgspec.to_builtins(last.message, str_keys=True) | changes
        message = records.message(type(last.message).__name__, fields)
        self._last[sender] = events.Received(sender, message, last.address)
        return self._last[sender]

    def _step(self, *, whole: bool) -> Iterator[Decision]:
        """What was told last, now that all its effects are known; or not all of them, at the end of
        a journal that was cut off."""
        told, self._told = self._told, None
        core = self._core
        if told is None or core is None:
            return
        late = max(0.0, told.now - core.next_deadline())
        before, effects, error = position(core), list[Effect](), ""
        try:
            effects = core.handle(told.event, told.now)
        except Exception as e:
            error = f"{type(e).__name__}: {e}"
        said = tuple(records.plain("effect", effect) for effect in effects)
        recorded = None if told.checksum is not None else tuple(told.effects)
        if recorded is None:
            same = records.checksum(effects) == told.checksum
        else:
            there = len(said) if whole or _ended(recorded) else len(recorded)
            same = said[:there] == recorded
        yield Decision(
            told.line,
            told.time,
            told.now,
            told.event,
            recorded is None,
            late,
            before,
            position(core),
            said,
            recorded,
            same and not error,
            error,
        )


def position(core: Control) -> Position:
    stage = "" if core.head is None else core.head.stage.value
    return Position(core.member.phase.value, core.member.round, stage)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = bounded_json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) and "now" in record else None


def _checked(number: int, happenings: Iterator[Happening]) -> Iterator[Happening]:
    """Yield these happenings. Raises JournalError, with the number of the line, for any fault."""
    try:
        yield from happenings
    except DAMAGED as e:
        raise JournalError(f"line {number} is damaged: {type(e).__name__}: {e}") from e
    except JournalError as e:
        raise JournalError(f"line {number}: {e}") from e


def _seconds(value: float) -> float:
    """Return a time that is possible. Raises JournalError."""
    if not 0 <= value < LATEST:
        raise JournalError(f"{value} is no possible time")
    return value


def _check(begin: Mapping[str, Any]) -> None:
    if begin["format"] != records.FORMAT:
        raise JournalError(
            f"a journal of format {begin['format']}, and this version of hpclaunch reads "
            f"{records.FORMAT}: replay it with hpclaunch {begin['version']}"
        )


def _state(frozen: Any) -> tuple[Control, dict[int, events.Received]]:
    found = snapshot.thaw(frozen)
    if not (isinstance(found, tuple) and isinstance(found[0], Control)):
        raise JournalError("not a state of a core")
    core, last = found
    return core, last


def _as_said(told: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {key: told[key] for key in (kind, "of", "with") if key in told}


def _ended(effects: tuple[dict[str, Any], ...]) -> bool:
    return any(effect["effect"] == "Exit" for effect in effects)
