"""A new head: what it makes of the last round, of which it knows only what the others report."""

from __future__ import annotations

from ..consensus.election import Election
from ..protocol.configuration import Configuration
from ..protocol.effects import Effect, Say
from ..protocol.model import Job
from .roster import Roster

PASSED = 2  # the old head may have begun one round more, of which nobody here has heard


def enrol(job: Job, roster: Roster, election: Election, now: float, *, begun: bool) -> float:
    """Fill the roster of a new head with what those who ask for it report. Returns when the first
    round may begin.

    A dead head has let workers run for no longer than the loss time-out. One that was only lost can let
    none run any more.
    """
    dead = election.old in election.gone
    patience = job.timing.loss if dead else job.timing.election
    nodes = {job.places[agent].node for agent in election.configuration.agents}
    not_before = now + job.timing.killing
    roster.absent = set()
    for peer in roster:
        index = peer.place.index
        if index in election.reports:
            peer.accept(election.reports[index], now, follows=False)
        elif index in election.gone:
            peer.lost, peer.gone = f"the agent on {peer.host} was lost: it has ended", True
        elif index == election.old:
            peer.lost = f"the agent on {peer.host} was lost: it led, and was silent"
        elif peer.place.node in nodes:
            roster.absent.add(index)
            if begun:  # else it may be yet to come
                peer.contact.hear(now - job.timing.loss + patience)
        else:
            peer.lost = f"the agent on {peer.host} was lost before"
            not_before = max(not_before, now + job.timing.loss) if dead else not_before
    roster.changed()
    return not_before


def after_all(roster: Roster) -> int:
    """The number of a round that is newer than any of which somebody knows."""
    return 1 + max(p.report.round for p in roster if p.report is not None)


class Unsaid:
    """What the new head has to say, until those who asked for it follow it."""

    def __init__(self) -> None:
        self._kept: list[Effect] | None = None

    def keep(self, first: str) -> None:
        self._kept = [Say(first)]

    def pass_on(self, effects: list[Effect], *, elected: bool) -> list[Effect]:
        if self._kept is None:
            return effects
        if elected:
            kept, self._kept = self._kept, None
            return kept + effects
        self._kept += [e for e in effects if isinstance(e, Say)]
        return [e for e in effects if not isinstance(e, Say)]


def groups(roster: Roster, configuration: Configuration) -> list[int]:
    """The nodes of the last round in the order of the ranks; nobody says which those were that are
    lost, so they are put into the gaps in Slurm's order."""
    reports = [(p.place.node, p.report) for p in roster if p.report is not None]
    last = max(report.round for _, report in reports)
    of = {r.group: node for node, r in reports if r.round == last and r.group >= 0}
    lost = [p.place.node for a in sorted(configuration.agents) if (p := roster[a]).lost]
    missing = iter([node for node in lost if node not in of.values()])
    return [of[g] if g in of else next(missing, -1) for g in range(max(of, default=-1) + 1)]
