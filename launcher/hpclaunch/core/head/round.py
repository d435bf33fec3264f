"""One round, from its start until none of its workers is left."""

from __future__ import annotations

import math
from collections import deque

from ..protocol.facts import EndReason, LostNode, RoundEnded, RoundShares
from ..protocol.messages import Report
from ..protocol.model import NO_RANK, Culprit, Failure, Spent
from ..protocol.stages import Stage
from ..protocol.values import field, value
from . import restarts
from .roster import Peer
from .round_shares import RoundPart, together

IN_ROUND = (Stage.RUNNING, Stage.STOPPING)  # the stages in which a round may have workers
MOST_FAILURES = 9  # failures that a fact lists, including the cause
MOST_LOST = 8  # lost nodes that a fact lists
STEPS_KEPT, STEPS_APART = 13, 5.0  # step counts, and seconds between two of them


@value()
class Round:
    number: int
    participants: list[Peer]  # the agents that have workers in it
    groups: list[int]  # their nodes in the order of their ranks
    seats: list[float]  # the seats of each agent of the job when the round began
    begun: float  # when it began
    resumed: str  # the checkpoint that it resumed from; "" for none
    failures: dict[int, Failure] = field(default_factory=dict)  # by rank
    ends: set[EndReason] = field(default_factory=set)
    still_since: float = math.inf  # since when there is no sign of life; inf: not all are suspected
    stopped_at: float = math.inf  # when the head ended it
    cut: float = math.inf  # when the cause of its end happened, as far as known at `stopped_at`
    missed: float = 0.0  # seconds of it in which the head's process did not run
    # The time and the number of steps of the agent of rank 0, over the last minute.
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))

    def note(self, peer: Peer, report: Report, now: float) -> None:
        """Note the failures and the pace in an agent's report on this round."""
        part, progress = peer.assignment, report.progress
        is_first = part is not None and part.first_rank == 0
        is_due = not self.steps or now >= self.steps[-1][0] + STEPS_APART
        if is_first and is_due and progress is not None and progress.steps:
            self.steps.append((now, max(progress.steps)))
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
        ended = all(peer.workers_have_ended_well(self.number) for peer in self.participants)
        return ended and not self.failures

    @property
    def pace(self) -> float | None:
        """Seconds per step, over the last minute; None if that is not known."""
        if len(self.steps) < 2:
            return None
        (since, first), (until, last) = self.steps[0], self.steps[-1]
        return (until - since) / (last - first) if last > first else None

    def hosts(self) -> dict[int, str]:
        """Return the host of each rank."""
        return {rank: peer.host for peer in self.participants for rank in ranks_of(peer)}

    def stop(self, now: float) -> None:
        """Note that the head ends the round now."""
        self.stopped_at, self.cut = now, self.came_to_end(now)

    def miss(self, seconds: float) -> None:
        """Note that the head's process did not run for `seconds`. Workers may have run."""
        if self.stopped_at == math.inf:
            self.missed += seconds

    def came_to_end(self, now: float) -> float:
        """Return when the failure, loss or hang happened that ended the round; now, if none did."""
        failed = (f for f in self.failures.values() if f.culprit is not Culprit.HANG)
        found = [now, self.cut, self.still_since, *(f.at for f in failed if not f.stopped)]
        for peer in self.participants:
            heard = peer.presence.contact.heard
            if peer.is_lost and heard is not None:
                found.append(heard)
        return min(found)

    def ended(self, now: float) -> RoundEnded:
        """Return the fact that records the end of the round, as of now."""
        seen = min(self.stopped_at, now)
        out = (p for p in self.participants if p.is_lost or p.unfit)
        lost = [LostNode(p.host, p.why_lost or p.unfit, is_unfit=not p.is_lost) for p in out]
        failures = restarts.in_order(self.failures.values())
        return RoundEnded(
            self.number,
            self.came_to_end(seen) - now,
            seen - now,
            tuple(sorted(self.ends)),
            tuple(failure.moved(-now) for failure in failures[:MOST_FAILURES]),
            tuple(lost[:MOST_LOST]),
            sum(p.assignment.nproc for p in self.participants if p.assignment is not None),
            self._shares(seen),
        )

    def _shares(self, end: float) -> RoundShares:
        """Return how the seats of its agents spent the round until `end`."""
        begin = self.begun - self.missed
        parts = [
            part_of(peer, self.number, self.seats[peer.place.index], begin)
            for peer in self.participants
        ]
        return together(parts, end - begin, self.came_to_end(end) - begin)


def ranks_of(peer: Peer) -> range:
    """Return the ranks that an agent has in its round."""
    part = peer.assignment
    return range(0) if part is None else range(part.first_rank, part.first_rank + part.nproc)


def part_of(peer: Peer, number: int, seats: float, begin: float) -> RoundPart:
    """Return an agent's part in round `number`, which began at `begin`, from its last report."""
    report = peer.report
    if report is None or report.round != number:
        return RoundPart(Spent(), seats)
    exits = [e for e in report.exits if e.rank != NO_RANK]
    by_itself = [e for e in exits if e.code == 0 and not e.stopped]
    is_done = len(exits) >= report.nproc and len(by_itself) == len(exits)
    heard = peer.presence.contact.heard
    left = () if heard is None else tuple(max(0.0, heard - e.age - begin) for e in by_itself)
    return RoundPart(report.spent, seats, is_done, left, max(1, report.nproc))
