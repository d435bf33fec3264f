"""Hangs: all workers of a round show no sign of life, and one of them is at fault."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ..hangs.judgement import Judgement, judge
from ..protocol.effects import Effect, Record
from ..protocol.facts import HangFound
from ..protocol.model import (
    EXIT_HUNG,
    NO_RANK,
    Culprit,
    Evidence,
    Failure,
    Phase,
    Progress,
    Query,
    QueryKind,
    RankState,
)
from ..protocol.timing import Timing
from ..protocol.values import replace
from .round import Round, ranks_of


class HangWatch:
    """The search for a hang in one round. While one worker does something, the others may wait for
    it. Once all are suspected, all agents are asked where their workers are, and the answers are
    judged.
    """

    def __init__(self, timing: Timing, numbers: Iterator[int]) -> None:
        self.timing, self._numbers = timing, numbers
        self.query: Query | None = None  # for evidence, while an answer is awaited
        self._asked_at = math.inf
        self._ended = 0  # how many workers had ended at `_asked_at`
        self._not_before = 0.0  # seconds of stillness before the next query

    def next_deadline(self) -> float:
        return self._asked_at + self.timing.gathering

    def check(self, current: Round, now: float, *, is_last: bool) -> list[Effect] | None:
        """Look for a hang. Return None unless all agents need new orders; then return what to
        record. A hang is noted as a failure of the round.

        `is_last`: no other round could follow. Then a hang is recorded at once, but the round is
        given more time: a stalled file system may recover.
        """
        suspects = _suspects(current)
        current.still_since = max((now - s.still for s in suspects), default=math.inf)
        query = self.query
        another_ended = query is not None and _ended(current) != self._ended
        if not suspects or another_ended:  # a worker has done something
            self.query, self._asked_at, self._not_before = None, math.inf, 0.0
            return None if query is None else []
        still = min(progress.still for progress in suspects)
        if query is None:
            if still < self._not_before:
                return None
            self.query = Query(QueryKind.EVIDENCE, next(self._numbers))
            self._asked_at, self._ended = now, _ended(current)
            return []
        if now < self.next_deadline() and not _has_answers(current, query):
            return None
        self.query, self._asked_at = None, math.inf
        hosts = current.hosts()
        judgement = _judge(current, query, hosts)
        longest = max(progress.longest for progress in suspects)
        usual = max(progress.usual for progress in suspects)
        rank = judgement.culprits[0] if judgement.culprits else NO_RANK
        host = hosts.get(rank, "")
        hang = HangFound(current.number, still, usual, judgement.lines, rank, host)
        if judgement.is_debugged:
            self._not_before = math.inf
            return []
        if still < longest and (is_last or judgement.may_take_long):
            self._not_before = longest
            left = longest - still
            return [] if judgement.may_take_long else [Record(replace(hang, ends_in=left))]
        where = (current.number, rank, host)
        current.failures[rank] = Failure(*where, EXIT_HUNG, 0, now, "", culprit=Culprit.HANG)
        return [Record(hang)]


def _ended(current: Round) -> int:
    """Return the number of workers that have ended."""
    return sum(len(p.last_report.exits) for p in current.participants)


def _has_answers(current: Round, query: Query) -> bool:
    reports = (p.last_report for p in current.participants)
    return all(r.answer(Evidence, query) for r in reports if r.phase is Phase.RUNNING)


def _judge(current: Round, query: Query, hosts: Mapping[int, str]) -> Judgement:
    states: dict[int, RankState] = {}
    gone: set[int] = set()
    for peer in current.participants:
        report = peer.last_report
        answer = report.answer(Evidence, query)
        ended = {e.rank for e in report.exits}
        busy = report.progress is not None and report.progress.busy
        states |= {r: RankState(r, busy=busy) for r in ranks_of(peer) if r not in ended}
        states |= {} if answer is None else {state.rank: state for state in answer.ranks}
        gone |= ended - {NO_RANK}
    return judge(states, gone, hosts)


def _suspects(current: Round) -> list[Progress]:
    """Return the progress of all agents whose workers are not done; [] unless all are suspected."""
    found = []
    for peer in current.participants:
        report = peer.last_report
        if report.round != current.number:
            return []
        if report.phase is Phase.DONE:
            continue
        if report.progress is None or not report.progress.suspected:
            return []
        found.append(report.progress)
    return found
