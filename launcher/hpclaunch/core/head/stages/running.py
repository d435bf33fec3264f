"""Running: the workers of a round are watched, and the reasons to end it are collected."""

from __future__ import annotations

from ...ending.table import ENDS, Notice
from ...protocol.effects import Effect, Record
from ...protocol.events import CheckpointChosen, EndFound, Event, Requested, SearchFailed
from ...protocol.facts import CordonKind, DrainFound, EndReason, NodesJoin, RequestGranted
from ...protocol.messages import Report
from ...protocol.model import Grow, Phase, Request
from ...protocol.stages import Stage
from ..cordon import cordon
from ..growth import Growth
from ..hang_watch import HangWatch
from ..head_state import HeadState
from ..orders import Asks
from ..roster import Peer, all_in
from ..round import Round
from ..straggler_watch import Straggler, StragglerWatch
from .stage import InRound, Step


class Running(InRound):
    kind = Stage.RUNNING

    def __init__(self, state: HeadState) -> None:
        super().__init__(state)
        self._growth = Growth(state.job, state.roster, state.numbers)
        self._hangs = HangWatch(state.timing, state.numbers)
        self._stragglers = StragglerWatch(state.timing, state.numbers)
        self._draining: tuple[str, ...] = ()  # hosts, as far as Slurm has said in this round
        self._leaving: set[str] = set()  # those for which the workers are given notice

    def enter(self, now: float) -> list[Effect]:
        super().enter(now)
        state = self.state
        self._stragglers.begin(state.current_round, now)
        state.notices.begin(now)
        state.reconfigure(now)
        return self.order_all(now)

    @property
    def straggler(self) -> Straggler | None:
        return self._stragglers.named

    def report(self, peer: Peer, report: Report) -> None:
        self._stragglers.hear(peer.place.index, report)

    def event(self, event: Event, now: float) -> list[Effect]:
        state = self.state
        match event:
            case CheckpointChosen(number=number) if self._growth.has_asked(number):
                self._growth.chosen(event, now)
                state.notices.learn(event.took)
            case SearchFailed(number=number) if self._growth.has_asked(number):
                self._growth.failed()
            case EndFound(draining=draining):
                return self._note_drains(draining, now)
            case Requested(request=Request.RESTART):
                state.current_round.ends.add(EndReason.ASKED)
                return [Record(RequestGranted(event.request))]
            case Requested(request=Request.NOTICE):
                state.notices.give_soon()
                return [Record(RequestGranted(event.request))]
        return []

    def show(self, now: float) -> list[Effect]:
        """Ask this agent for vitals. The others are asked in answer to their next reports."""
        return [self.order(self.state.roster[self.state.me], now)]

    def _refusal(self, request: Request) -> str:
        has_notice = request is not Request.NOTICE or bool(self.state.timing.notice)
        return "" if has_notice else "its workers are to have no notice (--notice off)"

    def asks(self, peer: Peer, now: float) -> Asks:
        viewers = self.state.viewers.query(now)
        queries = (self._hangs.query, self._stragglers.query, viewers)
        return Asks(
            queries=tuple(query for query in queries if query is not None),
            notice=self.state.notices.offer,
        )

    # Whether to end the round

    def step(self, now: float, *, ticked: bool) -> Step:
        """Collect the reasons to end the round, and end it if there is one that matters."""
        state = self.state
        current, end = state.current_round, state.end
        done = all_in(Phase.DONE, current.number, current.participants)
        # Nobody waits any longer for what they have left behind, and the training is not repeated.
        hurried = EndReason.LOSS in current.ends or state.allocation.is_over(now)
        done = done or (hurried and current.has_ended_well)
        if current.has_failed and not done:  # if all are done, only a store failed: nobody needs it
            current.ends.add(EndReason.FAILURE)
        if not done:
            end.check(now, state.budget.total)
        if end.verdict is not None:
            current.ends.add(EndReason.VERDICT)
            if ENDS[end.verdict.origin].notice is Notice.IN_TIME:
                current.ends.add(EndReason.TIME)
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
        return self._end_well(current, now)

    def _end_well(self, current: Round, now: float) -> Step:
        """End the job, or the round: all workers have ended with 0."""
        state, end = self.state, self.state.end
        searched = end.seek_save(state.search, now)
        if searched is not None:
            return Step(searched)
        origin = end.why_done(now, drains=bool(self._leaving))
        if ENDS[origin].code is None:
            drained, effects = self._relievable(current), list[Effect]()
            if drained:
                effects = cordon(state.roster, drained, CordonKind.DRAINING, state.round)
            return Step(effects, Stage.STOPPING)
        end.conclude(origin, now, state.budget.total)
        return self.end(now)

    @property
    def _only_waits_for_slurm(self) -> bool:
        """All workers are done, and Slurm has yet to say why it has ended them."""
        current = self.state.current_round
        return self.state.allocation.waits_for_slurm and all_in(
            Phase.DONE, current.number, current.participants
        )

    # What is done meanwhile

    def _watch_workers(self, current: Round, now: float) -> list[Effect]:
        is_last = self.state.budget.is_last(saves=self.state.job.saves)
        hang = self._hangs.check(current, now, is_last=is_last)
        before = self._stragglers.named
        straggler = self._stragglers.check(current, now)
        if self._stragglers.named not in (before, None):
            self._growth.begin(since=now)
        if hang is None and straggler is None:
            return []
        return (hang or []) + (straggler or []) + self.order_all(now)

    def _give_notice(self, current: Round, now: float) -> list[Effect]:
        holds = self.state.lease.holds(now)
        said = self.state.notices.check(current, now, holds=holds)
        return [] if said is None else said + self.order_all(now)

    def beat(self, now: float) -> list[Effect]:
        """End the round if it is time to go on with other nodes: with newcomers in a larger one, or
        with a spare in place of a straggler.
        """
        state = self.state
        current, roster = state.current_round, state.roster
        if current.ends or current.has_ended_well:
            return []
        hosts = self._growth.newcomers(current.groups, current.number)
        slow, drained = self._replaceable_straggler(current), self._relievable(current)
        if drained and self._growth.has_new_checkpoint:
            effects = cordon(roster, drained, CordonKind.DRAINING, state.round)
        elif slow and self._growth.has_new_checkpoint:
            effects = cordon(roster, [slow], CordonKind.SLOW, state.round)
        elif hosts and self._growth.is_worthwhile:
            effects = [Record(NodesJoin(tuple(dict.fromkeys(hosts))))]
        elif drained or slow or (hosts and state.job.grow is Grow.CHECKPOINT):
            return self._growth.look(state.search, now)
        else:
            return []
        current.ends.add(EndReason.GROWTH)
        return effects

    def _note_drains(self, hosts: tuple[str, ...], now: float) -> list[Effect]:
        """Slurm drains these nodes: spares take the places of those that are in the round, once
        the workers have saved.
        """
        self._draining = hosts
        current = self.state.current_round
        new = [host for host in self._relievable(current) if host not in self._leaving]
        if not new:
            return []
        self._leaving.update(new)
        self._growth.begin(since=now)
        self.state.notices.give_soon()
        return [Record(DrainFound(tuple(new)))]

    def _relievable(self, current: Round) -> list[str]:
        """The hosts of the round that Slurm drains, as far as there are spares for them now."""
        roster = self.state.roster
        if not (self._draining and self.state.job.saves):
            return []
        fit = {p.place.node for p in roster if p.host not in self._draining}
        spares = (roster.nodes & fit).difference(current.groups)
        used = dict.fromkeys(p.host for p in current.participants if p.host in self._draining)
        return list(used)[: len(spares)]

    def _replaceable_straggler(self, current: Round) -> str:
        """Its host; "" if there is none, or no spare for it."""
        job, roster, named = self.state.job, self.state.roster, self._stragglers.named
        spares = roster.nodes.difference(current.groups)
        if named is None or not (job.replaces_stragglers and job.saves and spares):
            return ""
        return roster[named.agent].host

    # Time

    def next_deadline(self) -> float:
        return min(self.state.lease.renewable_until, super().next_deadline())

    def _next_deadline(self) -> float:
        state = self.state
        if self._only_waits_for_slurm:
            return super()._next_deadline()
        watches = (self._hangs, self._stragglers, state.notices)
        return min(state.allocation.stop_at, *(watch.next_deadline() for watch in watches))
