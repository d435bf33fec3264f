"""The health of this agent's node: checked before every round, and watched during it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, ClassVar

from ..core.health.findings import Finding, Grade, failed, reason
from ..core.health.host_rules import Disk, judge_checkpoints, judge_host
from ..core.placement import worker_environment
from ..core.protocol import effects, events
from ..core.protocol.model import NO_RANK
from ..core.protocol.node_facts import HealthWarning, XidReported
from ..system.hosts import host
from ..system.logs import messages
from .adapter import Adapter, Fd, Performs
from .context import Context

if TYPE_CHECKING:  # modules that only a node with GPUs has to load
    from ..core.health.gpu_rules import XidSeen
    from ..core.protocol.gpu_use import GpuUse
    from ..system.gpus.gpu_watcher_client import GpuWatcherClient
    from ..system.gpus.watcher_messages import GpuReport


DISK_LIMIT = 3.0  # seconds


class HealthWatch(Adapter):
    """Reports findings that make the node unfit to the core, and records each warning once."""

    limits_helper: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        self._config = config = context.config
        self._logs, self._note, self._record = context.logs, context.note, context.record
        self._host, here = context.host, config.place
        # Warnings about the whole node are recorded by the first of its agents.
        of_node = [place for place in config.job.places if place.node == here.node]
        self._first_here, self._tasks_here = here == of_node[0], len(of_node)
        self._gpus = config.gpus if config.selector == worker_environment.CUDA else ()
        self._watcher: GpuWatcherClient | None = None
        self._checks = 0  # how many have begun to check the host
        self.use: tuple[GpuUse, ...] = ()  # the newest reading of the GPUs' use
        self._warned: set[str] = set()  # checks whose warning was recorded
        self._ranks: dict[int, int] = {}  # of the round's workers, by pid
        self._faults: dict[XidReported, str] = {}  # Xids that the round's programs caused, as text

    def performs(self) -> Performs:
        return {effects.CheckHealth: lambda _: self._ask_for_disk()}

    def fds(self) -> Iterable[Fd]:
        watcher = self._watcher
        return () if watcher is None or watcher.lost else (watcher.fileno(),)

    def deadline(self) -> float:
        return math.inf if self._watcher is None else self._watcher.next_deadline()

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()

    # Before a round

    def _ask_for_disk(self) -> list[events.Event]:
        """Begin a check by asking the log service about its disk, since a file system may hang."""
        if self._config.logs is None:
            return self._check(None)
        path, service = str(self._config.logs.path), self._logs.service

        def done(reply: messages.Reply | None) -> list[events.Event]:
            if isinstance(reply, messages.DiskFound):
                return self._check(reply.disk)
            if service is not self._logs.service:  # its successor was not asked
                return self._ask_for_disk()
            return self._check(Disk(path, silent=True))

        self._logs.ask(messages.LookAtDisk(path), done, DISK_LIMIT)
        return []

    def _check(self, logs: Disk | None) -> list[events.Event]:
        """Check the host, and have the GPU watcher check the GPUs. The event HealthFound follows,
        now or later. `logs` is the disk of the log directory.
        """
        number, self._checks = self._checks, self._checks + 1
        dead, self._ranks, self._faults = tuple(self._ranks), {}, {}
        workers, several = self._config.nproc * self._tasks_here, self._config.job.nodes > 1
        seen = host.read(workers, logs=logs, first=number == 0, several=several)
        findings = judge_host(seen) + list(self._config.broken)
        self._note("health", [str(f) for f in findings])
        self._warn(findings if self._first_here else ())
        if failed(findings) or not self._gpus:
            return [self._found(findings)]
        try:
            self._open_watcher().check(number, dead)
        except OSError as e:
            why = f"cannot start the process that reads it: {e.strerror}"
            unchecked = f"{why}: the GPUs of this host were not checked"
            self._warn([Finding("NVML", unchecked, Grade.WARN)])
            return [self._found(findings)]
        return []

    def _open_watcher(self) -> GpuWatcherClient:
        """Return the GPU watcher, and start it if there is none. Raises OSError."""
        if self._watcher is None:
            from ..system.gpus.gpu_watcher_client import GpuWatcherClient

            self._watcher = GpuWatcherClient(self._gpus)
        elif self._watcher.lost:
            self._watcher.close()
            self._watcher = self._watcher.successor()
        return self._watcher

    def look_at_checkpoints(self, disk: Disk) -> None:
        """Warn if the disk of the checkpoint directory, as the last search has seen it, is full."""
        if self._config.job.health:
            self._warn(judge_checkpoints(disk))

    # During a round

    def ask_use(self) -> None:
        """Ask for the GPUs' use, which is in `use` once the answer has arrived."""
        if self._watcher is not None and not self._watcher.lost:
            self._watcher.ask_use()

    def started(self, rank: int, pid: int) -> None:
        self._ranks[pid] = rank

    def faults_of(self, rank: int) -> list[str]:
        """Return the Xids that programs have caused: those of this rank, and of no known rank."""
        return [text for fault, text in self._faults.items() if fault.rank in (rank, NO_RANK)]

    def ready(self, fds: Collection[Fd], now: float) -> list[events.Event]:
        watcher = self._watcher
        if watcher is None or watcher.lost or watcher.fileno() not in fds:
            return []
        reports = list(watcher.reports())
        if watcher.lost and self._logs.is_replaced(watcher):
            with contextlib.suppress(OSError):  # the next check tries again
                self._open_watcher()
        return [event for report in reports for event in self._on_report(report)]

    def update(self, now: float) -> list[events.Event]:
        """Continue without an answer that is too late."""
        if self._watcher is None or now < self._watcher.next_deadline():
            return []
        return self._on_report(self._watcher.expire())

    def _on_report(self, report: GpuReport) -> list[events.Event]:
        if report.use is not None:
            self.use = report.use
            self._warn(report.findings)
            return []
        self._note("health", [str(f) for f in (*report.findings, *report.xids)])
        self._warn(report.findings)
        for seen in report.xids:
            if seen.of_program:
                self._on_fault(seen)
        answer = report.round is not None or failed(report.findings)
        return [self._found(report.findings)] if answer else []

    def _on_fault(self, seen: XidSeen) -> None:
        """Record an Xid once in a round, since the driver may report the same one repeatedly. The
        agent whose workers or their children use the GPU does so, if several agents of a node see
        it.
        """
        ranks = [self._ranks[pid] for pid in seen.pids if pid in self._ranks]
        if seen.pids and not ranks and self._tasks_here > 1:
            return
        rank = ranks[0] if len(ranks) == 1 else NO_RANK  # any of several may have caused it
        fault = XidReported(self._host, rank, seen.name, seen.number, seen.meaning)
        if fault not in self._faults:
            self._faults[fault] = str(seen)
            self._record(fault)

    def _warn(self, findings: Iterable[Finding]) -> None:
        for f in findings:
            if f.grade is Grade.WARN and f.check not in self._warned:
                self._warned.add(f.check)
                self._record(HealthWarning(self._host, f.check, f.found, f.advice))

    def _found(self, findings: Collection[Finding]) -> events.HealthFound:
        wrong = reason(f for f in findings if f.grade is Grade.FAIL)
        alone = bool(wrong) and self._config.job.nodes == 1
        return events.HealthFound(wrong + " (--health off starts anyway)" * alone)
