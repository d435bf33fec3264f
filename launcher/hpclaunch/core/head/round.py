"""One round, from its start until none of its workers is left."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from ..protocol.messages import Report
from ..protocol.model import Failure
from . import restarts
from .roster import Peer


class End(Enum):
    """Why a round ends before the job is done. Where a new one is no fault of the program, it also
    belongs below.
    """

    FAILURE = "a worker or the store has failed"
    VERDICT = "the job is about to end"
    LOSS = "a node with workers was lost, or is cordoned"
    QUORUM = "the leader lease is over"
    GROWTH = "a larger round can begin"
    TIME = "Slurm is about to end the job"
    ASKED = "the user has asked for a restart"


NOT_THE_PROGRAMS_FAULT = {End.LOSS, End.QUORUM, End.GROWTH, End.ASKED}


@dataclass(slots=True)
class Round:
    number: int
    participants: list[Peer]  # the agents that have workers in it
    groups: list[int]  # their nodes in the order of their ranks
    begun: float  # when it began
    resumed: str  # the checkpoint that it resumed from; "" for none
    failures: dict[int, Failure] = field(default_factory=dict)  # by rank
    ends: set[End] = field(default_factory=set)
    still_since: float = math.inf  # since when nothing has moved, if it hangs by all that is known

    def note(self, peer: Peer, report: Report, now: float) -> None:
        """Take in an agent's report on this round."""
        for e in report.exits:
            if restarts.failed(e) and e.rank not in self.failures:
                self.failures[e.rank] = restarts.failure(e, report.round, peer.host, now)

    @property
    def has_failed(self) -> bool:
        """Whether a worker or the store has failed while nobody was stopping it."""
        return any(not f.stopped for f in self.failures.values())

    @property
    def has_ended_well(self) -> bool:
        """Whether all workers have ended with 0. They may have left processes behind."""
        ended = all(peer.workers_have_ended(self.number) for peer in self.participants)
        return ended and not self.failures

    @property
    def cause(self) -> Failure:
        return restarts.in_order(self.failures.values())[0]

    @property
    def is_programs_fault(self) -> bool:
        """Whether the round counts as a restart. It does not if a node was lost, although workers
        on other nodes then fail as a consequence.
        """
        return bool(self.failures) and not self.ends & NOT_THE_PROGRAMS_FAULT
