"""What the head knows of the agents, itself included: the newest report of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..consensus.contact import Contact, Echo, evidence, lost_at
from ..protocol.messages import Report
from ..protocol.model import Assignment, Job, Phase, Place
from ..protocol.wording import some

NAMES = 8  # hosts named in a line before it says "and so many more"


@dataclass(slots=True)
class Peer:
    """One agent; `report` is None until it is heard, `lost` says why it was given up, and `gone`
    that it will not come back."""

    place: Place
    contact: Contact = field(default_factory=Contact)
    report: Report | None = None
    assignment: Assignment | None = None
    cordoned: str = ""  # why a spare is to be preferred to it
    lost: str = ""
    gone: bool = False
    kept_word: bool = False  # it died while it followed us, and has followed nobody else
    muted: float | None = None  # since when its lease is not renewed: nothing reaches it
    echo: Echo = field(default_factory=Echo)  # of the orders

    @property
    def unfit(self) -> str:
        """Why its node is to be set aside."""
        return "" if self.report is None else self.report.unfit

    @property
    def out(self) -> str:
        """Why its node can have no workers."""
        return self.lost or self.unfit or self.cordoned

    def deadline(self, job: Job) -> float:
        """When to look at it again, if nothing more is heard: `inf` for one that was never."""
        if self.lost:
            return math.inf
        if self.gone:
            return -math.inf
        at = lost_at(self.contact, job)
        if self.muted is not None:
            return min(at, self.muted + job.timing.loss)
        return min(at, self._unanswered_at(job))

    def look(self, now: float, job: Job) -> bool:
        """Whether it has just been lost. One that is heard, but answers nothing, is lost as well,
        once its lease is over: it is renewed no more.
        """
        if now < self.deadline(job):
            return False
        silent = self.gone or now >= lost_at(self.contact, job)
        if not silent and self.muted is None:
            self.muted = now
            return False
        self.lost = f"the agent on {self.host} was lost: {self._evidence(now, job)}"
        return True

    def die(self, now: float, job: Job) -> bool:
        """It is proven dead; returns whether that is news."""
        if self.gone or not (self.lost or self.contact.closed is not None or self.report is None):
            return False  # it has been heard since
        promised = self.echo.at is not None and now < self.echo.at + job.timing.vote_lease
        self.gone, self.kept_word = True, promised
        return True

    def _unanswered_at(self, job: Job) -> float:
        """An answer comes with a beat of its own."""
        return (
            math.inf
            if self.echo.at is None
            else self.echo.at + job.timing.loss + 2 * job.timing.beat
        )

    def _evidence(self, now: float, job: Job) -> str:
        if not self.gone and now < lost_at(self.contact, job):
            return "nothing reaches it"
        return evidence(self.contact, self.gone, now)

    @property
    def host(self) -> str:
        """As the agent itself calls it, which outside of Slurm nobody knows beforehand."""
        return self.place.host if self.report is None else self.report.host

    def accept(self, report: Report, now: float, *, follows: bool = True) -> bool:
        """Note a report; False for one that is old, or from a start of the agent that is over. One
        that follows another head answers the orders of that one.

        Two launches in one job step have the same keys: an agent of the second may meet the head
        of the first while that is still leaving, and must not be taken for the one it replaces.
        """
        known = self.report
        if known is not None and report.incarnation != known.incarnation:
            if not self.lost:
                return False
            self.contact, self.echo, known = Contact(), Echo(), None
        if known is not None and report.serial <= known.serial:
            return False
        self.contact.hear(now)
        if follows and self.echo.hear(report.heard):
            self.muted = None
        self.report = report
        return True

    @property
    def has_workers(self) -> bool:
        """Or may have: it was not heard."""
        busy = (Phase.RUNNING, Phase.STOPPING)
        return self.report is None or self.report.phase in busy

    def come_back(self) -> bool:
        """One that was lost is heard again, and has no workers any more."""
        idle = self.report is not None and self.report.phase in (Phase.PREPARING, Phase.IDLE)
        if not self.lost or not idle:
            return False
        self.lost, self.gone, self.kept_word, self.muted = "", False, False, None
        return True

    def settled(self, number: int) -> bool:
        """Whether it has no worker of this round, or none that could be ended."""
        report = self.report
        if report is None or report.round != number:
            return report is not None and report.trouble is not None
        ended = report.trouble is not None and report.phase is Phase.PREPARING
        return ended or report.phase in (Phase.IDLE, Phase.STUCK)


class Roster:
    """All agents of the job, in Slurm's order; `me` is the one that leads."""

    def __init__(self, job: Job, me: int) -> None:
        self.me = me
        self._peers = [Peer(place) for place in job.places]
        self.absent = {place.index for place in job.places}  # those who were never heard
        self._possible: frozenset[int] | None = None  # of nodes; None: to be worked out

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
        return [p for p in self._peers if not p.lost and p.place.index != self.me]

    @property
    def has_left(self) -> bool:
        """All who are not proven dead have ended. One that is only silent would take us for dead
        once we are gone, and go on by itself."""
        living = (p.report for p in self._peers if not p.gone)
        return all(report and report.phase is Phase.ENDED for report in living)

    @property
    def nodes(self) -> set[int]:
        """Those that can take part: all of their agents are here, and nothing is against them."""
        return self.possible - {self._peers[i].place.node for i in self.absent}

    @property
    def possible(self) -> set[int]:
        """The nodes that nothing is against, heard of or not yet."""
        if self._possible is None:
            out = {p.place.node for p in self._peers if p.out}
            self._possible = frozenset(p.place.node for p in self._peers) - out
        return set(self._possible)

    def changed(self) -> None:
        """Something has come up against a node, or is over."""
        self._possible = None

    @property
    def missing(self) -> list[Peer]:
        """Those who have never been heard."""
        return [self._peers[i] for i in sorted(self.absent)]


class Laggards:
    """Whether something holds of all of some peers, asked again with every report: those of which
    it did not hold the last time are looked at first, so that thousands of them cost little.
    """

    def __init__(self) -> None:
        self._last: list[Peer] = []

    def none(self, peers: Callable[[], Iterable[Peer]], holds: Callable[[Peer], bool]) -> bool:
        while self._last and holds(self._last[-1]):
            self._last.pop()
        if not self._last:
            self._last = [p for p in peers() if not holds(p)]
        return not self._last


def all_in(phase: Phase, number: int, peers: Iterable[Peer]) -> bool:
    """Whether all of them are in this phase of this round."""
    reports = (p.report for p in peers)  # the first that is not ends it
    return all(r is not None and r.phase is phase and r.round == number for r in reports)


def hosts_of(peers: Iterable[Peer]) -> str:
    """Their names, for a line of text."""
    return some((p.host for p in peers), NAMES)
