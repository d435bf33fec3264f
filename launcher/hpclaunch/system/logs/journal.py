"""The journal of an agent: the events that its core handled, and the effects that it asked for.

`hpclaunch replay` shows it. One JSON object per line, in `journal.jsonl` of the first agent and
`journal-agent-LABEL.jsonl` of the others; `now` is the monotonic time that the core was given,
`time` that of the wall clock:

    {"time", "now", "note": "core", "with": {...}}       how the core was made; a run begins
    {"time", "now", "event": NAME, "with": {...}}        an event for the core,
    {"time", "now", "effect": NAME, "with": {...}}       what the core asked for, in order,
    {"time", "now", "note": "position", "with": {...}}   and its state, if that has changed
    {"time", "now", "note": NAME, "with": ...}           something else that an incident may need

`with` has the fields of the event or effect, and `of` is the type of the message or fact in it.

Ticks of the clock, and messages that repeat the last one of the same sender, are left out unless
their effects are new. While a job trains, its progress is new every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpclaunch import __version__
from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol.effects import Effect, KeepWorkers, Record, Send
from hpclaunch.core.protocol.events import Event, Received, Tick
from hpclaunch.core.protocol.messages import Message, Order, Report

from ..shared import packing
from .appended_lines import AppendedLines, name_of
from .log_client import LogServiceClient

FORMAT = 4  # of the lines, and of the names in them
WHOLE = False  # whether all events are written, so that a test can feed them to a core again


class Recorder:
    """The lines of a journal, which go to `out`. `clock` is the wall clock."""

    def __init__(
        self, out: Callable[[bytes], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._out = out
        self._clock = clock
        self._news: dict[tuple[str, int], object] = {}  # in the last message from and to each agent
        self._event: tuple[Event, dict[str, float]] | None = None  # its effects are not known yet
        self._position: dict[str, Any] = {}

    def began(self, made: AgentStart, now: float | None = None) -> None:
        """Record how the core was made."""
        self.note("core", {"format": FORMAT, "version": __version__, "made": made}, now)

    def event(self, event: Event, now: float) -> None:
        """Record an event, before the core handles it; `now` is the time that the core is given."""
        self._event = event, self._at(now)

    def effects(self, effects: Sequence[Effect], control: Control) -> None:
        """Record the effects of the last event. `control` is the core after it."""
        assert self._event is not None, "effects follow an event"
        event, at = self._event
        # Every one is checked, since each check remembers the message.
        is_new = [self._is_new_event(event), *map(self._is_new_effect, effects)]
        if WHOLE or any(is_new):
            self._line(at, entry("event", event))
            for effect in effects:
                self._line(at, entry("effect", effect))
        self._event = None
        if (position := _position(control)) != self._position:
            self._position = position
            self._line(at, {"note": "position", "with": position})

    def add_failed_event(self) -> None:
        """Record an event without effects, if the core failed while it handled one."""
        if self._event is not None:
            event, at = self._event
            self._line(at, entry("event", event))
            self._event = None

    def note(self, name: str, value: Any, now: float | None = None) -> None:
        """Record something that the core does not know of, by default as of this moment."""
        at = self._at(time.monotonic() if now is None else now)
        self._line(at, {"note": name, "with": value})

    def _is_new_event(self, event: Event) -> bool:
        if isinstance(event, Received):
            return self._is_new(("from", event.sender), event.message)
        return not isinstance(event, Tick)

    def _is_new_effect(self, effect: Effect) -> bool:
        if isinstance(effect, Send):
            return self._is_new(("to", effect.to), effect.message)
        return not isinstance(effect, KeepWorkers)

    def _is_new(self, way: tuple[str, int], message: Message) -> bool:
        news = message.news if isinstance(message, Report | Order) else message
        before, self._news[way] = self._news.get(way), news
        return before != news

    def _at(self, now: float) -> dict[str, float]:
        return {"time": self._clock(), "now": now}

    def _line(self, at: Mapping[str, float], said: Mapping[str, Any]) -> None:
        self._out(packing.to_json({**at, **said}) + b"\n")


class Journal(Recorder):
    """The journal of an agent, in a file of its log directory."""

    def __init__(self, directory: Path | None, label: str) -> None:
        self.lines = AppendedLines(directory, name_of("journal", label), self._note_gap)
        super().__init__(self.lines.add)

    def finish(self, service: LogServiceClient) -> None:
        """Send the log service all remaining lines. Close the service after this."""
        self.add_failed_event()
        self.lines.finish(service)

    def _note_gap(self, lost: int) -> None:
        self.note("gap", {"lines": lost})


def _position(control: Control) -> dict[str, Any]:
    """Return the state of a core; the stage of the job only as long as this agent leads."""
    stage = "" if control.head is None else control.head.stage.value
    member = control.member
    return {"stage": stage, "phase": member.phase.value, "round": member.round}


def entry(kind: str, value: Event | Effect) -> dict[str, Any]:
    """Return the part of a line that says what happened; `kind` is "event" or "effect"."""
    match value:
        case Received(message=inner) | Send(message=inner) | Record(fact=inner):
            of = {"of": type(inner).__name__}
        case _:
            of = {}
    return {kind: type(value).__name__, **of, "with": value}
