"""The failures of a round: what they cost, and what is said of them."""

from __future__ import annotations

from ..protocol.messages import Report
from ..protocol.model import Failure, Job, Verdict
from . import cordon, restarts
from .advice import advise
from .roster import Peer, Roster


class Failures:
    def __init__(self, job: Job, roster: Roster, budget: restarts.Budget) -> None:
        self.job, self.roster, self.budget = job, roster, budget
        self._of: dict[int, Failure] = {}  # by rank
        self._advised = {""}  # what has been said already

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(self) -> None:
        """A round does."""
        self._of = {}

    def note(self, peer: Peer, report: Report, now: float) -> None:
        """What a report on this round says."""
        for e in report.exits:
            if restarts.failed(e) and e.rank not in self._of:
                self._of[e.rank] = restarts.failure(e, report.round, peer.host, now)

    @property
    def unasked(self) -> bool:
        """A worker has failed that nobody had asked to stop."""
        return any(not f.stopped for f in self._of.values())

    def spend(
        self, groups: list[int], *, saves: bool, resumed: str, begun: float
    ) -> Verdict | None:
        """A restart; how the job ends when there is none. The round had `begun` with what it
        `resumed`."""
        spares = bool(self.roster.nodes.difference(groups))
        return self.budget.spend(
            self._of.values(), saves=saves, spares=spares, resumed=resumed, begun=begun
        )

    def told(self, delay: float) -> list[str]:
        """What the user is to know before the next round, which begins after `delay` seconds."""
        cause = restarts.in_order(self._of.values())[0]
        said = [f"{restarts.how(cause)}; {self.budget.words}"]
        if delay:
            said[0] += f", in {delay:.0f} s since {cause.host} fails again and again"
        if self.budget.suspect:
            said.append(cordon.cordon_host(self.roster, self.budget.suspect))
        # A script that is at fault fails again and again: say what can be done about it now.
        if not cause.signal and (advice := advise(cause)) not in self._advised:
            self._advised.add(advice)
            said.append(f"advice: {advice}")
        return said
