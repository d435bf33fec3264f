"""Hangs: all workers of a round stand still, and one of them is at fault."""

from __future__ import annotations

import math

from ..hangs.judgement import Judgement, judge
from ..hangs.suspicion import PATIENCE
from ..protocol.effects import Effect, Say
from ..protocol.messages import Report
from ..protocol.model import (
    EXIT_HUNG,
    NO_RANK,
    Culprit,
    Evidence,
    Failure,
    Phase,
    Progress,
    RankState,
)
from ..protocol.timing import Timing
from .round import Round


class HangWatch:
    """All workers are suspected or none: one that does something may be what the others wait for.
    Then all agents are asked where their workers are, and the answers are judged.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.gather = 0  # the number of the evidence that is asked for; 0: none
        self._numbers = 0
        self._asked_at = math.inf
        self._not_before = 0.0  # seconds of stillness; with less, it was judged already

    def forget(self) -> None:
        """The workers do something, or are new."""
        self.gather, self._asked_at, self._not_before = 0, math.inf, 0.0

    def next_deadline(self) -> float:
        return self._asked_at + self.timing.gathering

    def check(self, current: Round, now: float) -> list[Effect] | None:
        """Return what to say, if all agents are to be sent new orders; None if they are not. A hang
        is noted as the failure of the round.
        """
        suspects = _suspects(current)
        if not suspects:
            was_asked = bool(self.gather)
            self.forget()
            return [] if was_asked else None
        still = min(progress.still for progress in suspects)
        if not self.gather:
            if still < self._not_before:
                return None
            self._numbers += 1
            self.gather, self._asked_at = self._numbers, now
            return []
        if now < self.next_deadline() and not self._has_answers(current):
            return None
        self.gather, self._asked_at = 0, math.inf
        judgement = self._judge(current)
        patience = PATIENCE * max(progress.limit for progress in suspects)
        if not judgement.is_sure and still < patience:
            self._not_before = patience
            return []
        usual = max(progress.usual for progress in suspects)
        failure = _failure(current, judgement, now)
        current.failures[failure.rank] = failure
        where = f"where all of them are: round-{current.number}/evidence in the log directory"
        return [Say(_account(judgement, still, usual, where))]

    def _has_answers(self, current: Round) -> bool:
        reports = [p.report for p in current.participants]
        return all(self._answer(r) for r in reports if r and r.phase is Phase.RUNNING)

    def _answer(self, report: Report) -> Evidence | None:
        found = report.evidence
        return found if found is not None and found.number == self._numbers else None

    def _judge(self, current: Round) -> Judgement:
        states: dict[int, RankState] = {}
        ended: set[int] = set()
        for report in (p.report for p in current.participants if p.report is not None):
            answer = self._answer(report)
            states |= {} if answer is None else {state.rank: state for state in answer.ranks}
            ended |= {e.rank for e in report.exits if e.rank != NO_RANK}
        return judge(states, ended, lambda rank: _host(current, rank))


def _suspects(current: Round) -> list[Progress]:
    """Of the agents whose workers are not done; [] if there is one that is not suspected."""
    found = []
    for peer in current.participants:
        report = peer.report
        if report is None or report.round != current.number:
            return []
        if report.phase is Phase.DONE:
            continue
        if report.progress is None or not report.progress.suspected:
            return []
        found.append(report.progress)
    return found


def _host(current: Round, rank: int) -> str:
    for peer in current.participants:
        part = peer.assignment
        if part is not None and part.first_rank <= rank < part.first_rank + part.nproc:
            return peer.host
    return ""


def _failure(current: Round, judgement: Judgement, now: float) -> Failure:
    rank = judgement.culprits[0] if judgement.culprits else NO_RANK
    host = _host(current, rank)
    return Failure(current.number, rank, host, EXIT_HUNG, 0, now, "", culprit=Culprit.HANG)


def _account(judgement: Judgement, still: float, usual: float, where: str) -> str:
    took = f" (usual: {usual:.1f} s)" if usual else ""
    first = f"no step for {still:.0f} s{took}: the workers hang"
    return "\n  ".join([first, *judgement.lines, where])
