"""The history of an agent, to which the log service appends a moment now and then.

Workers and GPUs are asked for it here, on this agent's own node, and neither through the head nor
as events: what is noted decides nothing, and is none of the journal's news.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.control import Control
from ..core.protocol.facts import Fact, SeatUse
from ..core.protocol.model import Phase, RankVitals
from ..system.logs.log_directory import HISTORIES
from .adapter import Adapter
from .config import Config
from .fork_server import ForkServer
from .health_watch import HealthWatch
from .later_imports import AFTER
from .logs import Logs
from .resuming import Resuming

if TYPE_CHECKING:
    from ..core.history.moment import SavedMoment, WorkersMoment

ASKS = 10.0  # seconds at least between two times that workers and GPUs are asked: that costs most
SLACK = 1.5  # seconds that a moment may be late: to wake up for it costs more than to note it
ANSWER = 1.0  # seconds for those who are asked
MOST_CHANGES = 2000  # that are noted at once; later ones with the next moment


class HistoryKeeping(Adapter):
    """Has the workers and the GPUs looked at, and the newest checkpoint if this agent leads."""

    def __init__(
        self,
        config: Config,
        control: Control,
        logs: Logs,
        fork_server: ForkServer,
        health: HealthWatch,
        resuming: Resuming,
    ) -> None:
        self._directory = None if config.logs is None else config.logs.path
        self._name = HISTORIES.name(config.allocation.label, time.time())
        self._launch, self._places = config.allocation.name, config.job.places
        self._control, self._logs = control, logs
        self._fork_server, self._health, self._resuming = fork_server, health, resuming
        self._began = time.monotonic()
        self._due = self._began + AFTER
        self._ask_at, self._take_at = self._began, math.inf
        self._vitals: Sequence[RankVitals] = ()
        self._is_titled = self._is_named = False  # whose it is, and the job's hosts, are noted
        self._round = (-1, False)  # that is noted: which, and whether its workers are there
        self._use: SeatUse | None = None  # what the seats of the job do
        self._noted: SeatUse | None = None  # the same, when the last moment was noted
        self._left = MOST_CHANGES

    def deadline(self) -> float:
        due = math.inf if self._directory is None else min(self._due, self._take_at)
        return due + SLACK  # most often, something else wakes the loop before

    def note(self, fact: Fact, at: float) -> None:
        """Note a fact that this agent has recorded."""
        if isinstance(fact, SeatUse) and not self._is_known(fact):
            self._use = fact

    def _is_known(self, use: SeatUse) -> bool:
        known = self._use
        return known is not None and (known.round, known.seats) == (use.round, use.seats)

    def _ask(self) -> None:
        self._health.ask_use()
        self._fork_server.ask_vitals(self._hear)
        if self._control.leads:
            self._resuming.ask_newest()

    def _hear(self, vitals: Sequence[RankVitals]) -> None:
        self._vitals = vitals

    def update(self, now: float) -> None:
        if self._directory is None:
            return
        saved = self._resuming.newest
        leads, phase = self._control.leads, self._control.member.phase
        here = phase in (Phase.RUNNING, Phase.STOPPING)
        is_gone = self._round == (self._control.member.round, True) and not here
        noted = False
        if now >= self._due:
            from ..core.history import moment

            self._due = now + moment.period(now - self._began, len(self._places))
            if phase is Phase.RUNNING and now >= self._ask_at:
                self._ask_at, self._take_at = now + ASKS - ANSWER, now + ANSWER
                self._vitals = ()
                self._ask()
            elif phase is Phase.RUNNING or leads:
                workers = self._control.workers_moment(now) if here or is_gone else None
                self._write(workers, saved)
                noted = True
        if now >= self._take_at:
            self._take_at = math.inf
            if phase is Phase.RUNNING:
                workers = self._control.workers_moment(now, self._vitals, self._health.use)
                self._write(workers, saved)
        seen = (self._control.member.round, here)
        if seen != self._round or self._use is not self._noted:
            self._round = seen
            if now < self._began + AFTER and not is_gone:
                return  # that is noted then
            self._noted = self._use
            if self._left and (leads or is_gone) and not noted:
                self._left -= 1
                workers = self._control.workers_moment(now) if here or is_gone else None
                self._write(workers, saved)

    def _write(self, workers: WorkersMoment | None, saved: SavedMoment | None) -> None:
        from ..core.history import moment
        from ..system.logs import history_files

        control, text = self._control, ""
        if not self._is_titled:  # now that this agent has its place
            host = self._places[control.index].host
            text = history_files.title(self._launch, control.index, host)
        job, snapshot = None, control.snapshot(time.monotonic())
        if snapshot is not None:
            job = moment.of_job(snapshot, saved, is_first=not self._is_named)
        noted = moment.AgentMoment(round(time.time(), 2), control.member.round, workers, job)
        assert self._directory is not None, "the caller has looked"
        lines = text + history_files.line(noted)
        if self._logs.service.append(self._directory, self._name, lines):
            self._is_titled = True
            self._is_named = self._is_named or job is not None
