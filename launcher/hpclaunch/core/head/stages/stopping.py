"""Stopping: the wait until no worker of the round is left; then the job goes on, or ends."""

from __future__ import annotations

from ...protocol.effects import Effect, Record
from ...protocol.facts import CordonKind, RestartDecided
from ...protocol.stages import Stage
from ..cordon import cordon
from ..course import Course
from ..roster import Awaited
from ..round import Round
from .stage import InRound, Step


class Stopping(InRound):
    kind = Stage.STOPPING

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self._still_stopping = Awaited()

    def enter(self, now: float) -> list[Effect]:
        super().enter(now)
        self.course.current_round.stop(now)
        return self.order_all(now)

    def step(self, now: float, *, ticked: bool) -> Step:
        course = self.course
        current, end = course.current_round, course.end
        if not self._still_stopping.none_left(
            lambda: current.participants,
            lambda p: bool(p.lost) or p.has_stopped(current.number),
        ):
            return Step()
        if current.has_failed:
            searched = end.workers_failed(course.search, now, course.budget.total)
            if searched is not None:
                return Step(searched)
        if current.is_programs_fault and end.verdict is None:
            end.verdict = course.budget.spend(
                current.failures.values(),
                saves=course.job.saves,
                spares=bool(course.roster.nodes.difference(current.groups)),
                resumed=current.resumed,
                begun=current.begun,
            )
        if end.verdict is not None:
            return self.end(now)
        course.round += 1
        end.round_ended()
        course.rendezvous.begin(now)
        ended: list[Effect] = [Record(current.ended(now))]
        restarts = self._restart(current, now) if current.is_programs_fault else []
        return Step(ended + restarts, Stage.RENDEZVOUS)

    def _restart(self, failed: Round, now: float) -> list[Effect]:
        """Prepare the restart to come. A node that fails again and again delays it, or is cordoned;
        so does a file system or a network that does.
        """
        course, budget = self.course, self.course.budget
        node_delay = budget.node_delay if course.job.nodes > 1 else 0.0
        outage_delay = budget.outage_delay
        course.rendezvous.pause(now + max(node_delay, outage_delay))
        fact = RestartDecided(
            failed.cause.moved(-now),
            used=budget.used,
            most=budget.most,
            is_last=budget.tally.pending_verdict is not None,
            node_delay=node_delay,
            outage_delay=outage_delay,
        )
        if not budget.suspect:
            return [Record(fact)]
        hosts, kind = [budget.suspect], CordonKind.FAILING
        return [Record(fact), *cordon(course.roster, hosts, kind, course.round)]
