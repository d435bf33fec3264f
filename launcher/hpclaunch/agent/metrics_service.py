"""The process that offers the metrics of a job to monitoring systems, over HTTP or in files.

It asks its agent as `hpclaunch status` does, at most once a second, however often it is scraped. So
scrapes cost the agent no more than one user of `hpclaunch status`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hpclaunch import __version__
from hpclaunch.agent.metrics_messages import REQUESTS, Complaint, Finish
from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.core.protocol.metrics import MetricFamily
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.observe.job_metrics import job_metrics
from hpclaunch.observe.job_report import JobReport, report
from hpclaunch.observe.launches import Launch
from hpclaunch.system.exposition import Exposition
from hpclaunch.system.metrics_target import MetricsTarget
from hpclaunch.system.network.view_client import ask
from hpclaunch.system.network.view_socket import LEDGER, LOOK, content_of
from hpclaunch.system.shared import packing
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode

ANSWER = 1.0  # seconds for an answer of the agent
FRESH = 1.0  # seconds for which a snapshot is used
LEDGER_FRESH = 5.0  # seconds for which a ledger is used
AWAKE = 5.0  # seconds between two snapshots while metrics are in use, so that agents keep reporting
IN_USE = 120.0  # seconds after the last scrape for which metrics count as in use
PERIOD = 15.0  # seconds between two times that a file is written, or a port is tried
OLD = 3600.0  # seconds after which another launch's file counts as left behind


class Known:
    """The metrics, from the answers of the agent. Its methods may be called in any thread."""

    def __init__(self, socket: bytes) -> None:
        self._socket = socket
        self._lock = threading.Lock()
        self._families: list[MetricFamily] = []
        self._looked_at = self._summed_at = -math.inf
        self._report: JobReport | None = None
        self._ended: Counter[str] = Counter()  # ended rounds by cause
        self._last_ended = -1  # the last of these rounds
        self.leads = False
        self.used_at = -math.inf  # time of the last scrape
        self.scrapes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable after one

    def scraped(self) -> list[MetricFamily]:
        self.used_at = time.monotonic()
        os.eventfd_write(self.scrapes, 1)
        return self.newest()

    def newest(self) -> list[MetricFamily]:
        """Return the newest metrics. If the agent does not answer, they are older, and the time of
        their snapshot shows it.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._looked_at + FRESH:
                data = self._ask(LOOK)
                self._looked_at = time.monotonic()
                if data:
                    launch = packing.unpack(data, LaunchSnapshot)
                    if launch.job is not None and now >= self._summed_at + LEDGER_FRESH:
                        self._summed_at = now
                        self._sum(self._ask(LEDGER), launch)
                    self._set(launch)
            return self._families

    def _ask(self, word: bytes) -> bytes:
        """Return the agent's answer, or b"" without one."""
        return ask(word, [self._socket], ANSWER).get(self._socket, b"")

    def end(self, look: bytes, ledger: bytes) -> None:
        """Use the agent's last snapshot and ledger from now on."""
        with self._lock:
            launch = packing.unpack(look, LaunchSnapshot)
            self._sum(ledger, launch)
            self._set(launch)
            self._looked_at = math.inf

    def _set(self, launch: LaunchSnapshot) -> None:
        self.leads = launch.job is not None
        self._families = job_metrics(launch, self._report, self._ended, __version__)

    def _sum(self, ledger: bytes, launch: LaunchSnapshot) -> None:
        if not ledger:  # another agent leads by now, or this one lacks facts of earlier heads
            return
        self._report = report([packing.unpack(ledger, Launch)])
        if launch.job is not None and launch.job.stage is Stage.STOPPING:
            return  # an earlier failure may still be reported, and change the cause
        for end in self._report.ends:  # a ledger keeps only the newest
            if end.round > self._last_ended:
                self._last_ended = end.round
                self._ended[end.cause] += 1


@dataclass(slots=True)
class MetricsService:
    channel: AgentChannel
    known: Known
    target: MetricsTarget
    name: str  # of this agent's file, if the target is a directory
    exposition: Exposition
    _complaints: set[str] = field(default_factory=set)  # sent once each
    _try_at: float = -math.inf  # when to listen, or to write, the next time

    def run(self) -> None:
        """Serve until the agent is gone."""
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        poll.register(self.known.scrapes, select.POLLIN)
        wait = 0.0
        try:
            while True:
                ready = dict(poll.poll(None if wait == math.inf else math.ceil(1000 * wait)))
                if self.known.scrapes in ready:
                    os.eventfd_read(self.known.scrapes)
                if self.channel.fileno() in ready:  # first, since the agent may no longer answer
                    for request in self.channel.read():
                        if isinstance(decode(REQUESTS, request), Finish):
                            self._finish()
                now = time.monotonic()
                if now >= self._try_at:
                    self._try_at = now + PERIOD
                    self._try()
                in_use = not self.target.port or now < self.known.used_at + IN_USE
                if in_use:
                    self.known.newest()
                wait = max(0.0, min(self._try_at - now, AWAKE if in_use else math.inf))
        except AgentGoneError:
            if self.target.directory and not self.known.leads:
                with contextlib.suppress(OSError):
                    self._file.unlink()

    def _try(self) -> None:
        """Listen, or write the file. Once the port listens, this is not repeated."""
        try:
            if self.target.port:
                self.exposition.serve(self.target.address, self.target.port)
                self._try_at = math.inf
            else:
                self._write()
        except OverflowError as e:  # several agents of a node, and no port left for this one
            self._complain(str(e))
        except OSError as e:
            self._complain(e.strerror or str(e))

    def _finish(self) -> None:
        """Write the last file: the job is over, and the agent no longer answers."""
        self.known.end(*map(content_of, self.channel.descriptors))
        self._try()

    def _complain(self, why: str) -> None:
        if why not in self._complaints:
            self._complaints.add(why)
            self.channel.send(Complaint(why).encoded())

    # Files

    def _write(self) -> None:
        """Write the file. Raises OSError."""
        is_known = bool(self.known.newest())
        if is_known and (self.known.leads or self.target.directory):
            self.exposition.write(self._file)

    @property
    def _file(self) -> Path:
        return Path(self.target.file or os.path.join(self.target.directory, self.name))

    def clean_up(self) -> None:
        """Remove files that earlier launches of this user have left in the directory."""
        with contextlib.suppress(OSError):
            for file in Path(self.target.directory).glob("hpclaunch-*.prom"):
                found = file.lstat()
                if found.st_uid == os.geteuid() and found.st_mtime < time.time() - OLD:
                    file.unlink()


def main(fd: str, _blocked: str, agent: str, socket: str, wanted: str) -> None:
    """Run the process. `socket` is that of the agent, in hexadecimal; for `wanted`, see
    MetricsServiceClient.
    """
    if not die_with(int(agent)):
        return
    settings = json.loads(wanted)
    known = Known(bytes.fromhex(socket))
    exposition = Exposition(known.scraped)
    target = MetricsTarget(**settings["target"])
    service = MetricsService(AgentChannel(fd), known, target, settings["name"], exposition)
    if target.directory:
        service.clean_up()
    service.run()
