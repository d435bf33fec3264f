"""The takeover by a new head: what it learns of the last round from the reports of the voters."""

from __future__ import annotations

from ..consensus.election import Election
from ..consensus.leader_lease import LeaderLease
from ..protocol import ranges
from ..protocol.effects import Effect, Record
from ..protocol.facts import EndReason, HeadChanged, LostNode, RoundEnded, RoundShares
from ..protocol.losses import Loss
from ..protocol.messages import Report
from ..protocol.model import Job
from .restarts import failed, failure, in_order
from .roster import Roster
from .round import MOST_FAILURES, shares_of

# Added to the last round that is known: the old head may have begun one that no voter knows of.
ROUNDS_AHEAD = 2


class Takeover:
    def __init__(
        self,
        job: Job,
        roster: Roster,
        election: Election[Report],
        now: float,
        heard: float,
    ) -> None:
        """`heard`: when the old head was heard last."""
        self.job, self.roster = job, roster
        self.configuration = election.configuration
        self.not_before = self._fill_roster(election, now)  # when our first round may begin
        dead = {peer.place.index for peer in roster if peer.presence.is_dead}
        self._predecessors = dead | {election.old}  # agents that cannot have been quicker
        there, here = (job.places[agent].host for agent in (election.old, roster.me))
        ended = self._ended_round(election, now, heard)
        # False if no voter had begun the round that the old head recorded.
        was_running = ended is not None and ended.round == self.configuration.record.round
        changed = HeadChanged(there, here, election.term, heard - now, ended, was_running)
        # Facts that are held back until this head is confirmed, and when each of them was
        # recorded; None once it is confirmed.
        self._held_back: list[tuple[Record, float]] | None = [(Record(changed), now)]

    @property
    def begun(self) -> bool:
        """Whether the job's first round has begun under another head."""
        return self.configuration.record.round >= 0

    @property
    def is_confirmed(self) -> bool:
        """Whether this head certainly leads: a quorum has answered its orders, or all agents have
        ended the job as it ordered.
        """
        return self._held_back is None

    @property
    def next_round(self) -> int:
        return self.configuration.record.round + ROUNDS_AHEAD if self.begun else 0

    def _ended_round(
        self, election: Election[Report], now: float, heard: float
    ) -> RoundEnded | None:
        """Return how the last round ended, as the voters know it; None before the first one."""
        number = max(vote.round for vote in election.votes.values())
        votes = [vote for vote in election.votes.values() if vote.round == number]
        if number < 0:
            return None
        found = [
            failure(each, number, vote.host, now)
            for vote in votes
            for each in vote.exits
            if failed(each)
        ]
        failures = in_order(found)[:MOST_FAILURES]
        at = min([heard, *(each.at for each in failures if not each.stopped)])
        host = self.roster[election.old].host
        lost = LostNode(host, f"the head on {host} was lost", is_unfit=False)
        return RoundEnded(
            number,
            at - now,
            0.0,
            (EndReason.LOSS,),
            tuple(each.moved(-now) for each in failures),
            (lost,),
            shares=self._shares(votes, number, at, now),
        )

    def _shares(
        self, votes: list[Report], number: int, at: float, now: float
    ) -> RoundShares | None:
        """Return how the seats spent the round; None if no voter has reported when it began."""
        elapsed = [vote.spent.elapsed for vote in votes if vote.spent.elapsed is not None]
        if not elapsed:
            return None
        begin, nodes = now - max(elapsed) / 1000, set(self.groups())
        peers = [peer for peer in self.roster if peer.place.node in nodes]
        return shares_of(peers, self.roster.seats, number, begin=begin, end=now, cut=at)

    def _fill_roster(self, election: Election[Report], now: float) -> float:
        """Note what the voters know of each agent. Return when our first round may begin.

        An agent outside the configuration may still have workers, for the loss timeout at most: if
        the old head is known to be dead, the voters did not wait for the worker leases to end.
        """
        timing, roster = self.job.timing, self.roster
        nodes = {self.job.places[agent].node for agent in self.configuration.agents}
        not_before = now + timing.killing
        roster.absent, roster.last_out = set(), roster[election.old]
        roster.recorded_unfit = set(ranges.parsed(self.configuration.record.unfit))
        for cordon in self.configuration.record.cordons:
            for index in ranges.parsed(cordon.agents):
                roster[index].cordoned = cordon.kind
        for peer in roster:
            index = peer.place.index
            if index in election.votes:
                peer.accept(election.votes[index], now, follows=False)
            elif index in election.dead:
                peer.presence.die(election.dead[index], Loss.ENDED)
            elif index == election.old:
                peer.presence.give_up(now, Loss.WAS_HEAD)
            elif peer.place.node in nodes or not self.begun:
                roster.absent.add(index)
                if self.begun:  # before the first round, the agent may not have started yet
                    peer.presence.expect(now)
            else:
                peer.presence.give_up(now, Loss.EARLIER)
                not_before = max(not_before, now + timing.loss)
        roster.changed()
        return not_before

    def groups(self) -> list[int]:
        """Return the nodes of the last round in the order of their ranks.

        The ranks of lost nodes are not known. So these nodes fill the gaps in Slurm's order; -1
        stands for a gap that is left.
        """
        roster = self.roster
        reports = [(p.place.node, p.report) for p in roster if p.report is not None]
        last = max(report.round for _, report in reports)
        node_of = {r.group: node for node, r in reports if r.round == last and r.group >= 0}
        voters = sorted(self.configuration.agents)
        lost = [p.place.node for agent in voters if (p := roster[agent]).is_lost]
        missing = iter([node for node in lost if node not in node_of.values()])
        size = max(node_of, default=-1) + 1
        return [node_of[g] if g in node_of else next(missing, -1) for g in range(size)]

    def all_have_followed(self, lease: LeaderLease) -> bool:
        """Return whether all agents have ended as followers of this head, except for those that
        were dead before.
        """
        return all(
            (peer.presence.is_dead and peer.place.index in self._predecessors)
            or (peer.has_ended and lease.is_followed_by(peer.presence))
            for peer in self.roster
        )

    def hold_back(self, effects: list[Effect], now: float, *, confirmed: bool) -> list[Effect]:
        """Hold back facts until it is `confirmed` that this head leads: another agent may have been
        quicker. Return the effects to carry out now.
        """
        if self._held_back is None:
            return effects
        if confirmed:
            held_back, self._held_back = self._held_back, None
            return [*(Record(each.fact, ago=now - at) for each, at in held_back), *effects]
        self._held_back += [(e, now) for e in effects if isinstance(e, Record)]
        return [e for e in effects if not isinstance(e, Record)]
