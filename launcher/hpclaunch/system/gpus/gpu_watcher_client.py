"""The agent's client of its GPU watcher (`gpu_watcher.py`)."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence

from hpclaunch.core.health.findings import Finding, Grade
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.worker.messages import decode

from ..shared.helper import Helper, place_of
from .watcher_messages import REPLIES, AskUse, Check, GpuReport

PERIOD = 30.0  # seconds between two looks at the GPUs while the workers run
# Seconds until NVML is initialised. Without persistence mode, every GPU is initialised first.
INIT_LIMIT = 60.0
ANSWER_LIMIT = 10.0  # seconds, including the five that the memory of dead workers may take


class GpuWatcherClient(Helper):
    """A client that sends checks and returns reports. Every check is answered: by the watcher, or
    by this client at `next_deadline` or once the watcher is gone, and then `lost` is set.
    """

    kind = ProcessKind.GPUS

    def __init__(self, gpus: Sequence[Gpu], period: float = PERIOD) -> None:
        self.gpus = tuple(gpus)
        self.period = period
        wanted = json.dumps([(gpu.uuid, gpu.name) for gpu in self.gpus])
        super().__init__(
            "hpclaunch.system.gpus.gpu_watcher",
            *(str(os.getpid()), str(period), wanted),
            paths=[place_of("pynvml")],
            stdout=subprocess.DEVNULL,
        )
        self._round: int | None = None  # of the check that waits for its answer
        self._deadline = math.inf
        self._use_asked = False
        self._use_deadline = math.inf
        self._limit = INIT_LIMIT  # for the first answer, since it initialises NVML

    def successor(self) -> GpuWatcherClient:
        return GpuWatcherClient(self.gpus, self.period)

    def next_deadline(self) -> float:
        return min(self._deadline, self._use_deadline)

    def check(self, round: int, dead: Collection[int] = ()) -> None:  # noqa: A002
        """Ask for all that is wrong before a round begins, while no worker of ours is running.

        `dead` are the pids of the last round's workers. The answer waits for their memory.
        """
        self._round, self._deadline = round, time.monotonic() + self._limit
        self.send(Check(round, tuple(sorted(dead))))

    def ask_use(self) -> None:
        """Ask how the GPUs are used. A report has the answer, or a warning that NVML hangs. Calls
        before the answer do nothing.
        """
        if not self._use_asked:
            self._use_asked, self._use_deadline = True, time.monotonic() + self._limit
            self.send(AskUse())

    def reports(self) -> Iterator[GpuReport]:
        """Yield the reports that have arrived. Call this when the descriptor is readable."""
        for reply in self.receive():
            report = decode(REPLIES, reply)
            if report.use is not None:
                self._use_asked, self._use_deadline = False, math.inf
            elif report.round is not None and report.round == self._round:
                self._round, self._deadline, self._limit = None, math.inf, ANSWER_LIMIT
            yield report
        if self.lost:
            self._use_deadline = math.inf
        if self.lost and self._round is not None:
            why = "the process that reads NVML has ended: the GPUs of this host were not checked"
            yield self._answer(Finding("NVML", why, Grade.WARN))

    def expire(self) -> GpuReport:
        """Report that NVML hangs. Call this at `next_deadline`. If a check has waited until then,
        kill the watcher and report a failure. Otherwise only warn: workers may still run well.
        """
        found = f"does not answer within {self._limit:.0f} s"
        advice = "most likely a GPU fell off the bus: look at dmesg, and reboot the node"
        if self._use_deadline < self._deadline:
            self._use_deadline = math.inf
            return GpuReport((Finding("NVML", found, Grade.WARN, advice),), use=())
        self._lost_at, self._use_deadline = time.monotonic(), math.inf
        self._process.kill()
        return self._answer(Finding("NVML", found, Grade.FAIL, advice))

    def _answer(self, finding: Finding) -> GpuReport:
        """Return an answer on the watcher's behalf."""
        report = GpuReport((finding,), self._round)
        self._round, self._deadline = None, math.inf
        return report

    def close(self) -> None:
        self.abandon()
