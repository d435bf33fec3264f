"""What happens to a core, as the lines of its journal; see the package for their form."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpclaunch import __version__
from hpclaunch.core.control import Control
from hpclaunch.core.protocol.effects import Effect, KeepWorkers, Send
from hpclaunch.core.protocol.events import Event, Received, Tick
from hpclaunch.core.protocol.messages import Message

from ...shared import packing
from . import records, snapshot
from .writer import BEATS, NEEDED, NEWS, STATE

STRETCH = 60.0  # seconds from one state to the next, at most,
BYTES = 1 << 20  # and bytes, and twice the size of the state


class Recorder:
    """Lines go to `out`, each behind the mark that tells the writer what to do with it.

    The caller tells of every event before the core handles it, and of the effects at once after;
    `flush` at the end of a turn of its loop. `clock` is the wall clock.
    """

    def __init__(
        self, out: Callable[[bytes], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._out = out
        self._clock = clock
        self._last: dict[int, Received] = {}  # of each sender
        self._told: dict[tuple[str, int], object] = {}  # the last news from and to each agent
        self._event: Event | None = None  # whose effects are yet to come
        self._now = 0.0  # its time
        self._beat: list[Any] | None = None  # what it is as a beat
        self._beats: list[list[Any]] = []  # of this turn
        self._state_at = 0.0
        self._spent = 0  # bytes since the last state
        self._limit = BYTES
        self._interrupted = False

    def began(self, made: Mapping[str, Any], now: float) -> None:
        """`made`: the arguments of `Control`."""
        self._state_at = now
        self.note("core", now, {"format": records.FORMAT, "version": __version__, "made": made})

    def interrupted(self) -> None:
        """Some lines were lost: a state is needed before the next one."""
        self._event, self._interrupted = None, True
        self._beats.clear()

    def event(self, event: Event, now: float, control: Control) -> None:
        """Raises NotPlainError where a state is due and the core has one that cannot be written."""
        late = now >= self._state_at + STRETCH or self._spent >= self._limit
        if late or self._interrupted:
            self._write_state(control, now)
        self._event, self._now, self._beat = event, now, self._as_beat(event)

    def effects(self, effects: Sequence[Effect]) -> None:
        if self._event is None:
            return
        repeats = [self._is_repetition(effect) for effect in effects]
        if self._beat is not None and all(repeats):
            self._beats.append([self._now, records.checksum(effects), *self._beat])
            self._event = None
            return
        at = self._tell_event()
        for effect in effects:
            self._line(NEWS, {**at, **records.entry("effect", effect)})

    def note(self, name: str, now: float, value: Any) -> None:
        """Something that the core does not know of."""
        self._write_beats()
        self._line(NEWS, {"time": self._clock(), "now": now, "note": name, "with": value})

    def flush(self) -> None:
        """Also an event in which the core failed, so that there are no effects."""
        if self._event is not None:
            self._tell_event()
        self._write_beats()

    def _tell_event(self) -> dict[str, Any]:
        """Returns what the lines of its effects begin with."""
        assert self._event is not None, "the caller has told of it"
        self._write_beats()
        at = {"time": self._clock(), "now": self._now}
        self._line(NEWS, {**at, **records.entry("event", self._event)})
        self._event = None
        return at

    def _as_beat(self, event: Event) -> list[Any] | None:
        """None for one that says something new."""
        if isinstance(event, Tick):
            return []
        if not isinstance(event, Received):
            return None
        last, self._last[event.sender] = self._last.get(event.sender), event
        is_new = self._is_new(("from", event.sender), event.message)
        if last is None or type(last.message) is not type(event.message):
            return None
        if is_new or last.address != event.address:
            return None
        return [event.sender, records.changes(last.message, event.message)]

    def _is_repetition(self, effect: Effect) -> bool:
        """And no news for the one that it goes to."""
        if isinstance(effect, Send):
            return not self._is_new(("to", effect.to), effect.message)
        return isinstance(effect, KeepWorkers)

    def _is_new(self, way: tuple[str, int], message: Message) -> bool:
        news = (type(message), message.news)
        before, self._told[way] = self._told.get(way), news
        return before != news

    def _write_state(self, control: Control, now: float) -> None:
        self._write_beats()
        state = snapshot.freeze((control, self._last))
        mark, self._interrupted = NEEDED if self._interrupted else STATE, False
        told = {"format": records.FORMAT, "version": __version__, "core": state}
        size = self._line(mark, {"time": self._clock(), "now": now, "state": told})
        self._state_at, self._spent = now, 0
        self._limit = BYTES + 2 * size

    def _write_beats(self) -> None:
        if self._beats:
            self._line(BEATS, {"now": self._beats[0][0], "beats": self._beats})
            self._beats = []

    def _line(self, mark: bytes, told: dict[str, Any]) -> int:
        data = mark + packing.to_json(told) + b"\n"
        self._spent += len(data)
        self._out(data)
        return len(data)
