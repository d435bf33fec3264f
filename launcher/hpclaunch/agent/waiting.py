"""The live line: on a terminal, the leading agent shows what the job waits for."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from ..core.control import Control
from ..core.protocol import events
from ..core.protocol.stages import Stage
from .adapter import Adapter
from .context import Context
from .output import Output

OVER = (Stage.ENDING, Stage.ENDED)
UNSAID = 1.0  # seconds of a wait before the line appears
PERIOD = 1.0  # seconds between two updates of the line, which shows for how long the job has waited
UNKNOWN = 60.0  # seconds without a step after which a script is taken to make no optimizer steps
NARROW = 60  # columns of a terminal of unknown width


class WaitOnTerminal(Adapter):
    """Shows the live line until the workers make steps, and again once their round has ended."""

    def __init__(self, context: Context, control: Control, output: Output) -> None:
        self._control, self._output, self._logs = control, output, context.logs
        self._has_terminal = os.isatty(2) and context.environ.get("TERM") != "dumb"
        self._seen: tuple[Stage, int] | None = None  # the last stage, with the round
        self._over: tuple[Stage, int] | None = None  # a stage in which there is nothing to wait for
        self._since = math.inf  # when this wait began
        self._known_at = 0.0  # when the reason for the wait was last known
        self._due = math.inf
        self._said = ""

    def deadline(self) -> float:
        return self._due

    def update(self, now: float) -> Iterator[events.Event]:
        if not self._has_terminal:
            return
        head = self._control.head
        seen = None if head is None else (head.stage, head.state.round)
        if seen == self._seen and now < self._due:
            return
        self._seen, self._due = seen, math.inf
        snapshot = None if seen == self._over else self._control.snapshot(now)
        if snapshot is None or snapshot.stage in OVER or snapshot.steps:
            self._stop(seen)
            return
        if snapshot.stage is Stage.RUNNING:  # workers report what they do only while somebody looks
            yield events.LookedAt()
        self._since = min(self._since, now)
        _, columns = self._output.size
        from ..observe.live_line import live_line  # needed only on a terminal
        from ..observe.text_style import TextStyle

        text = live_line(snapshot, TextStyle(columns - 1 if columns > 1 else NARROW))
        if text or snapshot.stage is not Stage.RUNNING:
            self._known_at = now
        elif now >= self._known_at + UNKNOWN:
            self._stop(seen)
            return
        self._due = max(now + PERIOD, self._since + UNSAID)
        self._say(text if now >= self._since + UNSAID else "")

    def _stop(self, seen: tuple[Stage, int] | None) -> None:
        """Remove the line until there is another stage or another round."""
        self._over, self._since = seen, math.inf
        self._say("")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._logs.service.live(text)
