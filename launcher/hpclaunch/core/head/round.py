"""One round, from its start until none of its workers is left."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ..protocol.messages import Report
from ..protocol.model import Failure
from . import restarts
from .roster import Peer


class End(Enum):
    """Why a round ends, though not all of its workers have ended with 0."""

    FAILURE = "a worker has failed, or the store"
    VERDICT = "the job is to end"
    MEASURED = "it was the preflight, which is done"
    LOSS = "a node with workers was lost, or is cordoned"
    QUORUM = "the leader lease is over"
    GROWTH = "a larger one can begin"


NOT_THE_PROGRAMS_FAULT = {End.LOSS, End.QUORUM, End.GROWTH}


@dataclass(slots=True)
class Round:
    number: int
    parts: list[Peer]  # those who have workers in it
    groups: list[int]  # their nodes in the order of the ranks
    begun: float
    resumed: str  # the checkpoint that it began with; "" for none
    is_preflight: bool
    failures: dict[int, Failure] = field(default_factory=dict)  # by rank
    ends: set[End] = field(default_factory=set)

    def note(self, peer: Peer, report: Report, now: float) -> None:
        """What an agent says of it."""
        for e in report.exits:
            if restarts.failed(e) and e.rank not in self.failures:
                self.failures[e.rank] = restarts.failure(e, report.round, peer.host, now)

    @property
    def has_failed(self) -> bool:
        """A worker has that nobody had asked to stop."""
        return any(not f.stopped for f in self.failures.values())

    @property
    def cause(self) -> Failure:
        return restarts.in_order(self.failures.values())[0]

    @property
    def is_programs_fault(self) -> bool:
        """A node that is lost is not, though its peers fail of it."""
        return bool(self.failures) and not self.ends & NOT_THE_PROGRAMS_FAULT
