"""An agent that is asked to lead: who asks, and whether they are enough."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.configuration import NOBODY, Configuration
from ..protocol.effects import Effect, Send
from ..protocol.messages import Hint, Report
from .follower import Follower
from .quorum import is_quorum


@dataclass(frozen=True, slots=True)
class Election:
    term: int
    configuration: Configuration
    old: int  # the head until now
    gone: frozenset[int]  # agents that are proven dead
    reports: dict[int, Report]


class Candidate:
    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.job, self.line, self.index = follower.job, follower.line, follower.index
        self._asked: dict[int, tuple[float, Report]] = {}

    def hear(self, sender: int, report: Report, now: float) -> list[Effect]:
        """Somebody asks, or takes us for its head."""
        mine = self.follower
        if sender in self._asked and report.serial <= self._asked[sender][1].serial:
            return []
        self._asked[sender] = (now, report)
        if sender == self.index:
            return []
        if not mine.is_lost(now):
            return [Send(sender, Hint(mine.term, led=True))]
        if mine.seeking == NOBODY or report.seeking == NOBODY:
            return []
        if report.seeking < mine.seeking:
            return [Send(sender, Hint(mine.seeking, led=False))]
        return mine.seek(report.seeking, now) if report.seeking > mine.seeking else []

    def elected(self, now: float) -> Election | None:
        mine = self.follower
        if mine.seeking == NOBODY or self.line.head_of(mine.seeking) != self.index:
            return None
        if not mine.is_lost(now):
            return None
        reports = {
            agent: report
            for agent, (at, report) in self._asked.items()
            if report.seeking == mine.seeking
            and report.configuration
            and now < at + self.job.timing.loss
        }
        if self.index not in reports:
            return None
        newest = max(reports.values(), key=lambda r: (r.term, r.version))
        term, configuration = newest.term, newest.configuration
        assert configuration is not None, "who has none does not count"
        old = self.line.head_of(term)
        alone = all(a in reports or a in mine.gone for a in self.line.agents)
        enough = alone or is_quorum(
            configuration, reports.keys(), old if old in mine.gone else None
        )
        if not enough or mine.seeking <= term:
            return None
        return Election(mine.seeking, configuration, old, frozenset(mine.gone), reports)
