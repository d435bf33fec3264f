"""The stages in which a round has workers: Running, until there is a reason to end the round, and
Stopping, until no worker is left.
"""

from __future__ import annotations

from ...ending.table import ENDS
from ...protocol import events
from ...protocol.effects import Effect, Record
from ...protocol.facts import CordonKind, EndReason, RequestGranted, RestartDecided
from ...protocol.messages import Report
from ...protocol.model import Failure, Phase, Request
from ...protocol.stages import Stage
from ..growth import Growth
from ..hang_watch import HangWatch
from ..head_state import HeadState
from ..orders import Asks
from ..roster import Awaited, Peer
from ..round import Round
from ..straggler_watch import Straggler, StragglerWatch
from .stage import JobStage, Step


class Running(JobStage):
    """The workers are watched, and the reasons to end the round are collected."""

    kind = Stage.RUNNING

    def __init__(self, state: HeadState) -> None:
        super().__init__(state)
        self._growth = Growth(state)
        self._hangs = HangWatch(state.timing, state.numbers)
        self._stragglers = StragglerWatch(state.timing, state.numbers)

    def enter(self, now: float) -> list[Effect]:
        super().enter(now)
        self._stragglers.begin(self.state.current_round, now)
        self.state.end.notices.begin(now)
        return self.order_all(now)

    @property
    def straggler(self) -> Straggler | None:
        return self._stragglers.named

    def report(self, peer: Peer, report: Report) -> None:
        self._stragglers.hear(peer.place.index, report)

    def event(self, event: events.Event, now: float) -> list[Effect]:
        state = self.state
        match event:
            case events.CheckpointChosen() | events.SearchFailed():
                self._growth.hear_search(event, now)
            case events.LookedAt():  # others are asked for vitals in answer to their next reports
                return [self.order(state.roster[state.me], now)]
            case events.EndFound():
                return self._growth.relieve_drained(now)
            case events.Requested(request=Request.RESTART):
                state.current_round.ends.add(EndReason.ASKED)
                return [Record(RequestGranted(event.request))]
            case events.Requested(request=Request.NOTICE):
                state.end.notices.give_soon()
                return [Record(RequestGranted(event.request))]
        return []

    def _refusal(self, request: Request) -> str:
        has_notice = request is not Request.NOTICE or bool(self.state.timing.notice)
        return "" if has_notice else "its workers get no notice (--notice off)"

    def asks(self, peer: Peer, now: float) -> Asks:
        viewers = self.state.viewers.query(now)
        queries = (self._hangs.query, self._stragglers.query, viewers)
        return Asks(
            queries=tuple(query for query in queries if query is not None),
            notice=self.state.end.notices.offer,
        )

    # Whether to end the round

    def step(self, now: float, *, ticked: bool) -> Step:
        """Collect the reasons to end the round, and end it if there is one that matters."""
        state = self.state
        current, end = state.current_round, state.end
        done = self._is_done
        # After a loss or when time is up, workers that ended with 0 are done despite leftovers.
        hurried = EndReason.LOSS in current.ends or end.allocation.is_over(now)
        done = done or (hurried and current.has_ended_well)
        if current.has_failed and not done:  # if all are done, a failed store is not needed
            current.ends.add(EndReason.FAILURE)
        if not done:
            end.check(now)
        if end.verdict is not None:
            current.ends.add(EndReason.VERDICT)
            if (reason := ENDS[end.verdict.origin].reason) is not None:
                current.ends.add(reason)
        if ticked and now >= state.lease.renewable_until:
            current.ends.add(EndReason.QUORUM)
        # Once all the work is done, a loss changes nothing, and no larger round is needed.
        moot = {EndReason.LOSS, EndReason.GROWTH} if done else set()
        if current.ends - moot:
            return Step(next=Stage.STOPPING)
        if not done or not state.lease.holds(now):
            return Step(self._watch_workers(current, now) + self._give_notice(current, now))
        if self._only_waits_for_slurm:
            return Step()
        return self._end_well(now)

    def _end_well(self, now: float) -> Step:
        end = self.state.end
        searched = end.seek_save(now)
        if searched is not None:
            return Step(searched)
        origin = end.why_done(now, drains=self._growth.drains)
        if ENDS[origin].code is None:
            self.state.current_round.ends.add(EndReason.GROWTH)
            return Step(self._growth.cordon_drained(), Stage.STOPPING)
        end.conclude(origin, now)
        return self.end_job(now)

    @property
    def _is_done(self) -> bool:
        current = self.state.current_round
        reports = (peer.last_report for peer in current.participants)
        return all(r.phase is Phase.DONE and r.round == current.number for r in reports)

    @property
    def _only_waits_for_slurm(self) -> bool:
        """Whether all workers are done, and Slurm has yet to say what its SIGTERM meant."""
        return self.state.end.allocation.waits_for_slurm and self._is_done

    # What is done meanwhile

    def _watch_workers(self, current: Round, now: float) -> list[Effect]:
        is_last = self.state.budget.is_last(saves=self.state.job.saves)
        hang = self._hangs.check(current, now, is_last=is_last)
        before = self._stragglers.named
        straggler = self._stragglers.check(current, now)
        if self._stragglers.named not in (before, None):
            self._growth.await_save(now)
        if hang is None and straggler is None:
            return []
        return (hang or []) + (straggler or []) + self.order_all(now)

    def _give_notice(self, current: Round, now: float) -> list[Effect]:
        holds = self.state.lease.holds(now)
        given = self.state.end.notices.check(current, now, holds=holds)
        return [] if given is None else given + self.order_all(now)

    def beat(self, now: float) -> list[Effect]:
        current = self.state.current_round
        if current.ends or current.has_ended_well:
            return []
        return self._growth.beat(self._stragglers.named, now)

    # Time

    def next_deadline(self) -> float:
        return min(self.state.lease.renewable_until, super().next_deadline())

    def _next_deadline(self) -> float:
        end = self.state.end
        if self._only_waits_for_slurm:
            return super()._next_deadline()
        watches = (self._hangs, self._stragglers, end.notices)
        return min(end.allocation.stop_at, *(watch.next_deadline() for watch in watches))


class Stopping(JobStage):
    """The wait until no worker of the round is left; then the job continues, or ends."""

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
            )
        if end.verdict is not None:
            return self.end_job(now)
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
        state.rendezvous.pause(now + max(node_delay, outage_delay), search=True)
        fact = RestartDecided(
            cause,
            used=budget.used,
            most=budget.most,
            is_last=budget.tally.pending_verdict is not None,
            node_delay=node_delay,
            outage_delay=outage_delay,
        )
        hosts = [budget.suspect] if budget.suspect else []
        return [Record(fact), *state.roster.cordon(hosts, CordonKind.FAILING, state.round)]
