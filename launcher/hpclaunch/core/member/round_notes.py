"""Notes on an agent's workers in one round, in the form in which they are reported: exits, the time
that the workers have spent, and their answers.
"""

from __future__ import annotations

import signal

from ..protocol.effects import AskWorkers, Effect
from ..protocol.events import StoreEnded, WorkerExited
from ..protocol.model import NO_RANK, Answer, Assignment, Culprit, Doing, Query, Spent, WorkerExit
from ..protocol.values import replace


class Exits:
    """The exits of one round. They are part of every report until the next round begins."""

    def __init__(self) -> None:
        self._exits: dict[int, tuple[WorkerExit, float]] = {}  # by rank; the time is that of exit

    def add(self, event: WorkerExited, now: float, *, stopped: bool) -> None:
        # The last lines of a worker that was stopped explain nothing, and messages are limited.
        tail = "" if stopped else event.tail
        exit_ = WorkerExit(event.rank, event.code, event.signal, 0.0, stopped, tail)
        self._exits[event.rank] = (exit_, now)

    def add_store(self, event: StoreEnded, now: float) -> None:
        # It counts as a failure: nobody asks a store to end during its round.
        code, signum, tail = event.code, event.signal, event.tail
        exit_ = WorkerExit(NO_RANK, code, signum, 0.0, False, tail, Culprit.STORE)
        self._exits[NO_RANK] = (exit_, now)

    def lose(self, part: Assignment, now: float, *, stopped: bool) -> bool:
        """Note that the fork server was killed, and with it all workers that had not ended. Return
        False if there were none.

        Unless the workers were being stopped, the first of these counts as the failure. The others
        count as stopped, so that only one failure is reported.
        """
        ranks = range(part.first_rank, part.first_rank + part.nproc)
        lost = [rank for rank in ranks if rank not in self._exits]
        for rank in lost:
            as_stopped = stopped or rank != lost[0]
            code = 128 + signal.SIGKILL
            exit_ = WorkerExit(rank, code, signal.SIGKILL, 0.0, as_stopped, "", Culprit.FORK_SERVER)
            self._exits[rank] = (exit_, now)
        return bool(lost)

    def mean_time(self, now: float) -> float:
        """Return the mean time of the workers' exits; `now` if none has ended."""
        times = [exited for rank, (_, exited) in self._exits.items() if rank != NO_RANK]
        return sum(times) / len(times) if times else now

    def for_report(self, now: float) -> tuple[WorkerExit, ...]:
        return tuple(replace(exit_, age=now - exited) for exit_, exited in self._exits.values())


class Spending:
    """The time spent in one round, as of when the workers were last seen."""

    def __init__(self) -> None:
        self._since = 0.0  # when the round began here
        self._seen = Spent()

    def begin(self, now: float) -> None:
        self._since = now
        self._seen = Spent((0,) * Doing.NOTHING)

    def saw(self, spent: tuple[int, ...], doing: Doing, now: float) -> None:
        """Note what the fork server reports. Its `spent` counts from the start of the workers; ()
        if that is not known.
        """
        if not (spent and self._seen.times):
            return
        start, *known = self._seen.times
        if not any(known):
            start = max(0, self.elapsed(now) - sum(spent))
        self._seen = Spent((start, *spent), doing)

    def ended(self, at: float) -> None:
        """Note that the workers and the fork server ended at this time. The time since the last
        report counts as what the workers did then.
        """
        times, doing = [*self._seen.times], self._seen.doing
        if times and doing is not Doing.NOTHING:
            times[doing] += max(0, self.elapsed(at) - sum(times))
            self._seen = Spent(tuple(times), Doing.NOTHING)

    def elapsed(self, now: float) -> int:
        """Return the milliseconds since the round began here."""
        return round(1000 * (now - self._since))

    def report(self, now: float | None = None) -> Spent:
        """Return the time spent; with `now`, also how long the round has lasted."""
        if now is None or not self._seen.times:
            return self._seen
        return replace(self._seen, elapsed=self.elapsed(now))


class Queries:
    """The queries of one round, which one head asks. At most one of each kind is open."""

    def __init__(self) -> None:
        self._open: tuple[Query, ...] = ()  # those of the last order
        self.answers: tuple[Answer, ...] = ()

    def obey(self, queries: tuple[Query, ...]) -> list[Effect]:
        """Ask the queries that are new in an order. Drop answers of kinds that it leaves out."""
        new = [query for query in queries if query not in self._open]
        kinds = {query.kind for query in queries}
        self._open = queries
        self.answers = tuple(each for each in self.answers if each.query.kind in kinds)
        return [AskWorkers(query) for query in new]

    def hear(self, answer: Answer) -> None:
        """Keep an answer in place of the earlier one of its kind."""
        if answer.query in self._open:
            others = (each for each in self.answers if each.query.kind is not answer.query.kind)
            self.answers = (*others, answer)
