"""The launches of a job, and the sum of their ledgers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence

from ..core.head.round_shares import sums
from ..core.protocol.facts import Category, RoundEnded, SeatSeconds
from ..core.protocol.model import Verdict
from ..core.protocol.values import value
from .ledger_entries import LedgerEntry, rewind

RUN = re.compile(r"\.r\d+$")  # the number of the run, at the end of a launch's name


@value(frozen=True)
class Launch:
    """One start of hpclaunch, under all agents that led it."""

    name: str
    entries: tuple[LedgerEntry, ...]  # at least one; consecutive
    ends: tuple[RoundEnded, ...] = ()  # of rounds that ended early
    allocated: float | None = None  # since when Slurm's job has had its nodes
    verdict: Verdict | None = None  # None if the end is not known
    hosts: tuple[str, ...] = ()
    seat: str = "worker"  # or "GPU"
    restarts: int = 0
    rounds_joined: int = 0  # with earlier ones, to keep the entries few
    ends_left_out: int = 0  # of rounds that ended early

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len({entry.round for entry in self.entries} - {None}) + self.rounds_joined

    @property
    def begin(self) -> float:
        return self.entries[0].begin

    @property
    def until(self) -> float:
        return self.entries[-1].end


@value(frozen=True)
class Account:
    """All seat seconds of a job, from `begin` to `end`."""

    begin: float
    end: float
    seats: float  # the most at one time
    spent: SeatSeconds
    steps_seen: bool  # False: all time after the rendezvous counts as training

    @property
    def total(self) -> float:
        return sum(self.spent.values())

    @property
    def goodput(self) -> float:
        """The share of all seat seconds that was training whose steps were not lost."""
        return self.spent.get(Category.TRAINING, 0.0) / self.total if self.total > 0 else 0.0


def job_entries(launches: Sequence[Launch]) -> list[LedgerEntry]:
    """Return the entries of all launches of a job, which may have been requeued, or may launch
    several programs. The time before and between launches in one allocation is the job script's.
    """
    found: list[tuple[str, list[LedgerEntry]]] = []  # with the name of the training
    last_end = defaultdict[str, float](lambda: -math.inf)
    for launch in sorted(launches, key=lambda launch: launch.begin):
        entries, training = launch.entries, RUN.sub("", launch.name)
        found = [(name, _continued(each, entries, name == training)) for name, each in found]
        element, since = launch.name.partition(".")[0], launch.allocated
        if since is not None and launch.begin >= last_end[element]:
            since = max(since, last_end[element])
            found.append((training, _script(since, entries[0])))
        found.append((training, [*entries]))
        last_end[element] = max(last_end[element], launch.until)
    return [entry for _, each in found for entry in each]


def _continued(
    entries: Sequence[LedgerEntry], later: Sequence[LedgerEntry], is_same: bool
) -> list[LedgerEntry]:
    """Return the entries of a launch. Steps that a `later` launch repeats count as done twice. A
    run of the same training (`is_same`) repeats all steps that were not saved. Any other launch,
    such as the next element of an array, repeats some only if it began from a checkpoint.
    """
    saved = [e.resumed for e in later if e.round is not None and e.resumed is not None]
    if not is_same:
        saved = [at for at in saved[:1] if at > 0]
    return rewind(entries, min(saved, default=math.inf))


def account(launches: Sequence[Launch]) -> Account:
    """Return the sum of all entries of a job."""
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
    """Return the early ends of rounds in all launches, in the order of time."""
    return sorted((end for each in launches for end in each.ends), key=lambda end: end.at)


def _script(since: float, first: LedgerEntry) -> list[LedgerEntry]:
    """Return the time of the job script before the first entry of a launch."""
    if since >= first.begin:
        return []
    spent = {Category.SCRIPT: (first.begin - since) * first.seats}
    return [LedgerEntry(since, first.begin, first.seats, spent)]
