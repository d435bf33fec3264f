"""The last rounds that ended before their workers were done, as `hpclaunch status` shows them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..core.head.restarts import how
from ..core.protocol import facts
from ..core.protocol.facts import EndReason
from ..core.protocol.values import replace
from .console import words

if TYPE_CHECKING:
    from ..core.snapshot.job_snapshot import PastRound

MOST = 8  # rounds
REASONS = {
    EndReason.FAILURE: "a worker or the store has failed",
    EndReason.VERDICT: "the job is about to end",
    EndReason.LOSS: "a node with workers was lost, or is cordoned",
    EndReason.QUORUM: "the leader lease is over",
    EndReason.GROWTH: "a larger round can begin",
    EndReason.TIME: "Slurm is about to end the job",
    EndReason.ASKED: "the user has asked for a restart",
}


class PastRounds:
    """A fold over the facts that this agent records while it leads: anew in each tenure."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, PastRound]] = deque(maxlen=MOST)

    def note(self, fact: facts.Fact, now: float) -> None:
        """Note a fact that was recorded now, in seconds."""
        if isinstance(fact, facts.HeadChanged | facts.HeadDeposed):
            self._rounds.clear()
        match fact:
            case facts.RoundEnded(round=number, ranks=ranks) if fact.is_early:
                self._keep(number, ranks, _why(fact), now, is_fault=fact.is_programs_fault)
            case facts.HeadChanged(round=number) if number >= 0:
                self._keep(number, 0, words(fact), now, is_fault=False)

    def _keep(self, number: int, ranks: int, why: str, now: float, *, is_fault: bool) -> None:
        from ..core.snapshot.job_snapshot import PastRound  # no start of an agent pays for it

        self._rounds.append((now, PastRound(number, 0.0, ranks, why, is_fault=is_fault)))

    def rounds(self, now: float) -> tuple[PastRound, ...]:
        """Return the rounds, the newest last."""
        return tuple(replace(each, ended=now - at) for at, each in self._rounds)


def _why(end: facts.RoundEnded) -> str:
    if end.is_programs_fault:
        return how(end.failures[0])
    if EndReason.LOSS in end.reasons and end.lost:
        return "; ".join(
            f"{lost.host} is cordoned: {lost.why}" if lost.is_unfit else lost.why
            for lost in end.lost
        )
    return "; ".join(sorted(REASONS[reason] for reason in end.reasons))
