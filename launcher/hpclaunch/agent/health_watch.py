"""Whether this agent's node is fit for workers: checked before every round, watched during it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import zmq

from ..core.health.findings import Finding, Grade, failed, reason
from ..core.health.host_rules import Disk, judge_checkpoints, judge_host
from ..core.placement import worker_environment
from ..core.protocol import events
from ..system.hosts import host
from .config import Config

if TYPE_CHECKING:  # what only a node with GPUs has to load
    from ..core.health.gpu_rules import XidSeen
    from ..core.protocol.gpu_use import GpuUse
    from ..system.gpus.gpu_watcher_client import GpuReport, GpuWatcherClient
    from ..system.shared.helper import Helper


class HealthWatch:
    """What makes the node unfit becomes an event. Anything less is told to the user, once."""

    def __init__(
        self,
        config: Config,
        poller: zmq.Poller,
        say: Callable[[str], None],
        note: Callable[[str, Any], None],
        is_replaced: Callable[[Helper], bool],
    ) -> None:
        self._is_replaced = is_replaced
        self._config = config
        self._poller = poller
        self._say = say
        self._note = note
        here = config.job.places[config.allocation.index]
        self._host = here.host
        # What concerns the whole node is told by one of its agents.
        self._first_here = here == next(p for p in config.job.places if p.node == here.node)
        self._gpus = config.gpus if config.selector == worker_environment.CUDA else ()
        self._watcher: GpuWatcherClient | None = None
        self._checks = 0
        self.use: tuple[GpuUse, ...] = ()  # of the GPUs, as it was told last
        self._told: set[str] = set()
        self._ranks: dict[int, int] = {}  # by the pids of a round's workers
        self._faults: list[tuple[int | None, XidSeen]] = []  # of the round's programs, with ranks

    def next_deadline(self) -> float:
        return float("inf") if self._watcher is None else self._watcher.next_deadline()

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()

    # Before a round

    def check(self, logs: Disk | None) -> list[events.Event]:
        """Answered by HealthFound, here or later. `logs` is the disk of the log directory."""
        number, self._checks = self._checks, self._checks + 1
        dead, self._ranks, self._faults = tuple(self._ranks), {}, []
        seen = host.read(
            self._config.nproc,
            logs=logs,
            first=number == 0,
            several=self._config.job.nodes > 1,
        )
        findings = judge_host(seen) + list(self._config.broken)
        self._note("health", [str(f) for f in findings])
        self._warn(findings if self._first_here else ())
        if failed(findings) or not self._gpus:
            return [self._found(findings)]
        self._open_watcher().check(number, dead)
        return []

    def _open_watcher(self) -> GpuWatcherClient:
        if self._watcher is None:
            from ..system.gpus.gpu_watcher_client import GpuWatcherClient

            self._watcher = GpuWatcherClient(self._gpus)
        elif self._watcher.lost:
            self._watcher.close()
            self._watcher = self._watcher.successor()
        self._poller.register(self._watcher.fileno(), zmq.POLLIN)
        return self._watcher

    def look_at_checkpoints(self, disk: Disk) -> None:
        """Judges the disk of the checkpoint directory, as the search for the newest has seen it."""
        if self._config.job.health:
            self._warn(judge_checkpoints(disk))

    # During a round

    def ask_use(self) -> None:
        """For people who look at the job: `use` has it once it is told."""
        if self._watcher is not None and not self._watcher.lost:
            self._watcher.ask_use()

    def started(self, rank: int, pid: int) -> None:
        self._ranks[pid] = rank

    def faults_of(self, rank: int) -> list[str]:
        """The Xids that the driver has reported for a worker, and that are its own fault."""
        return [str(seen) for of, seen in self._faults if of in (rank, None)]

    def receive(self, ready: Mapping[Any, int]) -> list[events.Event]:
        watcher = self._watcher
        if watcher is None or watcher.fileno() not in ready:
            return []
        reports = list(watcher.reports())
        if watcher.lost:
            self._poller.unregister(watcher.fileno())
            if self._is_replaced(watcher):
                with contextlib.suppress(OSError):  # the next check tries again
                    self._open_watcher()
        return [event for report in reports for event in self._on_report(report)]

    def expire(self, now: float) -> list[events.Event]:
        """Call it after `receive`."""
        if self._watcher is None or now < self._watcher.next_deadline():
            return []
        self._poller.unregister(self._watcher.fileno())
        return self._on_report(self._watcher.expire())

    def _on_report(self, report: GpuReport) -> list[events.Event]:
        if report.use is not None:
            self.use = report.use
            return []
        self._note("health", [str(f) for f in (*report.findings, *report.xids)])
        self._warn(report.findings)
        for seen in report.xids:
            if seen.of_program:
                self._on_fault(seen)
        answer = report.round is not None or failed(report.findings)
        return [self._found(report.findings)] if answer else []

    def _on_fault(self, seen: XidSeen) -> None:
        rank = next((self._ranks[pid] for pid in seen.pids if pid in self._ranks), None)
        self._faults.append((rank, seen))
        who = self._host if rank is None else f"rank {rank} on {self._host}"
        self._say(f"{who}: {seen}")

    def _warn(self, findings: Iterable[Finding]) -> None:
        for f in findings:
            if f.grade is Grade.WARN and f.check not in self._told:
                self._told.add(f.check)
                advice = f" ({f.advice})" if f.advice else ""
                self._say(f"on {self._host}: {f.check}: {f.found}{advice}")

    def _found(self, findings: Collection[Finding]) -> events.HealthFound:
        wrong = reason(f for f in findings if f.grade is Grade.FAIL)
        alone = bool(wrong) and self._config.job.nodes == 1
        return events.HealthFound(wrong + " (--health off starts in spite of it)" * alone)
