"""How the processes of one agent ended in a round, from their exits to what the head is told."""

from __future__ import annotations

import signal
from dataclasses import replace

from ..protocol.events import StoreEnded, WorkerExited
from ..protocol.model import NO_RANK, Assignment, Culprit, WorkerExit


class Exits:
    """Of one round; told until the next one begins."""

    def __init__(self) -> None:
        self._exits: dict[int, tuple[WorkerExit, float]] = {}  # by rank, and when it was

    def add(self, event: WorkerExited, now: float, *, stopped: bool) -> None:
        # Of one that was stopped nobody asks for its last words, and a message has a limit.
        tail = "" if stopped else event.tail
        exit_ = WorkerExit(event.rank, event.code, event.signal, 0.0, stopped, tail)
        self._exits[event.rank] = (exit_, now)

    def add_store(self, event: StoreEnded, now: float) -> None:
        """Nobody asks a store to end during its round."""
        code, signum, tail = event.code, event.signal, event.tail
        exit_ = WorkerExit(NO_RANK, code, signum, 0.0, False, tail, Culprit.STORE)
        self._exits[NO_RANK] = (exit_, now)

    def lose(self, part: Assignment, now: float, *, stopped: bool) -> bool:
        """The fork server was killed, and with it all that had not ended; False if all had.

        Of those that nobody had stopped, the first is the failure and stands for all.
        """
        ranks = range(part.first_rank, part.first_rank + part.nproc)
        lost = [rank for rank in ranks if rank not in self._exits]
        for rank in lost:
            asked = stopped or rank != lost[0]
            code = 128 + signal.SIGKILL
            exit_ = WorkerExit(rank, code, signal.SIGKILL, 0.0, asked, "", Culprit.FORK_SERVER)
            self._exits[rank] = (exit_, now)
        return bool(lost)

    def told(self, now: float) -> tuple[WorkerExit, ...]:
        return tuple(replace(exit_, age=now - at) for exit_, at in self._exits.values())
