"""The base of all stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ...protocol.effects import Effect, Send
from ...protocol.events import Event
from ...protocol.messages import Report
from ...protocol.model import Request
from ...protocol.stages import GOAL, Stage
from ...protocol.values import value
from ..orders import Asks
from ..roster import Peer
from ..straggler_watch import Straggler

if TYPE_CHECKING:
    from ..head_state import HeadState


@value(frozen=True)
class Step:
    """The effects of one step, and the stage that follows; None: the same stage continues."""

    effects: Sequence[Effect] = ()
    next: Stage | None = None


class JobStage:
    """One stage of the job, from `enter` until a `step` names the next one. It owns the timers and
    flags that only matter in this stage.
    """

    kind: ClassVar[Stage]

    def __init__(self, state: HeadState) -> None:
        self.state = state
        self.since = 0.0

    def enter(self, now: float) -> list[Effect]:
        self.since = now
        return []

    def report(self, peer: Peer, report: Report) -> None:
        """Handle a report on the current round."""

    def event(self, event: Event, now: float) -> list[Effect]:
        """Handle an event that stages treat differently."""
        return []

    def step(self, now: float, *, ticked: bool) -> Step:
        """Do what is to be done now. The head calls it until nothing is left to do.

        `ticked`: the event was a tick, so every message that had arrived has been handled.
        """
        raise NotImplementedError

    def beat(self, now: float) -> list[Effect]:
        """Do what is to be done once per beat."""
        return []

    def next_deadline(self) -> float:
        end = self.state.end
        return end.next_deadline() if end.is_waiting else self._next_deadline()

    def _next_deadline(self) -> float:
        """Return the stage's own deadline. It is not used while the end of the job `is_waiting`."""
        return math.inf

    def needs_search(self, number: int) -> bool:
        """Return whether a round can begin only after search `number` is answered."""
        return False

    # People who look at the job, and their requests

    @property
    def straggler(self) -> Straggler | None:
        return None

    def refusal(self, request: Request) -> str:
        """Return why a request of the user cannot be granted now; "" if it can."""
        end = self.state.end
        if request is Request.STOP and end.accepts_stop:
            return ""
        if end.verdict is not None:
            return f"the job is about to end: {end.verdict.reason}"
        return self._refusal(request)

    def _refusal(self, request: Request) -> str:
        """Return why a request about the workers cannot be granted now; "" if it can."""
        return "no round of the training is running"

    # Orders

    def order(self, peer: Peer, now: float) -> Send:
        state, goal = self.state, GOAL[self.kind]
        asks, later = self.asks(peer, now), state.end.allocation.comes_later
        ended = state.end.verdict
        return state.orders.order(peer, goal, state.round, now, ended, asks, later=later)

    def asks(self, peer: Peer, now: float) -> Asks:
        """Return the questions in the order for an agent."""
        return Asks()

    def order_all(self, now: float) -> list[Effect]:
        present = self.state.roster.present
        return [self.order(p, now) for p in present if p.report is not None]
