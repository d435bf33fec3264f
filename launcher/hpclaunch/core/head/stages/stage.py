"""The base of all stages; and the last one, Ending, to which `end_job` leads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ...protocol.effects import Effect, Record, Send
from ...protocol.events import Event
from ...protocol.facts import JobEnded
from ...protocol.messages import Report
from ...protocol.model import Request
from ...protocol.stages import GOAL, Stage
from ...protocol.values import value
from ..orders import Asks
from ..roster import Peer
from ..round import IN_ROUND
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
        return Step()

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

    # The end of the job

    def end_job(self, now: float) -> Step:
        """Return the step that ends the job once the verdict is final."""
        state = self.state
        asked = state.end.advance(now)
        if asked is not None:  # perhaps to copy what is in the memory of all nodes
            return Step([*state.stagers.lead(), *asked] if asked else [])
        facts = [Record(state.current_round.ended(now))] if self.kind in IN_ROUND else []
        return Step(facts, Stage.ENDING)

    def end_without_round(self, now: float, *, ticked: bool) -> Step | None:
        """Return the step that ends the job if there can be no further round; None if there can."""
        state = self.state
        state.rendezvous.update(now, ticked=ticked)
        state.end.note(state.rendezvous.verdict(now))
        state.end.check(now)
        return None if state.end.verdict is None else self.end_job(now)

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
        return self.state.orders.order(peer, GOAL[self.kind], self.asks(peer, now), now)

    def asks(self, peer: Peer, now: float) -> Asks:
        return Asks()

    def order_all(self, now: float) -> list[Effect]:
        present = self.state.roster.present
        return [self.order(p, now) for p in present if p.report is not None]


class Ending(JobStage):
    """The wait until every agent has the verdict."""

    kind = Stage.ENDING

    def enter(self, now: float) -> list[Effect]:
        super().enter(now)
        state = self.state
        verdict = state.end.verdict
        assert verdict is not None, "a job ends with a verdict"
        unfit = {p.host: p.unfit for p in state.roster if p.unfit}
        fact = JobEnded(state.round, verdict.moved(-now), tuple(unfit.items()))
        return [Record(fact), *self.order_all(now)]

    def order_all(self, now: float) -> list[Effect]:
        # Lost agents are sent the verdict as well: some may be alive.
        return [self.order(p, now) for p in self.state.roster if p.report is not None]

    def step(self, now: float, *, ticked: bool) -> Step:
        left = self.state.roster.all_have_left(but_for=self._never_arrived(now))
        is_over = left or now >= self.next_deadline()
        return Step(next=Stage.ENDED if is_over else None)

    def _never_arrived(self, now: float) -> set[int]:
        """Return the agents that the job began without; none while they may still arrive."""
        state = self.state
        if not state.knows_rounds or now < state.tenure_since + state.timing.last_call:
            return set()
        return state.roster.absent - state.lease.configuration.agents

    def next_deadline(self) -> float:
        return self.since + self.state.timing.goodbye


class Ended(JobStage):
    kind = Stage.ENDED
