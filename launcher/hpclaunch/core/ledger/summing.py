"""The books of a job put together: those of its heads, and those of its launches."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..protocol.facts import RoundEnded
from ..protocol.values import replace, value
from .book import Book, Category, LedgerEntry, Pages, SeatSeconds, cut_off, rewind, sums

RUN = re.compile(r"\.r\d+$")  # the end of a name: which run of a training a launch is


@value(frozen=True)
class Launch:
    """One start of hpclaunch, with the books of all agents that have led, on one clock."""

    name: str
    books: tuple[Book, ...]
    allocated: float | None = None  # since when Slurm's job has had its nodes
    over: bool = False  # it has come to its end

    @property
    def begin(self) -> float:
        return min(book.begin for book in self.books)

    @property
    def newest(self) -> Book:
        """That of the head that has led last."""
        return max(self.books, key=lambda book: (book.term, book.begin))

    @property
    def until(self) -> float:
        return max(book.until for book in self.books)


@value(frozen=True)
class Account:
    """All seat seconds of a job, from `begin` to `end`."""

    begin: float
    end: float
    seats: float  # the most there were
    spent: SeatSeconds
    steps_seen: bool  # False: workers made none of an optimizer, so what they did is training

    @property
    def total(self) -> float:
        return sum(self.spent.values())

    @property
    def goodput(self) -> float:
        """The share of training that was not in vain."""
        return self.spent.get(Category.TRAINING, 0.0) / self.total if self.total > 0 else 0.0


def entries_of(books: Sequence[Book]) -> list[LedgerEntry]:
    """One after the other, without a gap. A head's book ends where that of a later term begins,
    whatever it says of the time after that. In a gap, no head led.
    """
    found: list[LedgerEntry] = []
    for book in _in_order(books):
        found = [
            cut_off(entry, book.begin) if entry.end > book.begin else entry
            for entry in found
            if entry.begin < book.begin
        ]
        if found and book.entries:
            found += _gap(found[-1], book.entries[0])
        found += book.entries
    return _rewound(found)


def _in_order(books: Sequence[Book]) -> Iterator[Book]:
    """By their terms. A book may begin with the last round of the head before: if that head has
    seen the end of it, this is not taken from the successor's.
    """
    ended = set[int | None]()
    for book in sorted(books, key=lambda b: (b.term, b.begin)):
        first = book.entries[0]
        is_known = first.round is not None and first.round in ended
        ended |= {entry.round for entry in book.entries[:-1]} | {end.round for end in book.ends}
        if is_known:
            ends = tuple(end for end in book.ends if end.round != first.round)
            yield replace(book, begin=first.end, entries=book.entries[1:], ends=ends)
        else:
            yield book


def as_one(books: Sequence[Book]) -> Book:
    """The books of several heads, at least one, as a single one, of bounded size."""
    pages, ordered = Pages(), list(_in_order(books))
    for entry in entries_of(books):
        pages.add(entry)
    for book in ordered:
        for end in book.ends:
            pages.note_end(end)
    entries = tuple(pages.entries)
    begin, until = entries[0].begin, entries[-1].end
    ends = tuple(pages.ends)
    return replace(ordered[-1], begin=begin, until=until, entries=entries, ends=ends)


def job_entries(launches: Sequence[Launch]) -> list[LedgerEntry]:
    """Of a job that may have been requeued, or was launched several times. Where launches in one
    allocation follow one another, the time before and between them is the job script's.
    """
    found: list[tuple[str, list[LedgerEntry]]] = []  # with the name of the training
    last_end = defaultdict[str, float](lambda: -math.inf)
    for launch in sorted(launches, key=lambda launch: launch.begin):
        entries, training = entries_of(launch.books), RUN.sub("", launch.name)
        found = [(name, _continued(each, entries, name == training)) for name, each in found]
        element, since = launch.name.partition(".")[0], launch.allocated
        if entries and since is not None and launch.begin >= last_end[element]:
            since = max(since, last_end[element])
            found.append((training, _script(since, entries[0])))
        found.append((training, entries))
        last_end[element] = max(last_end[element], launch.until)
    return [entry for _, each in found for entry in each]


def _continued(
    entries: Sequence[LedgerEntry], later: Sequence[LedgerEntry], is_same: bool
) -> list[LedgerEntry]:
    """The entries of a launch, before a later one. Another run of the same training has begun where
    that was saved. Any other launch, such as of another program or of the next element of an array,
    has taken something from it only if it began with a checkpoint.
    """
    saved = [e.resumed for e in later if e.round is not None and e.resumed is not None]
    if not is_same:
        saved = [at for at in saved[:1] if at > 0]
    return rewind(entries, min(saved, default=math.inf))


def account(launches: Sequence[Launch]) -> Account:
    """Of all entries of a job."""
    found = job_entries(launches)
    spent = sums(entry.spent for entry in found)
    steps_seen = spent.get(Category.TRAINING, 0.0) + spent.get(Category.REDONE, 0.0) > 0
    if not steps_seen:
        spent[Category.TRAINING] = spent.pop(Category.LOADING, 0.0)
    return Account(
        begin=min((entry.begin for entry in found), default=0.0),
        end=max((entry.end for entry in found), default=0.0),
        seats=max((entry.seats for entry in found), default=0.0),
        spent={c: seconds for c in Category if (seconds := spent.get(c, 0.0)) > 0},
        steps_seen=steps_seen,
    )


def round_ends(launches: Sequence[Launch]) -> list[RoundEnded]:
    """Of all launches, in the order of time."""
    ends = [end for launch in launches for book in _in_order(launch.books) for end in book.ends]
    return sorted(ends, key=lambda end: end.at)


def _script(since: float, first: LedgerEntry) -> list[LedgerEntry]:
    if since >= first.begin:
        return []
    spent = {Category.SCRIPT: (first.begin - since) * first.seats}
    return [LedgerEntry(since, first.begin, first.seats, spent)]


def _gap(one: LedgerEntry, other: LedgerEntry) -> list[LedgerEntry]:
    if one.end >= other.begin:
        return []
    spent = {Category.DETECTION: (other.begin - one.end) * one.seats}
    return [LedgerEntry(one.end, other.begin, one.seats, spent)]


def _rewound(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    found: list[LedgerEntry] = []
    for entry in entries:
        if entry.round is not None and entry.resumed is not None:
            found = rewind(found, entry.resumed)
        found.append(entry)
    return found
