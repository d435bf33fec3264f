"""Rendezvous: the wait until every agent is ready for a round. It decides which agents the head
waits for, and for how long.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from ...consensus.leader_lease import LeaderLease
from ...ending.table import verdict
from ...protocol.effects import Diagnose, Effect, Record
from ...protocol.events import Diagnosed, Event
from ...protocol.facts import AgentsAwaited, NodesAwaited, QuorumAwaited
from ...protocol.model import Job, Origin, Phase, Verdict
from ...protocol.stages import Stage
from ...protocol.wording import count
from ..roster import Awaited, Peer, Roster, hosts_of, names_of
from .stage import JobStage, Step

MOST_REASONS = 3  # that a verdict gives for the nodes that are out


class RendezvousStage(JobStage):
    kind = Stage.RENDEZVOUS

    def event(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Diagnosed):
            return self.state.rendezvous.explain(event, now)
        return []

    def step(self, now: float, *, ticked: bool) -> Step:
        if (ended := self.end_without_round(now, ticked=ticked)) is not None:
            return ended
        state = self.state
        ready, effects = state.rendezvous.can_search(state.next_participants, now)
        if not ready:
            return Step(effects + state.rendezvous.notice(now))
        state.rendezvous.complete()
        return Step(effects, Stage.CHOOSING)

    def _next_deadline(self) -> float:
        state = self.state
        return min(state.end.allocation.stop_at, state.rendezvous.next_deadline())


class Rendezvous:
    """The wait for a round, from `begin` to `complete`.

    At the start of the job, the head waits for agents that were never heard. Later it waits only
    for lost nodes, if too few are left and one of the lost nodes may return.

    Call `update` after every change. `can_begin_round` and `verdict` rely on that.
    """

    def __init__(
        self, job: Job, roster: Roster, lease: LeaderLease, numbers: Iterator[int]
    ) -> None:
        self.job, self.timing = job, job.timing
        self._nodes = job.nodes  # kept here: it is used at every report, and counted anew by Job
        self._most = job.most or self._nodes  # the most nodes that a round can have
        self.fewest = job.fewest or self._most  # the fewest
        self._numbers = numbers
        self._question = 0  # the number of the last question
        self.roster = roster
        self.lease = lease
        self._since = 0.0
        self._short_since = math.inf  # since when nodes, or a quorum, are lacking
        self._notice_at = math.inf
        self._not_idle = Awaited()
        self._with_workers = Awaited()
        self._arrivals_closed = False  # the wait for agents that were never heard is over
        self._taken_over = False  # this head still waits for the voters of the head before it
        self._pause_until = -math.inf  # -inf: there is no pause
        self._search_at = -math.inf  # no search for a checkpoint begins before
        self._awaited_at = -math.inf  # when the head last waited for agents that were never heard

    def begin(self, now: float) -> None:
        self._since = now
        self._short_since = math.inf
        self._notice_at = now + self.timing.first_notice

    def take_over(self, now: float, *, begun: bool) -> None:
        """Begin as a new head. `begun`: the job's first round began under an earlier head."""
        self.begin(now)
        self._arrivals_closed = self._taken_over = begun

    def complete(self) -> None:
        """End the wait. From now on, the head does not wait for agents that were never heard."""
        self._arrivals_closed, self._taken_over = True, False

    def pause(self, until: float, *, search: bool = False) -> None:
        """Let no round begin before `until`, or before the end of an earlier pause: workers of a
        dead agent may be left. `search`: nor let the search for a checkpoint begin, since a node or
        a file system that fails repeatedly is given time to recover.
        """
        self._pause_until = max(self._pause_until, until)
        if search:
            self._search_at = max(self._search_at, until)

    @property
    def paused_until(self) -> float:
        """The end of the pause; `inf` if there is none."""
        return self._pause_until if self.is_paused else math.inf

    def next_deadline(self) -> float:
        deadlines = [self.paused_until]
        if self._short_since == math.inf:
            deadlines.append(self._no_quorum_at)
        if self._awaits_arrivals and not self.is_paused:
            enough = self._enough_agents and len(self.roster.nodes) >= self.fewest
            limit = self._last_call if enough else self.timing.join
            deadlines += [self._notice_at, self._since + limit]
        if self._short_since < math.inf:
            deadlines += [self._notice_at, self._short_since + self.timing.wait]
        return min(deadlines)

    # Which agents and nodes there are

    @property
    def _last_call(self) -> float:
        """The seconds to wait for more than the fewest nodes. If no other head can be elected,
        workers of an earlier start of this head may still run, for the loss timeout at most.
        """
        last_call, loss = self.timing.last_call, self.timing.loss
        return last_call if self.job.elects else max(last_call, loss)

    @property
    def _awaits_arrivals(self) -> bool:
        return not self._arrivals_closed and bool(self.roster.absent)

    @property
    def _enough_agents(self) -> bool:
        """Whether at least as many agents are there as a round needs nodes: a necessary condition,
        and much cheaper to check than the number of nodes.
        """
        return len(self.roster) - len(self.roster.absent) >= self.fewest

    @property
    def _may_return(self) -> list[Peer]:
        """The agents that are lost or were never heard, except for those that are proven dead."""
        peers = (p for p in self.roster if p.is_lost or p.report is None)
        return [p for p in peers if not p.presence.is_dead]

    @property
    def _is_hopeless(self) -> bool:
        """Whether so many nodes can never return that too few are left for a round."""
        never = {p.place.node for p in self.roster if p.unfit or p.presence.is_dead}
        return self._nodes - len(never) < self.fewest

    @property
    def _left(self) -> int:
        """The number of nodes that can take part, or may yet arrive."""
        all_heard = self._arrivals_closed and not self._taken_over
        return len(self.roster.nodes if all_heard else self.roster.possible)

    @property
    def is_short(self) -> bool:
        return self._left < self.fewest

    @property
    def is_paused(self) -> bool:
        return self._pause_until > -math.inf

    @property
    def _no_quorum_at(self) -> float:
        """When the head counts as being without a quorum: the loss timeout after the end of its
        lease. `inf` while it waits for agents that were never heard.
        """
        if self._awaits_arrivals or self.lease.until == math.inf:
            return math.inf
        return max(self._since, self._awaited_at, self.lease.renewable_until) + self.timing.loss

    def _missing_voters(self, now: float) -> list[Peer]:
        return [self.roster[agent] for agent in self.lease.missing(now)]

    # Changes

    def update(self, now: float, *, ticked: bool) -> None:
        """Bring the wait up to date. `ticked`: every message that had arrived has been handled."""
        if self._awaits_arrivals:
            self._awaited_at = now
        if self.is_paused and now >= self._pause_until:
            self._pause_until = -math.inf
        is_held_up = self.is_paused or self._has_old_workers
        if self._awaits_arrivals and self._enough_agents and not is_held_up:
            waited = now - self._since >= self._last_call
            self._arrivals_closed = waited and len(self.roster.nodes) >= self.fewest
        if self.is_short:
            self.roster.uncordon()
        if not self.is_short and self._has_quorum(now, ticked=ticked):
            self._short_since = math.inf
        elif self._short_since == math.inf:
            self._short_since = self._notice_at = now

    def _has_quorum(self, now: float, *, ticked: bool) -> bool:
        """Return whether the head has a quorum. It is assumed to have one until a tick finds that
        it has been without one for the loss timeout.
        """
        if self._short_since < math.inf:
            return self.lease.holds(now)
        return not ticked or now < self._no_quorum_at

    @property
    def _has_old_workers(self) -> bool:
        """Whether workers of an earlier head's round may be left on any node, even on one that
        takes no part in the next round.
        """
        if not self._taken_over:
            return False
        none_left = self._with_workers.none_left(
            lambda: self.roster.present, lambda p: p.is_lost or not p.has_workers
        )
        return bool(self.roster.absent) or not none_left

    # Whether the rendezvous is over

    def can_begin_round(
        self, participants: Callable[[], list[Peer]], now: float
    ) -> tuple[bool, list[Effect]]:
        """Return whether a round of these agents can begin now, and the effects of `can_search`."""
        return (False, []) if self.is_paused else self.can_search(participants, now)

    def can_search(
        self, participants: Callable[[], list[Peer]], now: float
    ) -> tuple[bool, list[Effect]]:
        """Return whether the search for the checkpoint of these agents' round can begin now; the
        leader lease must hold for a while yet. The effects are those of its renewal.
        """
        if now < self._search_at or not self._is_ready(participants):
            return False, []
        effects = [] if self.lease.will_hold(now) else self.lease.renew(now)
        return self.lease.will_hold(now), effects

    def _is_ready(self, participants: Callable[[], list[Peer]]) -> bool:
        """Return whether all these agents are idle, and no other is awaited."""
        if self._has_old_workers:
            return False
        if self._awaits_arrivals and not (
            self._enough_agents and len(self.roster.nodes) >= self._most
        ):
            return False
        if self.is_short:
            return False
        return self._not_idle.none_left(participants, lambda p: p.out or self._is_idle(p))

    def _is_idle(self, peer: Peer) -> bool:
        is_idle = peer.last_report.phase is Phase.IDLE
        return is_idle and self.lease.is_followed_by(peer.presence)

    def verdict(self, now: float) -> Verdict | None:
        """Return how the job ends if there can be no next round, else None."""
        waited = now - self._since
        is_late = self._awaits_arrivals and waited >= self.timing.join
        if is_late and len(self.roster.nodes) < self.fewest:
            why = self._describe_partial_start() or (
                "is hpclaunch running there, and do the hosts see the same secret file?"
            )
            names = names_of(self.roster.unheard)
            return verdict(
                Origin.ABSENT, f"no agent on {names} reported within {waited:.0f} s: {why}"
            )
        over = now >= self._short_since + self.timing.wait
        if self.is_short:
            return self._too_few() if over or self._is_hopeless else None
        return self._no_quorum(now) if over else None

    def _no_quorum(self, now: float) -> Verdict:
        names = names_of(self._missing_voters(now))
        reason = f"no quorum without {names}: they cannot be reached, and may continue the job"
        return verdict(Origin.ABSENT, reason)

    def _too_few(self) -> Verdict:
        # The node that went out last has made them too few: it is named first.
        last, left = self.roster.last_out, self._left
        out = sorted((p for p in self.roster if p.out), key=lambda p: p is not last)
        origin = Origin.NODE_LOST if out[0].is_lost else Origin.NODE_UNFIT
        why = _why_out(out)
        if self._nodes == 1:
            return verdict(origin, why)
        reason = f"{why}; {left} of {self._nodes} nodes are left, and the job needs "
        reason += str(self.fewest)
        if self.fewest == self._nodes:
            reason += f" (--nnodes {max(1, left)}:{self._nodes} continues without lost nodes)"
        return verdict(origin, reason)

    # What is recorded meanwhile

    def notice(self, now: float) -> list[Effect]:
        """Record what the head waits for, or first ask why, if it is time to do so."""
        if now < self._notice_at:
            return []
        self._notice_at = now + self.timing.next_notice
        if self._short_since == math.inf:
            if not self._awaits_arrivals:
                return []
            self._question = next(self._numbers)
            return [Diagnose(self._question)]
        rest = self._short_since + self.timing.wait - now
        if not self.is_short:
            return [Record(QuorumAwaited(hosts_of(self._missing_voters(now)), rest))]
        hosts, here = hosts_of(self._may_return), len(self.roster.nodes)
        return [Record(NodesAwaited(hosts, here, self.fewest, rest))]

    def explain(self, diagnosis: Diagnosed, now: float) -> list[Effect]:
        """Record which agents are still missing, and why, if that is known."""
        unheard = self.roster.unheard
        if diagnosis.number != self._question or not unheard:
            return []
        here = len(self.roster.present) - len(unheard)
        why = self._describe_partial_start() or diagnosis.text
        waited = now - self._since
        return [Record(AgentsAwaited(hosts_of(unheard), here, len(self.roster), waited, why))]

    def _describe_partial_start(self) -> str:
        """Return a line if every missing agent shares its node with one that was heard: hpclaunch
        runs in only some of the node's tasks. Else return "".
        """
        unheard = self.roster.unheard
        heard = Counter(p.place.node for p in self.roster if p.report is not None)
        if not all(peer.place.node in heard for peer in unheard):
            return ""
        node = unheard[0].place.node
        tasks = len(self.roster.of_node(node))
        return (
            f"hpclaunch runs in {heard[node]} of {tasks} tasks on {unheard[0].host}: start it in "
            "all of them, or ask Slurm for --ntasks-per-node=1"
        )


def _why_out(out: list[Peer]) -> str:
    """Say why each of these nodes can have no workers; those with the same reason together."""
    nodes: dict[int, Peer] = {}
    for peer in out:
        nodes.setdefault(peer.place.node, peer)
    alike: dict[str, list[Peer]] = {}
    for peer in nodes.values():
        alike.setdefault(peer.why_lost or peer.unfit, []).append(peer)
    said = [why if p[0].is_lost else f"{names_of(p)}: {why}" for why, p in alike.items()]
    more = sum(len(peers) for peers in [*alike.values()][MOST_REASONS:])
    return "; ".join(said[:MOST_REASONS]) + (f"; and {count(more, 'more node')}" if more else "")
