"""What the head knows of the agents, itself included: the newest report of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from . import membership
from .messages import Report
from .model import Assignment, Job, Phase, Place
from .wording import some

NAMES = 8  # hosts named in a line before it says "and so many more"


@dataclass(slots=True)
class Peer:
    """One agent; `report` is None until it is heard, `lost` stays once it is given up."""

    place: Place
    contact: membership.Contact = field(default_factory=membership.Contact)
    report: Report | None = None
    assignment: Assignment | None = None
    lost: bool = False

    @property
    def unfit(self) -> str:
        """Why its node is to be set aside."""
        return "" if self.report is None else self.report.unfit

    @property
    def host(self) -> str:
        """As the agent itself calls it, which outside of Slurm nobody knows beforehand."""
        return self.place.host if self.report is None else self.report.host

    def accept(self, report: Report, now: float) -> bool:
        """Note a report; False for one that is old, or from a start of the agent that is over.

        Two launches in one job step have the same keys: an agent of the second may meet the head
        of the first while that is still leaving, and must not be taken for the one it replaces.
        """
        known = self.report
        if self.lost or (known is not None and report.incarnation != known.incarnation):
            return False
        self.contact.hear(now)
        if known is not None and report.serial <= known.serial:
            return False
        self.report = report
        return True

    def settled(self, number: int) -> bool:
        """Whether it has no worker of this round, or none that could be ended."""
        report = self.report
        if report is None or report.round != number:
            return report is not None and report.trouble is not None
        ended = report.trouble is not None and report.phase is Phase.PREPARING
        return ended or report.phase in (Phase.IDLE, Phase.STUCK)


class Roster:
    """All agents of the job, in Slurm's order; the first is the head."""

    def __init__(self, job: Job) -> None:
        self._peers = [Peer(place) for place in job.places]

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def __getitem__(self, index: int) -> Peer:
        return self._peers[index]

    @property
    def present(self) -> list[Peer]:
        """All that are not lost, heard or not."""
        return [p for p in self._peers if not p.lost]

    @property
    def others(self) -> list[Peer]:
        """Those who are present beside the head."""
        return [p for p in self._peers[1:] if not p.lost]

    @property
    def fit(self) -> list[Peer]:
        """Those who are present on nodes that nothing is against: they take the ranks."""
        return [p for p in self.present if not self.is_aside(p.place.node)]

    def is_aside(self, node: int) -> bool:
        return any(p.unfit for p in self._peers if p.place.node == node)

    @property
    def missing(self) -> list[Peer]:
        """Those who have never been heard."""
        return [p for p in self._peers if p.report is None]


def all_in(phase: Phase, number: int, peers: Iterable[Peer]) -> bool:
    """Whether all of them are in this phase of this round."""
    reports = [p.report for p in peers]
    return all(r is not None and r.phase is phase and r.round == number for r in reports)


def hosts_of(peers: Iterable[Peer]) -> str:
    """Their names, for a line of text."""
    return some((p.host for p in peers), NAMES)
