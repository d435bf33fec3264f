"""On a terminal: one line about what the job waits for, while this agent leads it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping

from ..core.control import Control
from ..core.protocol import events
from ..core.protocol.stages import Stage
from .adapter import Adapter
from .output import Output

OVER = (Stage.ENDING, Stage.ENDED)
UNSAID = 1.0  # seconds of a wait of which nothing is said
PERIOD = 1.0  # seconds: the line says for how long
UNKNOWN = 60.0  # seconds after which workers count as those of a script without optimizer steps
NARROW = 60  # columns of a terminal that does not say how many it has


class WaitOnTerminal(Adapter):
    """Without a terminal, it does nothing. Once the workers make steps, it does nothing until the
    round has ended.
    """

    def __init__(
        self,
        control: Control,
        output: Output,
        environ: Mapping[str, str],
    ) -> None:
        self._control, self._output = control, output
        self._has_terminal = os.isatty(2) and environ.get("TERM") != "dumb"
        self._seen: tuple[Stage, int] | None = None  # the last stage, with the round
        self._over: tuple[Stage, int] | None = None  # one in which there is nothing to wait for
        self._since = math.inf  # when this wait began
        self._known_at = 0.0  # when it was last known what the job waits for
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
        if snapshot.stage is Stage.RUNNING:  # what workers do is told only to those who look
            yield events.LookedAt()
        self._since = min(self._since, now)
        _, columns = self._output.size
        from ..observe.live_line import live_line  # only a terminal pays for it
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
        """Until there is another stage, or another round."""
        self._over, self._since = seen, math.inf
        self._say("")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._output.logs.service.live(text)
