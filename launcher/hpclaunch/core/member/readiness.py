"""Whether a node is ready for workers: a store could begin there, and nothing is broken."""

from __future__ import annotations

from ..protocol.effects import CheckHealth, Effect, OpenStore
from ..protocol.model import Job


class Readiness:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.store_port = 0
        self.unfit = ""  # stays so: its workers would fail again, or hang
        self._listening = False  # a store could begin at that port
        self._looked = False  # at this node's health, since the last round

    @property
    def full(self) -> bool:
        return self._listening and self._looked

    def begin(self) -> list[Effect]:
        self._looked = not self.job.health
        return self.open_store() + ([] if self._looked else [CheckHealth()])

    def open_store(self) -> list[Effect]:
        self._listening = False
        return [OpenStore()]

    def listening(self, port: int) -> None:
        self.store_port = port
        self._listening = True

    def looked(self, unfit: str) -> None:
        self.unfit = self.unfit or unfit
        self._looked = True
