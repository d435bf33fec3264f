"""The exits of one agent's processes in a round, in the form in which they are reported."""

from __future__ import annotations

import signal

from ..protocol.events import StoreEnded, WorkerExited
from ..protocol.model import NO_RANK, Assignment, Culprit, WorkerExit
from ..protocol.values import replace


class Exits:
    """The exits of one round. They are part of every report until the next round begins."""

    def __init__(self) -> None:
        self._exits: dict[int, tuple[WorkerExit, float]] = {}  # by rank; the time is that of exit

    @property
    def failed(self) -> bool:
        """Whether a process has failed, without being stopped."""
        return any(exit_.code and not exit_.stopped for exit_, _ in self._exits.values())

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
