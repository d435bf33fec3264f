"""What the head knows of the agents, itself included: the newest report of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..consensus.presence import Presence
from ..protocol.messages import Report
from ..protocol.model import Assignment, Job, Phase, Place
from ..protocol.timing import Timing
from ..protocol.wording import some

NAMES = 8  # hosts named in a line before it says "and so many more"


class Peer:
    """One agent as the head knows it; `report` is None until it is heard."""

    def __init__(self, place: Place, timing: Timing) -> None:
        self.place = place
        self.presence = Presence(timing)
        self.report: Report | None = None
        self.assignment: Assignment | None = None
        self.cordoned = ""  # why a spare is to be preferred to its node

    @property
    def lost(self) -> str:
        """Why it was given up; "" while it was not."""
        return self.presence.why

    @property
    def unfit(self) -> str:
        """Why its node is cordoned for good."""
        return "" if self.report is None else self.report.unfit

    @property
    def out(self) -> str:
        """Why its node can have no workers."""
        return self.lost or self.unfit or self.cordoned

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
            self.presence.start_anew()
            known = None
        if known is not None and report.serial <= known.serial:
            return False
        self.presence.hear(now, term=report.term, answers=report.heard if follows else None)
        self.report = report
        return True

    @property
    def has_workers(self) -> bool:
        """Or may have: it was not heard."""
        busy = (Phase.RUNNING, Phase.STOPPING)
        return self.report is None or self.report.phase in busy

    @property
    def can_come_back(self) -> bool:
        """It was given up, is heard again, and has no workers any more."""
        idle = self.report is not None and self.report.phase in (Phase.PREPARING, Phase.IDLE)
        return bool(self.lost) and idle

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
        self._peers = [Peer(place, job.timing) for place in job.places]
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
        living = (p.report for p in self._peers if not p.presence.is_dead)
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
    def unheard(self) -> list[Peer]:
        """Those who have never been."""
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
