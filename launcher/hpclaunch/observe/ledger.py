"""The ledger of a launch: how its seats spent their time, by the facts that were recorded.

Each fact updates it, also while the job runs. All times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.head.round_shares import scaled, sums
from ..core.protocol import host_lists
from ..core.protocol.facts import (
    Category,
    Fact,
    HeadChanged,
    HeadDeposed,
    JobEnded,
    NodesAllocated,
    RoundBegan,
    RoundEnded,
    RoundShares,
    SeatUse,
)
from ..core.protocol.model import Verdict
from ..core.protocol.values import field, replace, value
from .head_facts import DatedFact, facts_of_heads
from .launches import Launch
from .ledger_entries import NEVER_SAVED, LedgerEntry, cut_off, joined, rewind

MOST_ENTRIES = 400  # of a ledger; if there are more, the oldest are joined
MOST_ENDS = 50
SHORTEST = 0.001  # the least divisor, in seconds or seat seconds
KINDS = (SeatUse, RoundBegan, RoundEnded, HeadChanged, HeadDeposed, NodesAllocated, JobEnded)


@value()
class Ledger:
    """A fold over all facts of the heads of a launch, in the order of time."""

    entries: list[LedgerEntry] = field(default_factory=list)  # consecutive
    ends: list[RoundEnded] = field(default_factory=list)  # of rounds that ended early
    rounds_joined: int = 0  # with earlier ones
    ends_left_out: int = 0
    use: SeatUse | None = None  # what the seats have done since `since`
    since: float = 0.0
    # The round that has begun and not ended. Until it ends, the time of its workers is UNKNOWN.
    running: LedgerEntry | None = None
    stopping: list[LedgerEntry] = field(default_factory=list)  # the time since its workers ran
    last: RoundEnded | None = None  # the end of the running round, as if it ended now
    resumed: float | None = None  # when the checkpoint of the round was saved
    ended: int = -1  # the last round that has ended
    allocated: float | None = None  # when the job got its nodes
    hosts: dict[str, None] = field(default_factory=dict)  # of nodes that reported, each once
    verdict: Verdict | None = None

    def note(self, fact: Fact, at: float) -> None:
        """Note a fact that was recorded at this time."""
        at = max(at, self.since)
        match fact:
            case SeatUse():
                self._close(at)
                if self.last is not None and self.last.round <= self.ended:
                    self._end_round(self.last)
                if fact.last is not None:
                    self.last = fact.last.moved(at)
                if self.use is None or fact.nodes != self.use.nodes:
                    self._note_hosts(fact)
                self.use, self.since = fact, at
                if fact.round is not None and self.running is None:
                    seats = sum(fact.seats.values())
                    self.running = LedgerEntry(at, at, seats, {}, fact.round, None, self.resumed)
            case RoundBegan(round=number, checkpoint=checkpoint, age=age):
                if self.running is not None:  # its head was killed and started again
                    self._close(at)
                    self._end_round(self.last)
                self.verdict = None
                self.ended = min(self.ended, number - 1)
                never = fact.saves and not checkpoint
                known = None if age is None or not fact.saves else at - age
                self.resumed = NEVER_SAVED if never else known
            case RoundEnded(round=number):  # the next SeatUse closes the round
                self.last, self.ended = fact.moved(at), max(self.ended, number)
            case HeadChanged():
                self._change_head(fact, at)
            case NodesAllocated(since=since):
                began = float(round(at + since))  # Slurm reports whole seconds
                self.allocated = min(began, self.allocated or began)
            case JobEnded(verdict=verdict):
                self.verdict = verdict.moved(at)

    def launch(self, name: str, now: SeatUse | None = None, at: float = 0.0) -> Launch | None:
        """Return the launch until the last fact, or until `at` with `now` as the use of its seats.
        Return None if no time was recorded.
        """
        whole = replace(self, entries=[*self.entries], ends=[*self.ends], stopping=[*self.stopping])
        if now is not None:
            whole.note(now, at)
        use, last = whole.use, whole.last
        if use is not None and use.round is not None and last and last.round > self.ended:
            last = replace(last, reasons=())  # it still runs
        whole._end_round(last)
        if use is None or not whole.entries:
            return None
        return Launch(
            name,
            tuple(whole.entries),
            tuple(whole.ends),
            allocated=self.allocated,
            verdict=self.verdict,
            hosts=tuple(self.hosts),
            seat="GPU" if use.are_gpus else "worker",
            restarts=use.restarts,
            rounds_joined=whole.rounds_joined,
            ends_left_out=whole.ends_left_out,
        )

    def _note_hosts(self, use: SeatUse) -> None:
        for category, hosts in use.nodes.items():
            if category is not Category.WAITING:
                self.hosts = {**self.hosts, **dict.fromkeys(host_lists.read(hosts))}

    def _close(self, at: float) -> None:
        """Add an entry for the time since the last fact."""
        if self.use is None or at <= self.since:
            return
        lasted, number = at - self.since, self.use.round
        spent = scaled(self.use.seats, lasted)
        entry = LedgerEntry(self.since, at, sum(self.use.seats.values()), spent, number)
        self.since = at
        if self.running is None:
            self._add(entry)
        elif number is not None:
            self.running = joined(self.running, entry)
        else:
            self.stopping.append(entry)

    def _end_round(self, end: RoundEnded | None) -> None:
        """Add the entries of the running round. `end`: how it ended; None if that is not known."""
        running, stopping = self.running, self.stopping
        self.running, self.stopping, self.last = None, [], None
        if running is not None:
            self._add(_resolved(running, None if end is None else end.shares))
        for entry in stopping:
            self._add(entry)
        if end is None:
            return
        self.ended = max(self.ended, end.round)
        if end.is_early:
            self.ends.append(end)
            if len(self.ends) > MOST_ENDS:
                del self.ends[1]  # the first one stays
                self.ends_left_out += 1

    def _change_head(self, fact: HeadChanged, at: float) -> None:
        """Note that another agent leads from now on. If the earlier head left a round running, the
        round lasted until now (`fact.ended`). Otherwise nobody led since that head was last heard:
        this time is failure detection.
        """
        ended = None if fact.ended is None else fact.ended.moved(at)
        is_running = self.use is not None and self.use.round is not None
        was_stopped = self.last is not None and bool(self.last.reasons) and not is_running
        if ended is not None and (ended.round <= self.ended or was_stopped):
            ended = None
        if ended is not None and is_running and self.use and self.use.round == ended.round:
            self._close(at)
            self._end_round(ended)
        elif ended is not None:  # nothing was recorded of this round
            self._close(at)
            self._end_round(None)
            self._insert(ended, at)
        else:
            self._close(max(self.since, min(at, at + fact.heard)))
            self._end_round(self.last)
            if self.use is not None and self.since < at:
                nobody_leads = {Category.DETECTION: sum(self.use.seats.values())}
                self.use = replace(self.use, round=None, seats=nobody_leads)
                self._close(at)
        self.use, self.since, self.verdict = None, at, None

    def _insert(self, end: RoundEnded, at: float) -> None:
        """Replace all entries since this round began by one for the round, which ends now."""
        shares = end.shares
        if shares is not None and self.entries and shares.elapsed >= SHORTEST:
            begin = max(self.entries[0].begin, at - shares.elapsed)
            before = [entry for entry in self.entries if entry.begin < begin]
            self.entries = [cut_off(e, begin) if e.end > begin else e for e in before]
            seats = sum(shares.spent.values()) / shares.elapsed
            unknown = {Category.UNKNOWN: (at - begin) * seats}
            self.running = LedgerEntry(begin, at, seats, unknown, end.round)
        self._end_round(end)

    def _add(self, entry: LedgerEntry) -> None:
        last = self.entries[-1] if self.entries else None
        if last is not None and last.round is None and entry.round is None:
            self.entries[-1] = joined(last, entry)
            return
        if entry.round is not None and entry.resumed is not None:
            self.entries = rewind(self.entries, entry.resumed)
        self.entries.append(entry)
        if len(self.entries) > MOST_ENTRIES:
            first, second = self.entries[:2]
            self.rounds_joined += second.round is not None
            self.entries[:2] = [joined(first, second)]


def _resolved(entry: LedgerEntry, shares: RoundShares | None) -> LedgerEntry:
    """Return the entry of a round with UNKNOWN replaced by the shares of its workers' time."""
    whole = 0.0 if shares is None else sum(shares.spent.values())
    unknown = entry.spent.get(Category.UNKNOWN, 0.0)
    if shares is None or whole < SHORTEST or unknown <= 0:
        return entry
    beside = {**entry.spent}
    del beside[Category.UNKNOWN]
    trained = shares.trained
    if trained is not None:
        begin, end = (min(entry.end, entry.begin + at) for at in trained)
        trained = (begin, end)
    spent = sums((beside, scaled(shares.spent, unknown / whole)))
    return replace(entry, spent=spent, trained=trained)


def ledger_of(runs: Iterable[Sequence[DatedFact]]) -> Ledger:
    """Return the ledger of a launch; each of `runs` has all facts of one start of an agent."""
    ledger = Ledger()
    for at, fact in facts_of_heads(runs):
        ledger.note(fact, at)
    return ledger
