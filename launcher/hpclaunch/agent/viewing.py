"""People who look at the job, or ask something of it: answered in a bounded share of the loop.

An answer is made for all who ask at about the same time. Making a snapshot takes a few milliseconds
in a large job: the next one is made only after many times as long.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from ..core.control import Control
from ..core.protocol import effects, events
from ..core.protocol.facts import Fact
from ..core.protocol.model import Request
from ..core.protocol.values import replace
from ..observe.past_rounds import NewestCheckpoint, past_rounds
from ..system.logs.log_directory import STATUS
from ..system.shared import packing
from ..system.shared.steady_date import SteadyDate
from .adapter import Adapter, Fd
from .config import Config
from .health_watch import HealthWatch
from .ledger_keeping import LedgerKeeping
from .logs import Logs
from .resuming import Resuming

if TYPE_CHECKING:
    import socket

    from ..system.network.view_socket import ViewSocket

FRESH = 0.25  # seconds for which a snapshot is of use to all who look,
LEDGER_FRESH = 2.0  # and a ledger
SHARE = 0.02  # of the time of the loop, at most, for making either
KEPT = 60.0  # seconds between two snapshots in the log directory
PAUSE = 0.008  # seconds between two times that questions are read
LOOKED = 1.0  # seconds between two events that say that somebody looks
REQUESTS = {request.value.encode(): request for request in Request}


class ViewFile:
    """The file with an answer, which is made anew when it is too old for whoever asks."""

    def __init__(self, make: Callable[[], bytes], fresh: float) -> None:
        self._make, self._fresh = make, fresh
        self._file = -1
        self._until = -math.inf

    def newest(self) -> int:
        """Its descriptor."""
        now = time.monotonic()
        if now >= self._until:
            self.make()
            took = time.monotonic() - now
            self._until = now + max(self._fresh, took / SHARE)
        return self._file

    def make(self) -> int:
        from ..system.network.view_socket import file_of

        self.close()
        self._file = file_of(self._make())
        return self._file

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Viewing(Adapter):
    def __init__(
        self,
        config: Config,
        control: Control,
        logs: Logs,
        ledger: LedgerKeeping,
        health: HealthWatch,
        resuming: Resuming,
        date: SteadyDate,
    ) -> None:
        self._config, self._control, self._logs = config, control, logs
        self._ledger, self._health, self._resuming = ledger, health, resuming
        self._date = date
        self._checkpoint = NewestCheckpoint()
        self._began = time.monotonic()
        self._socket: ViewSocket | None = None
        self._snapshots = ViewFile(self._snapshot, FRESH)
        self._ledgers = ViewFile(ledger.packed, LEDGER_FRESH)
        self._read_at = math.inf  # when to read questions again, after some were read
        self._looked_at = -math.inf
        self._keep_at = self._began + KEPT
        self._open()

    def _open(self) -> None:
        from ..system.network.view_socket import ViewSocket

        try:
            self._socket = ViewSocket()
        except OSError:
            return  # nobody can look: no reason not to train

    @property
    def name(self) -> bytes:
        """Of the socket at which this agent answers; b"" if there is none."""
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
        self._keep()

    def _keep(self) -> None:
        """Write a snapshot for those who cannot ask, if this agent leads."""
        logs = self._config.logs
        if logs is None or not self._control.leads:
            return
        self._keep_at = time.monotonic() + KEPT
        self._logs.service.keep(logs.path, {STATUS: self._snapshot().decode()})

    def note(self, fact: Fact, at: float) -> None:
        """Note a fact that this agent has recorded at this time, in seconds since the epoch."""
        self._checkpoint.note(fact, at)

    def ready(self, fds: Collection[Fd], now: float) -> Iterator[events.Event]:
        if self._socket is None or self._socket.fileno() not in fds:
            return
        self._read_at = time.monotonic() + PAUSE
        from ..system.network.view_socket import LEDGER

        for word, end in self._socket.receive():
            if request := REQUESTS.get(word):
                yield from self._request(request, end)
            elif word == LEDGER:
                self._socket.answer(end, self._ledgers.newest())
            else:
                yield from self._look(end)

    def _request(self, request: Request, end: socket.socket) -> Iterator[events.Event]:
        from ..system.network.view_socket import file_of

        assert self._socket is not None, "somebody has asked"
        why = self._control.refusal(request)
        file = file_of(why.encode())
        self._socket.answer(end, file)
        os.close(file)
        if not why:
            yield events.Requested(request)

    def _look(self, end: socket.socket) -> Iterator[events.Event]:
        """Answer with a snapshot, after the core knows that somebody looks."""
        assert self._socket is not None, "somebody has asked"
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
        """The last snapshot and the last ledger, when the job is over: descriptors."""
        return self._snapshots.make(), self._ledgers.make()

    def _snapshot(self) -> bytes:
        from ..core.protocol.job_snapshot import LaunchSnapshot, NodeGpu

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
            logs="" if config.logs is None else str(config.logs.path),
            time=time.time(),
            age=now - self._began,
            job=job,
            head=control.head_host,
            gpus=tuple(
                NodeGpu(gpu.index, gpu.uuid, use)
                for gpu, use in zip(config.gpus, self._health.use, strict=False)
            ),
        )
        return packing.pack(launch)
