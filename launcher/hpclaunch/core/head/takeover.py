"""The takeover by a new head: what it learns of the last round from the reports of the voters."""

from __future__ import annotations

from ..consensus.election import Election
from ..protocol import ranges
from ..protocol.effects import Effect, Say
from ..protocol.messages import Report
from ..protocol.model import Job
from .cordon import AGAIN
from .roster import Roster

# Added to the last round that is known: the old head may have begun one that no voter knows of.
ROUNDS_AHEAD = 2


class Takeover:
    """A takeover from a head that is lost, after an election."""

    def __init__(
        self,
        job: Job,
        roster: Roster,
        election: Election[Report],
        now: float,
    ) -> None:
        self.job, self.roster = job, roster
        self.configuration = election.configuration
        self.old_is_dead = election.old in election.dead
        there, here = (job.places[agent].host for agent in (election.old, roster.me))
        # Lines that are held back until a quorum has answered our orders; None: from then on.
        self.said = f"the head on {there} was lost: {here} leads now"
        self._held_back: list[Effect] | None = [Say(self.said)]
        self.not_before = self._fill_roster(election, now)  # when our first round may begin

    @property
    def begun(self) -> bool:
        """Whether the job's first round has begun under another head."""
        return self.configuration.record.round >= 0

    @property
    def is_confirmed(self) -> bool:
        """Whether a quorum has answered our orders."""
        return self._held_back is None

    @property
    def last_round(self) -> int:
        """The last one that is known."""
        return self.configuration.record.round

    @property
    def next_round(self) -> int:
        return self.last_round + ROUNDS_AHEAD if self.begun else 0

    def _fill_roster(self, election: Election[Report], now: float) -> float:
        """Note what the voters know of each agent. Returns when our first round may begin.

        If the old head is dead, agents that nobody has heard may still have workers, for the loss
        timeout at most. If it was only lost, we waited for its leases to end, so they have none.
        """
        timing, roster = self.job.timing, self.roster
        within = timing.loss if self.old_is_dead else timing.election
        nodes = {self.job.places[agent].node for agent in self.configuration.agents}
        not_before = now + timing.killing
        roster.absent = set()
        for index in ranges.parsed(self.configuration.record.cordoned):
            roster[index].cordoned = AGAIN
        for peer in roster:
            index = peer.place.index
            lost = f"the agent on {peer.host} was lost"
            if index in election.votes:
                peer.accept(election.votes[index], now, follows=False)
            elif index in election.dead:
                peer.presence.die(election.dead[index], f"{lost}: it has ended")
            elif index == election.old:
                peer.presence.give_up(f"{lost}: it was the head, and is silent")
            elif peer.place.node in nodes or not self.begun:
                roster.absent.add(index)
                if self.begun:  # before the first round, the agent may not have started yet
                    peer.presence.expect(now, within=within)
            else:
                peer.presence.give_up(f"{lost} under an earlier head")
                not_before = max(not_before, now + timing.loss) if self.old_is_dead else not_before
        roster.changed()
        return not_before

    def groups(self) -> list[int]:
        """Return the nodes of the last round in the order of their ranks.

        No report says which ranks a lost node had. So the lost nodes fill the gaps in Slurm's
        order; -1 stands for a gap that is left.
        """
        roster = self.roster
        reports = [(p.place.node, p.report) for p in roster if p.report is not None]
        last = max(report.round for _, report in reports)
        node_of = {r.group: node for node, r in reports if r.round == last and r.group >= 0}
        voters = sorted(self.configuration.agents)
        lost = [p.place.node for agent in voters if (p := roster[agent]).lost]
        missing = iter([node for node in lost if node not in node_of.values()])
        size = max(node_of, default=-1) + 1
        return [node_of[g] if g in node_of else next(missing, -1) for g in range(size)]

    def hold_back(self, effects: list[Effect], *, confirmed: bool) -> list[Effect]:
        """Hold back lines for the user until a quorum has `confirmed` that this head leads: another
        agent may have been quicker. Returns the effects to carry out now.
        """
        if self._held_back is None:
            return effects
        if confirmed:
            held_back, self._held_back = self._held_back, None
            return held_back + effects
        self._held_back += [e for e in effects if isinstance(e, Say)]
        return [e for e in effects if not isinstance(e, Say)]


def next_unused_round(roster: Roster) -> int:
    """Return the first number that is higher than that of any round an agent has reported."""
    return 1 + max(p.report.round for p in roster if p.report is not None)
