"""The history of an agent: a file to which the log service appends a moment now and then.

Each agent asks only its own workers and GPUs, without the head. No decision depends on the history,
so it needs no events, and the journal does not have it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from ..core.control import Control
from ..core.member.moments import AgentMoment, WorkersMoment, period
from ..core.protocol.model import Phase, RankVitals
from ..system.logs import history_files
from ..system.logs.log_directory import history_of
from .adapter import Adapter
from .context import Context
from .fork_server import ForkServer
from .health_watch import HealthWatch
from .resuming import Resuming

ASKS = 10.0  # seconds between two queries to workers and GPUs, at least: they cost most
SLACK = 1.5  # seconds that a moment may be late: waking up for it costs more than writing it
ANSWER = 1.0  # seconds for workers and GPUs to answer


class HistoryKeeping(Adapter):
    """Writes the moments of this agent. If it leads, it also looks for the newest checkpoint."""

    def __init__(
        self,
        context: Context,
        control: Control,
        fork_server: ForkServer,
        health: HealthWatch,
        resuming: Resuming,
    ) -> None:
        config = context.config
        self._directory = config.directory
        self._name = history_of(config.allocation.label, time.time())
        self._launch, self._places = config.allocation.name, config.job.places
        self._control, self._date, self._logs = control, context.date, context.logs
        self._fork_server, self._health, self._resuming = fork_server, health, resuming
        self._began = time.monotonic()
        self._due = self._began + period(0.0, len(config.job.places))
        self._ask_at = self._began
        self._take_at = math.inf
        self._vitals: Sequence[RankVitals] = ()
        self._is_titled = False  # the file has its first line
        self._round = (-1, False)  # the last round noted, and whether its workers were running

    def deadline(self) -> float:
        due = math.inf if self._directory is None else min(self._due, self._take_at)
        return due + SLACK  # usually, something else wakes the loop before

    def _ask(self) -> None:
        self._health.ask_use()
        self._fork_server.ask_vitals(self._hear)
        if self._control.leads:
            self._resuming.seek_newest()

    def _hear(self, vitals: Sequence[RankVitals]) -> None:
        self._vitals = vitals

    def update(self, now: float) -> None:
        if self._directory is None:
            return
        number, phase = self._control.member.round, self._control.member.phase
        here = phase in (Phase.RUNNING, Phase.STOPPING)
        is_gone = self._round == (number, True) and not here
        is_new = self._round != (number, here)
        self._round = (number, here)
        is_due = now >= self._due
        if is_due:
            self._due = now + period(now - self._began, len(self._places))
        if is_due and phase is Phase.RUNNING and now >= self._ask_at:
            self._ask_at, self._take_at = now + ASKS - ANSWER, now + ANSWER
            self._vitals = ()
            self._ask()
            is_due = False
        if (is_due or is_new) and (here or is_gone):
            self._write(self._control.workers_moment(now))
        if now >= self._take_at:
            self._take_at = math.inf
            if phase is Phase.RUNNING:
                gpus = self._health.use
                self._write(self._control.workers_moment(now, self._vitals, gpus))

    def _write(self, workers: WorkersMoment | None) -> None:
        assert self._directory is not None, "the caller has looked"
        if workers is None:
            return
        index, text = self._control.index, ""
        if self._logs.service.unwritten.pop(self._name, 0):
            self._is_titled = False  # the title may be among the lost lines
        if not self._is_titled:  # by now, this agent has its place
            text = history_files.title(self._launch, index, self._places[index].host)
        noted = AgentMoment(round(self._date.now(), 2), self._control.member.round, workers)
        lines = text + history_files.line(noted)
        if self._logs.service.append(self._directory, self._name, lines):
            self._is_titled = True
