"""The head's book: on what the seats of the job spend their time (`core/ledger`).

It only looks at the head, after each event, and takes part in no decision. All of its times are
those of a real clock: time for which this process did not run is spent as well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..consensus.election import Election
from ..ledger.book import (
    NEVER_SAVED,
    Book,
    Category,
    LedgerEntry,
    Pages,
    SeatSeconds,
    sums,
)
from ..ledger.round_shares import Holder, RoundPart, seats_of, together
from ..protocol.events import CheckpointChosen, Event
from ..protocol.facts import EndReason, LostNode, RoundEnded
from ..protocol.messages import Report
from ..protocol.model import NO_RANK, Doing
from ..protocol.stages import Stage
from ..protocol.values import field, value
from .restarts import failed, failure, in_order
from .round import MOST_FAILURES, Round

if TYPE_CHECKING:
    from .head import Head
    from .roster import Peer

ELAPSED = Doing.NOTHING + 1  # where a report of an agent that seeks a head says it: see `Spent`
NAMED = 64  # nodes


@value()
class _Stretch:
    """A round from its begin until none of its workers is left."""

    round: Round | None  # None: another head has begun it
    number: int
    begin: float
    status: list[Category | None]  # of each agent, when it began
    seats: list[float]
    resumed: float | None  # when its checkpoint was saved
    end: float | None = None  # None: it is running
    cut: float = math.inf  # when something happened that ended it, as far as it was known then
    beside: SeatSeconds = field(default_factory=dict)  # what agents without workers have spent
    stopping: list[LedgerEntry] = field(default_factory=list)  # after its end


class Bookkeeper:
    def __init__(self, head: Head, now: float) -> None:
        self._pages = Pages()
        self._begin = self._since = now
        self._key: tuple[object, ...] = ()
        self._stage = head.stage
        self._status: list[Category | None] = []  # of each agent; None: it takes part in the round
        self._stretch: _Stretch | None = None  # a round until none of its workers is left
        self._saved: float | None = None  # when the checkpoint of the next round was
        self.earlier: Book | None = None  # what the heads before this one have written, if known
        self.changes = 0  # how often something but the time has changed
        self._open(head, now)

    def inherit(self, head: Head, election: Election[Report], now: float, *, heard: float) -> None:
        """The last round of a head that is lost is in this book, from its begin: the agents that
        have voted know all about it. What the old head wrote of it may be lost with it. `heard`:
        when it was last.
        """
        votes = election.votes
        last = max((report.round for report in votes.values()), default=-1)
        running = [r for r in votes.values() if r.round == last and len(r.spent) > ELAPSED]
        if last < 0 or not running:
            return
        groups = set(head.groups)
        status = [None if p.place.node in groups else Category.SPARE for p in head.roster]
        elapsed = max(report.spent[ELAPSED] for report in running) / 1000
        self._begin = begin = now - elapsed
        failures = in_order(
            [
                failure(each, last, report.host, now)
                for report in votes.values()
                if report.round == last
                for each in report.exits
                if failed(each)
            ]
        )
        at = min([heard, *(f.at for f in failures if not f.stopped)])
        self._stretch = _Stretch(None, last, begin, status, [], None, end=now, cut=max(begin, at))
        host = head.roster[election.old].host
        lost = LostNode(host, f"the head on {host} was lost", is_unfit=False)
        ended = (last, at, now, (EndReason.LOSS,), failures[:MOST_FAILURES], (lost,))
        self._pages.note_end(RoundEnded(*ended))

    def note(self, head: Head, event: Event, now: float, missed: float) -> None:
        """After each event. `now` is real time, which is `missed` ahead of the head's clock."""
        if isinstance(event, CheckpointChosen) and head.stage is Stage.CHOOSING:
            self._note_checkpoint(head, event, now)
        here = len(head.roster.absent) if head.knows_rounds else bool(head.roster.absent)
        key = (head.stage, head.round, head.roster.changes, here)
        if key == self._key:
            return
        self._close(head, now, missed)
        self._key, self._since = key, now
        self._open(head, now)
        self.changes += 1

    def note_end(self, end: RoundEnded, now: float) -> None:
        """Note the end of a round, which was recorded now, in real time."""
        if end.is_early:
            self._pages.note_end(end.moved(now))

    def book(self, head: Head, now: float, missed: float) -> Book:
        """As it is now."""
        pages = Pages(list(self._pages.entries), list(self._pages.ends))
        for entry in self._entries(head, now, missed):
            pages.add(entry)
        stopping = None if self._stretch is None else self._stretch.round
        if stopping is not None and stopping.is_stopped:
            end = stopping.ended(now - missed)
            pages.ends += [end.moved(now)] if end.is_early else []
        names = [peer.host for peer in head.roster if peer.report is not None]
        nodes = tuple(dict.fromkeys(names))[:NAMED]
        entries, ends = tuple(pages.entries), tuple(pages.ends)
        term = head.lease.tenure
        seat = (
            "GPU" if any(p.report is not None and p.report.gpus for p in head.roster) else "worker"
        )
        restarts = head.budget.total
        return Book(term, self._begin, now, entries, ends, head.verdict, nodes, seat, restarts)

    def _note_checkpoint(self, head: Head, chosen: CheckpointChosen, now: float) -> None:
        if not head.job.saves:
            self._saved = None  # the script may resume from something that nobody knows of
        elif not chosen.path:
            self._saved = NEVER_SAVED
        else:
            self._saved = None if chosen.age is None else now - chosen.age

    # What an interval was spent on

    def _open(self, head: Head, now: float) -> None:
        """What is to come is spent like this, until something changes."""
        self._stage = head.stage
        self._status = [_status(head, peer) for peer in head.roster]
        if self._stage is Stage.RUNNING and self._stretch is None:
            assert head.current is not None, "there is a round in this stage"
            seats = self._seats(head)
            self._stretch = _Stretch(
                head.current, head.current.number, now, self._status, seats, self._saved
            )

    def _close(self, head: Head, now: float, missed: float) -> None:
        """The interval until now is over, as its stage was. What the workers of a round have done
        is known once none of them is left.
        """
        stretch = self._stretch
        if stretch is None:
            self._pages.add(self._interval(head, now))
            return
        current, same = stretch.round, stretch.round is head.current
        if self._stage is Stage.RUNNING and not (same and head.stage is Stage.RUNNING):
            assert current is not None, "another head's round has ended before"
            stretch.end, stretch.cut = now, current.came_to_end(now - missed) + missed
        if self._stage is Stage.RUNNING:
            stretch.beside = sums((stretch.beside, self._statuses(self._seats(head), now)))
        else:
            stretch.stopping.append(self._interval(head, now))
        lasting = (Stage.RUNNING, Stage.STOPPING) if current else (Stage.RENDEZVOUS, Stage.CHOOSING)
        if same and head.stage in lasting:
            return
        self._since = now
        for entry in self._entries(head, now, missed):
            self._pages.add(entry)
        self._stretch = None

    def _entries(self, head: Head, now: float, missed: float) -> list[LedgerEntry]:
        """That are not among the pages yet."""
        stretch = self._stretch
        if stretch is None:
            return [self._interval(head, now)]
        if stretch.end is None:
            beside = self._statuses(self._seats(head), now)
            return [self._of_round(head, stretch, beside, now, missed)]
        found = [self._of_round(head, stretch, {}, stretch.end, missed), *stretch.stopping]
        return [*found, self._interval(head, now)] if now > self._since else found

    def _of_round(
        self, head: Head, stretch: _Stretch, beside: SeatSeconds, end: float, missed: float
    ) -> LedgerEntry:
        current, number, begin = stretch.round, stretch.number, stretch.begin
        seats = self._seats(head)
        elapsed = end - begin
        parts = [
            _part_of(peer, number, each, begin - missed)
            for peer, status, each in zip(head.roster, stretch.status, seats, strict=True)
            if status is None
        ]
        came_to_end = stretch.cut
        if current is not None:
            came_to_end = min(came_to_end, current.came_to_end(end - missed) + missed)
        cut = min(elapsed, max(0.0, came_to_end - begin))
        mine, trained = together(parts, elapsed, cut)
        if current is None:
            spares = zip(stretch.status, seats, strict=True)
            beside = {Category.SPARE: elapsed * sum(each for status, each in spares if status)}
        when = None if trained is None else (begin + trained[0], begin + trained[1])
        whole = sums((stretch.beside, beside, mine))
        return LedgerEntry(begin, end, sum(seats), whole, number, when, stretch.resumed)

    def _interval(self, head: Head, now: float) -> LedgerEntry:
        seats = self._seats(head)
        return LedgerEntry(self._since, now, sum(seats), self._statuses(seats, now))

    def _statuses(self, seats: list[float], now: float) -> SeatSeconds:
        """Of the agents that take no part in a round, since the last change."""
        lasted, found = now - self._since, dict[Category, float]()
        for category, each in zip(self._status, seats, strict=True):
            if category is not None and lasted > 0:
                found[category] = found.get(category, 0.0) + each * lasted
        return found

    def _seats(self, head: Head) -> list[float]:
        """Of each agent. Those of a round of this head stay as they were when it began."""
        if self._stretch is not None and self._stretch.round is not None:
            return self._stretch.seats
        holders = []
        for peer in head.roster:
            report, node = peer.report, peer.place.node
            known = Holder(node) if report is None else Holder(node, report.gpus, report.nproc)
            holders.append(known)
        return seats_of(holders)


def _status(head: Head, peer: Peer) -> Category | None:
    stage = head.stage
    if stage is Stage.RUNNING and peer.assignment is not None:
        return None
    if stage in (Stage.ENDING, Stage.ENDED):
        return Category.END
    if peer.out:
        return Category.LOST
    if peer.report is None:
        return Category.WAITING
    if stage is Stage.RUNNING or (stage is Stage.STOPPING and peer.assignment is None):
        return Category.SPARE
    if stage is Stage.STOPPING:
        return Category.RESTART if head.verdict is None else Category.END
    begun = head.knows_rounds
    if stage is Stage.RENDEZVOUS and head.is_short:
        return Category.WAITING
    if stage is Stage.RENDEZVOUS and head.roster.absent and not begun:
        return Category.WAITING
    return Category.RESTART if begun else Category.START


def _part_of(peer: Peer, number: int, seats: float, begin: float) -> RoundPart:
    """`begin` is that of the round, on the head's clock."""
    report = peer.report
    if report is None or report.round != number:
        return RoundPart((), seats)
    exits = [e for e in report.exits if e.rank != NO_RANK]
    by_itself = [e for e in exits if e.code == 0 and not e.stopped]
    is_done = len(exits) >= report.nproc and len(by_itself) == len(exits)
    heard = peer.presence.contact.heard
    left = () if heard is None else tuple(max(0.0, heard - e.age - begin) for e in by_itself)
    return RoundPart(report.spent[:ELAPSED], seats, is_done, left, max(1, report.nproc))
