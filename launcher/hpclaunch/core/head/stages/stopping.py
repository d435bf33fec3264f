"""Stopping: the wait until no worker of the round is left; then the job continues, or ends."""

from __future__ import annotations

from ...protocol.effects import Effect, Record
from ...protocol.facts import CordonKind, RestartDecided
from ...protocol.model import Failure
from ...protocol.stages import Stage
from ..cordon import cordon
from ..head_state import HeadState
from ..roster import Awaited
from .ending import end_job
from .stage import JobStage, Step


class Stopping(JobStage):
    kind = Stage.STOPPING

    def __init__(self, state: HeadState) -> None:
        super().__init__(state)
        self._still_stopping = Awaited()

    def enter(self, now: float) -> list[Effect]:
        super().enter(now)
        self.state.current_round.stop(now)
        return self.order_all(now)

    def step(self, now: float, *, ticked: bool) -> Step:
        state = self.state
        current, end = state.current_round, state.end
        if not self._still_stopping.none_left(
            lambda: current.participants,
            lambda p: p.is_lost or p.has_stopped(current.number),
        ):
            return Step()
        if current.has_failed:
            searched = end.workers_failed(now)
            if searched is not None:
                return Step(searched)
        ended = current.ended(now)
        if ended.is_programs_fault and end.verdict is None:
            end.verdict = state.budget.spend(
                current.failures.values(),
                saves=state.job.saves,
                spares=bool(state.roster.nodes.difference(current.groups)),
                resumed=current.resumed,
                begun=current.begun,
            )
        if end.verdict is not None:
            return end_job(self, now)
        state.round += 1
        end.round_ended()
        state.rendezvous.begin(now)
        restarts = self._restart(ended.failures[0], now) if ended.is_programs_fault else []
        return Step([Record(ended), *restarts], Stage.RENDEZVOUS)

    def _restart(self, cause: Failure, now: float) -> list[Effect]:
        """Prepare the restart. A node that fails repeatedly delays it or is cordoned; a file system
        or a network that fails repeatedly delays it.
        """
        state, budget = self.state, self.state.budget
        node_delay = budget.node_delay if state.job.nodes > 1 else 0.0
        outage_delay = budget.outage_delay
        state.rendezvous.pause(now + max(node_delay, outage_delay))
        fact = RestartDecided(
            cause,
            used=budget.used,
            most=budget.most,
            is_last=budget.tally.pending_verdict is not None,
            node_delay=node_delay,
            outage_delay=outage_delay,
        )
        hosts = [budget.suspect] if budget.suspect else []
        return [Record(fact), *cordon(state.roster, hosts, CordonKind.FAILING, state.round)]
