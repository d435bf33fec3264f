"""The book of one head: on what the seats of a job have spent their time while it led.

A seat is a GPU, or where there are none a worker's place. Seat seconds are seconds times seats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from ..protocol.facts import RoundEnded
from ..protocol.model import Verdict
from ..protocol.values import field, replace, value

MOST_ENTRIES = 400  # of a book; then the oldest ones are put together
MOST_ENDS = 50
NEVER_SAVED = -math.inf  # the training began from the start
LATEST = 1e11  # seconds since the epoch; no file of ours is of that time


class Category(str, Enum):
    """Each second of each seat is in exactly one of these."""

    SCRIPT = "job script"  # before, between and after launches
    WAITING = "waiting for nodes"
    START = "start"
    IMPORTS = "imports"
    RENDEZVOUS = "rendezvous"
    LOADING = "loading"
    TRAINING = "training"
    SAVING = "saving"
    REDONE = "steps done twice"
    DETECTION = "failure detection"
    RESTART = "restart"
    SPARE = "idle spare"
    LOST = "lost or cordoned"
    END = "after the end"
    UNKNOWN = "unknown"


SeatSeconds = dict[Category, float]


@value(frozen=True)
class LedgerEntry:
    """A round, or the time between two of them. Times are seconds on the clock of the book."""

    begin: float
    end: float
    seats: float
    spent: SeatSeconds
    round: int | None = None  # None: between rounds
    # From the first step on, until the round came to its end; None if no step was made, or all of
    # them were done once more.
    trained: tuple[float, float] | None = None
    # When the checkpoint was saved that the round began with; None if that is not known.
    resumed: float | None = None


@value(frozen=True)
class Book:
    term: int  # in which the head began to lead
    begin: float
    until: float
    entries: tuple[LedgerEntry, ...]  # one after the other, without a gap
    ends: tuple[RoundEnded, ...] = ()  # of rounds whose workers were not done
    verdict: Verdict | None = None
    names: tuple[str, ...] = ()  # of the nodes
    seat: str = "worker"  # what a seat is, or "GPU"
    restarts: int = 0  # of the whole launch, also under earlier heads


def sums(spent: Iterable[Mapping[Category, float]]) -> SeatSeconds:
    found: SeatSeconds = {}
    for each in spent:
        for category, seconds in each.items():
            found[category] = found.get(category, 0.0) + seconds
    return found


def scaled(spent: Mapping[Category, float], share: float) -> SeatSeconds:
    return {category: seconds * share for category, seconds in spent.items()}


def joined(one: LedgerEntry, other: LedgerEntry) -> LedgerEntry:
    """Two entries of which the second begins where the first one ends. How many seats there are is
    known the better, the later it is.
    """
    stretches = [t for t in (one.trained, other.trained) if t is not None]
    trained = (stretches[0][0], stretches[-1][1]) if stretches else None
    return replace(
        one,
        end=other.end,
        seats=other.seats,
        spent=sums((scaled(one.spent, other.seats / one.seats if one.seats else 1.0), other.spent)),
        trained=trained,
    )


def cut_off(entry: LedgerEntry, at: float) -> LedgerEntry:
    """The part of an entry that comes before a time in it, as if all had gone on evenly."""
    length = entry.end - entry.begin
    share = (at - entry.begin) / length if length > 0 else 0.0
    trained = entry.trained
    if trained is not None:
        trained = (trained[0], min(at, trained[1])) if trained[0] < at else None
    return replace(entry, end=at, spent=scaled(entry.spent, share), trained=trained)


def rewound(entry: LedgerEntry, saved: float) -> LedgerEntry:
    """A later round goes on from what was saved at this time: the steps since then are done twice.
    To do this again changes nothing.
    """
    if entry.trained is None or entry.trained[1] <= saved:
        return entry
    begin, end = entry.trained
    kept = max(0.0, saved - begin) / (end - begin) if end > begin else 0.0
    training = entry.spent.get(Category.TRAINING, 0.0)
    again = {Category.TRAINING: -training * (1 - kept), Category.REDONE: training * (1 - kept)}
    trained = (begin, saved) if begin < saved else None
    return replace(entry, spent=sums((entry.spent, again)), trained=trained)


def rewind(entries: Sequence[LedgerEntry], saved: float) -> list[LedgerEntry]:
    return [rewound(entry, saved) for entry in entries]


@value()
class Pages:
    """The entries of a book that is being written, and why rounds ended: of bounded size."""

    entries: list[LedgerEntry] = field(default_factory=list)
    ends: list[RoundEnded] = field(default_factory=list)

    def add(self, entry: LedgerEntry) -> None:
        last = self.entries[-1] if self.entries else None
        if last is not None and last.round is None and entry.round is None:
            self.entries[-1] = joined(last, entry)
            return
        if entry.round is not None and entry.resumed is not None:
            self.entries = rewind(self.entries, entry.resumed)
        self.entries.append(entry)
        if len(self.entries) > MOST_ENTRIES:
            self.entries[:2] = [joined(*self.entries[:2])]

    def note_end(self, end: RoundEnded) -> None:
        self.ends.append(end)
        if len(self.ends) > MOST_ENDS:
            del self.ends[1]  # the first one stays


def is_sound(book: Book) -> bool:
    """Whether a book in real time may be what a head has written. If not, it is damaged."""
    times = [book.begin, book.until]
    for entry in book.entries:
        times += [entry.begin, entry.end, *(entry.trained or ())]
    for end in book.ends:
        times += [end.at, end.seen]
    return bool(book.entries) and all(0 <= at < LATEST for at in times)


def moved(book: Book, by: float) -> Book:
    """The same on a clock that is ahead by so many seconds."""
    entries = tuple(
        replace(
            entry,
            begin=entry.begin + by,
            end=entry.end + by,
            trained=None if (t := entry.trained) is None else (t[0] + by, t[1] + by),
            resumed=None if entry.resumed is None else entry.resumed + by,
        )
        for entry in book.entries
    )
    ends = tuple(end.moved(by) for end in book.ends)
    return replace(book, begin=book.begin + by, until=book.until + by, entries=entries, ends=ends)
