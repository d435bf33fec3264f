"""Answers to `hpclaunch status` and the like, in a bounded share of the loop's time.

One answer serves all who ask at about the same time. Making a snapshot takes some milliseconds in a
large job, and the next one is made only after many times as long.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from ..core.control import Control
from ..core.protocol import effects, events
from ..core.protocol.facts import Fact
from ..core.protocol.job_snapshot import LaunchSnapshot, NodeGpu
from ..core.protocol.model import Origin, Request
from ..core.protocol.values import replace
from ..observe.past_rounds import NewestCheckpoint, past_rounds
from ..system.logs.log_directory import STATUS
from ..system.network.view_socket import LEDGER, ViewSocket, file_of
from ..system.shared import packing
from .adapter import Adapter, Fd
from .context import Context
from .health_watch import HealthWatch
from .ledger_keeping import LedgerKeeping
from .resuming import Resuming

FRESH = 0.25  # seconds for which a snapshot is used
LEDGER_FRESH = 2.0  # seconds for which a ledger is used
SHARE = 0.02  # greatest share of the loop's time for making snapshots, or ledgers
KEPT = 60.0  # seconds between two snapshots in the log directory
PAUSE = 0.008  # seconds between two times that questions are read
LOOKED = 1.0  # seconds between two events LookedAt
REQUESTS = {request.value.encode(): request for request in Request}


class ViewFile:
    """A file with an answer, which is made again when it is too old."""

    def __init__(self, make: Callable[[], bytes], fresh: float) -> None:
        self._make, self._fresh = make, fresh
        self._file = -1
        self._until = -math.inf

    def newest(self) -> int:
        """Return the descriptor of an answer that is new enough; -1 if none could be made."""
        now = time.monotonic()
        if now >= self._until:
            self.make()
            took = time.monotonic() - now
            self._until = now + max(self._fresh, took / SHARE)
        return self._file

    def make(self) -> int:
        """Make the answer, and return its descriptor; -1 if too many files are open for one."""
        self.close()
        answer = self._make()
        with contextlib.suppress(OSError):
            self._file = file_of(answer)
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Viewing(Adapter):
    """Answers questions and requests of users at a socket."""

    def __init__(
        self,
        context: Context,
        control: Control,
        ledger: LedgerKeeping,
        health: HealthWatch,
        resuming: Resuming,
    ) -> None:
        self._config, self._logs, self._date = context.config, context.logs, context.date
        self._control, self._ledger = control, ledger
        self._health, self._resuming = health, resuming
        self._checkpoint = NewestCheckpoint()
        self._began = time.monotonic()
        self._socket: ViewSocket | None = None
        self._snapshots = ViewFile(self._snapshot, FRESH)
        self._ledgers = ViewFile(ledger.packed, LEDGER_FRESH)
        self._read_at = math.inf  # when to read questions again, during a PAUSE
        self._looked_at = -math.inf
        self._keep_at = self._began + KEPT
        self.failure = ""  # why there is no socket
        try:
            self._socket = ViewSocket()
        except OSError as e:  # the training does not need it
            self.failure = e.strerror or str(e)

    @property
    def name(self) -> bytes:
        """The name of the socket at which this agent answers, or b"" if there is none."""
        return b"" if self._socket is None else self._socket.name

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._snapshots.close()
        self._ledgers.close()

    def fds(self) -> Iterable[Fd]:
        return () if self._socket is None or self._read_at < math.inf else (self._socket.fileno(),)

    def deadline(self) -> float:
        return min(self._read_at, self._keep_at if self._control.leads else math.inf)

    def update(self, now: float) -> None:
        if now >= self._keep_at and self._control.leads:
            self._keep()
        if now >= self._read_at:
            self._read_at = math.inf

    def conclude(self, end: effects.Exit) -> None:
        if self._control.leads and not end.alone:
            self._resuming.find_last(ended_well=end.verdict.origin is Origin.DONE)
        self._keep()

    def _keep(self) -> None:
        """Write a snapshot into the log directory, if this agent leads."""
        directory = self._config.directory
        if directory is None or not self._control.leads:
            return
        self._keep_at = time.monotonic() + KEPT
        self._logs.service.keep(directory, {STATUS: self._snapshot().decode()})

    def note(self, fact: Fact, at: float) -> None:
        """Note a fact that this agent has recorded at this time, in seconds since the epoch."""
        self._checkpoint.note(fact, at)

    def ready(self, fds: Collection[Fd], now: float) -> Iterator[events.Event]:
        if self._socket is None or self._socket.fileno() not in fds:
            return
        self._read_at = time.monotonic() + PAUSE
        for word, end in self._socket.receive():
            if request := REQUESTS.get(word):
                yield from self._request(request, end)
            elif word == LEDGER:
                self._socket.answer(end, self._ledgers.newest())
            else:
                yield from self._look(end)

    def _request(self, request: Request, end: socket.socket) -> Iterator[events.Event]:
        assert self._socket is not None, "the request arrived there"
        why = self._control.refusal(request)
        answer = ViewFile(why.encode, 0.0)
        self._socket.answer(end, answer.make())
        answer.close()
        if not why:
            yield events.Requested(request)

    def _look(self, end: socket.socket) -> Iterator[events.Event]:
        """Answer with a snapshot. First the core learns that somebody looks at the job."""
        assert self._socket is not None, "the question arrived there"
        now = time.monotonic()
        if now >= self._looked_at + LOOKED:
            self._looked_at = now
            if self._control.leads:
                yield events.LookedAt()
                self._resuming.seek_newest()
            else:
                self._health.ask_use()
        self._socket.answer(end, self._snapshots.newest())

    def last(self) -> tuple[int, int]:
        """Return descriptors of the last snapshot and the last ledger, when the job is over."""
        return self._snapshots.make(), self._ledgers.make()

    def _snapshot(self) -> bytes:
        config, control, now = self._config, self._control, time.monotonic()
        job = control.snapshot(now)
        if job is not None:
            date, ends = self._date.now(), self._ledger.ends()
            job = replace(
                job,
                checkpoint=self._checkpoint.at(date),
                past=past_rounds(ends, date),
                goodput=self._ledger.goodput(),
                is_complete=job.is_complete and not self._resuming.seeks_newest,
            )
        launch = LaunchSnapshot(
            name=config.allocation.name,
            slurm_id=config.job.slurm_id,
            host=config.job.places[control.index].host,
            pid=os.getpid(),
            program=" ".join(config.command),
            logs=str(config.directory or ""),
            time=time.time(),
            age=now - self._began,
            job=job,
            head=control.head_host,
            gpus=tuple(
                NodeGpu(gpu.index, gpu.uuid, use)
                for gpu, use in zip(config.gpus, self._health.use, strict=False)
            ),
            agent=control.index,
        )
        return packing.pack(launch)
