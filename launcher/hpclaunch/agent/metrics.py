"""The metrics of a job that was started with --metrics: the adapter of the process that serves them
(`metrics_service.py`). If that process fails, the training continues.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ..core.protocol.effects import Exit
from ..core.protocol.node_facts import MetricsFailed
from ..core.protocol.process_kinds import ProcessKind
from ..system.shared.helper import Helper, place_of
from ..worker.messages import decode
from .adapter import Adapter, Fd
from .context import Context
from .metrics_messages import REPLIES, Finish
from .viewing import Viewing

if TYPE_CHECKING:
    from ..system.metrics_target import MetricsTarget

END_LIMIT = 5.0  # seconds for the last file; a file system may stall
LIBRARIES = ("msgspec", "prometheus_client")


class MetricsServiceClient(Helper):
    kind = ProcessKind.METRICS

    def __init__(self, asked: bytes, target: MetricsTarget, name: str) -> None:
        """Start the process. `asked` is the name of the socket at which the agent answers, `name`
        that of the file if the target is a directory. Raises OSError.
        """
        settings = json.dumps({"target": asdict(target), "name": name})
        words = (str(os.getpid()), asked.hex(), settings)
        paths = {*map(place_of, LIBRARIES)}
        super().__init__("hpclaunch.agent.metrics_service", *words, paths=paths)

    def complaints(self) -> list[str]:
        """Return the complaints received so far. Call this when the descriptor is readable."""
        return [decode(REPLIES, reply).why for reply in self.receive()]

    def finish(self, look: int, ledger: int, limit: float) -> list[str]:
        """Have the last file written from the agent's last answers, given as descriptors. Wait for
        that and return the complaints. Raises OSError, and TimeoutError after `limit` seconds.
        """
        self._lines.send(Finish().encoded(), [look, ledger])
        self._socket.shutdown(socket.SHUT_WR)  # the process ends after this request
        said: list[str] = []
        while not self.lost:
            if not self._is_ready(select.POLLIN, limit):
                raise TimeoutError
            said += self.complaints()
        return said


class Metrics(Adapter):
    """Runs the process that serves metrics, with --metrics only."""

    def __init__(self, context: Context, viewing: Viewing) -> None:
        self._config, self._viewing, self._record = context.config, viewing, context.record
        self._is_replaced = context.logs.is_replaced
        self._client: MetricsServiceClient | None = None
        if (target := self._config.metrics) is not None:
            self._target = self._of_this_agent(target)
            self._start()

    def _of_this_agent(self, target: MetricsTarget) -> MetricsTarget:
        """Return the target of this agent: the agents of one node have consecutive ports."""
        own = self._config.place
        here = [place for place in self._config.job.places if place.node == own.node]
        return replace(target, port=target.port + here.index(own)) if target.port else target

    def _start(self) -> None:
        allocation = self._config.allocation
        name = f"hpclaunch-{allocation.name}-{allocation.label}.prom"
        if not self._viewing.name:
            self._complain(f"the agent has no socket to answer at: {self._viewing.failure}")
            return
        try:
            self._client = MetricsServiceClient(self._viewing.name, self._target, name)
        except OSError as e:
            self._complain(e.strerror or str(e))

    def fds(self) -> Iterable[Fd]:
        return () if self._client is None else (self._client.fileno(),)

    def ready(self, fds: Collection[Fd], now: float) -> None:
        client = self._client
        if client is None or client.fileno() not in fds:
            return
        for why in client.complaints():
            self._complain(why)
        if client.lost:
            self.close()
            if self._is_replaced(client):
                self._start()

    def conclude(self, end: Exit) -> None:
        """Have the last file written, from the last snapshot and ledger."""
        if self._client is not None and not self._target.port and not self._client.lost:
            try:
                for why in self._client.finish(*self._viewing.last(), END_LIMIT):
                    self._complain(why)
            except TimeoutError:
                self._complain(f"it was not written within {END_LIMIT:g} s at the end of the job")
            except OSError:
                pass  # it was killed

    def close(self) -> None:
        if self._client is not None:
            self._client.abandon()
            self._client = None

    def _complain(self, why: str) -> None:
        target = self._target
        where = target.file or target.directory or f"port {target.port} of {target.address}"
        self._record(MetricsFailed(self._config.host, where, why))
