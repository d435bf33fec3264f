"""Entries of a ledger: how the seats of a job spent a stretch of time.

A seat is a GPU, or a worker's place without GPUs. Seat seconds are seconds times seats.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.head.round_shares import scaled, sums
from ..core.protocol.facts import Category, SeatSeconds
from ..core.protocol.values import replace, value

NEVER_SAVED = 0.0  # in `resumed`: the round began from the start, and repeats all steps


@value(frozen=True)
class LedgerEntry:
    """A round, or the time between two rounds. Times are seconds since the epoch."""

    begin: float
    end: float
    seats: float
    spent: SeatSeconds
    round: int | None = None  # None: between rounds
    # From the first step until the end of the steps that count; None if there are none.
    trained: tuple[float, float] | None = None
    # When the checkpoint that the round resumed from was saved; None if that is not known.
    resumed: float | None = None


def joined(one: LedgerEntry, other: LedgerEntry) -> LedgerEntry:
    """Return two consecutive entries as one. The later number of seats counts, since more agents
    have reported theirs by then.
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
    """Return the part of an entry before a time in it. Its seconds are divided evenly."""
    length = entry.end - entry.begin
    share = (at - entry.begin) / length if length > 0 else 0.0
    trained = entry.trained
    if trained is not None:
        trained = (trained[0], min(at, trained[1])) if trained[0] < at else None
    return replace(entry, end=at, spent=scaled(entry.spent, share), trained=trained)


def rewound(entry: LedgerEntry, saved: float) -> LedgerEntry:
    """Return an entry with its steps since `saved` counted as done twice: a later round resumed
    from what was saved then. A second call changes nothing.
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
    """Return all entries with their steps since `saved` counted as done twice."""
    return [rewound(entry, saved) for entry in entries]
