"""A new head: what it makes of the last round, of which it knows only what the voters report."""

from __future__ import annotations

from ..consensus.election import Election
from ..protocol.effects import Effect, Say
from ..protocol.messages import Report
from ..protocol.model import Job
from .roster import Roster

PASSED = 2  # the old head may have begun one round more, of which nobody here has heard


class Takeover:
    """From a head that is lost, with the reports of those who voted."""

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
        # What is to be said, until those who voted have answered an order.
        there, here = (job.places[agent].host for agent in (election.old, roster.me))
        self._unsaid: list[Effect] | None = [Say(f"the head on {there} was lost: {here} leads now")]
        self.not_before = self._enrol(election, now)  # may the first round begin

    @property
    def begun(self) -> bool:
        """Whether the job's first round has."""
        return self.configuration.record.round >= 0

    @property
    def next_round(self) -> int:
        return self.configuration.record.round + PASSED if self.begun else 0

    def _enrol(self, election: Election[Report], now: float) -> float:
        """Fill the roster. Returns when the first round may begin: a head that is dead has let
        workers run for the loss timeout at most, and one that was only lost can let none run any
        more.
        """
        timing, roster = self.job.timing, self.roster
        patience = timing.loss if self.old_is_dead else timing.election
        nodes = {self.job.places[agent].node for agent in self.configuration.agents}
        not_before = now + timing.killing
        roster.absent = set()
        for peer in roster:
            index = peer.place.index
            lost = f"the agent on {peer.host} was lost"
            if index in election.votes:
                peer.accept(election.votes[index], now, follows=False)
            elif index in election.dead:
                peer.presence.leave(f"{lost}: it has ended")
            elif index == election.old:
                peer.presence.give_up(f"{lost}: it led, and was silent")
            elif peer.place.node in nodes:
                roster.absent.add(index)
                if self.begun:  # else it may be yet to come
                    peer.presence.expect(now, within=patience)
            else:
                peer.presence.give_up(f"{lost} before")
                not_before = max(not_before, now + timing.loss) if self.old_is_dead else not_before
        roster.changed()
        return not_before

    def groups(self) -> list[int]:
        """The nodes of the last round in the order of the ranks; nobody says which those were that
        are lost, so they are put into the gaps in Slurm's order."""
        roster = self.roster
        reports = [(p.place.node, p.report) for p in roster if p.report is not None]
        last = max(report.round for _, report in reports)
        of = {r.group: node for node, r in reports if r.round == last and r.group >= 0}
        voters = sorted(self.configuration.agents)
        lost = [p.place.node for agent in voters if (p := roster[agent]).lost]
        missing = iter([node for node in lost if node not in of.values()])
        return [of[g] if g in of else next(missing, -1) for g in range(max(of, default=-1) + 1)]

    def say(self, effects: list[Effect], *, confirmed: bool) -> list[Effect]:
        """The user is told nothing before the voters have `confirmed` that this head leads: another
        may have been quicker."""
        if self._unsaid is None:
            return effects
        if confirmed:
            unsaid, self._unsaid = self._unsaid, None
            return unsaid + effects
        self._unsaid += [e for e in effects if isinstance(e, Say)]
        return [e for e in effects if not isinstance(e, Say)]


def after_all(roster: Roster) -> int:
    """The number of a round that is newer than any of which somebody knows."""
    return 1 + max(p.report.round for p in roster if p.report is not None)
