"""The agent: the only loop. Events come in from system/, effects of the core go out to it.

One thread, one poll; its time-out is the core's next deadline. Nothing is decided here.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zmq

from . import report
from .config import Config
from .core import effects, events
from .core.control import Control
from .core.errors import UsageError
from .core.model import EXIT_LOST, HEAD, Assignment, Trouble, Verdict
from .core.restarts import signal_name
from .system import forkserver, net, route, secret, wire
from .system.checkpoints import Search
from .system.console import Console
from .system.journal import Journal
from .system.logs import Mirror, tail
from .system.signals import Signals
from .workers import workers_of

STALLED = 10.0  # seconds that the end waits for a console that takes nothing


class Agent:
    """Built from a Config; `run` returns the job's exit code once everybody is done."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        signals: Signals,
        server: forkserver.ForkServer,
    ) -> None:
        self.config = config
        self.environ = environ
        self.place = config.job.places[config.allocation.index]
        self.signals = signals
        self.forkserver = server
        if self.place.index == HEAD:
            self._prepare_store()
        self.out, self.err = Console(1), Console(2)
        self.mirror = Mirror()
        self.channel: net.HeadChannel | net.MemberChannel | None = None
        try:
            address = self._join()
        except UsageError as e:
            raise UsageError(f"on {self.place.host}: {e}") from e
        except OSError as e:
            raise UsageError(f"{self.place.host} cannot reach the other hosts: {e}") from e
        incarnation = os.urandom(8).hex()
        self.control = Control(config.job, self.place.index, config.nproc, address, incarnation)
        self.journal = Journal(None if config.logs is None else config.logs.path, self.place.index)
        self.search: Search | None = None
        self.round_dir: Path | None = None
        self.verdict: Verdict | None = None
        self._events: deque[events.Event] = deque()
        self._poller = zmq.Poller()

    def _join(self) -> str:
        """Open the channel to the other agents; returns our address as they see it."""
        job = self.config.job
        if job.nodes == 1:
            address = route.LOOPBACK
        elif self.place.node == 0:
            others = (p.host for p in job.places if p.node != 0)
            address = route.source_address(route.resolve_any(others))
        else:
            address = route.source_address(route.resolve_any([job.places[HEAD].host]))
        if len(job.places) == 1:
            return address
        shared = secret.load_or_create(secret.secret_path(self.environ))
        keys = net.derive(shared, self.config.allocation.identity)
        if self.place.index == HEAD:
            self.channel = net.HeadChannel(keys, len(job.places), wire.MAX_BYTES)
        else:
            near = self.place.node == 0
            head = [route.LOOPBACK] if near else route.resolve(job.places[HEAD].host)
            self.channel = net.MemberChannel(keys, self.place.index, head, wire.MAX_BYTES)
        return address

    # The loop

    def run(self) -> int:
        try:
            for source in (self.signals, self.forkserver, self.mirror):
                if source.fileno() >= 0:
                    self._poller.register(source.fileno(), zmq.POLLIN)
            for socket in self.channel.sockets if self.channel else ():
                self._poller.register(socket, zmq.POLLIN)
            for note in self.config.notes if self.place.index == HEAD else ():
                self._say(note)
            self._deliver(events.Started())
            if self.config.trouble is not None:
                self._deliver(events.TroubleFound(self.config.trouble))
            while self.verdict is None:
                self._turn()
            self.signals.ignore()
            self._conclude(self.verdict)
            return self.verdict.code
        finally:
            if self.search is not None:
                self.search.close()
            self.mirror.close()
            self.forkserver.close()
            if self.channel is not None:
                self.channel.close()

    def _turn(self) -> None:
        for console in (self.out, self.err):
            if console.wanting:
                self._poller.register(console.fd, zmq.POLLOUT)
        deadline = min(self.control.next_deadline(), self.mirror.next_deadline())
        wait = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic()) * 1000
        # Rounded up: to wake a moment early would be to turn in vain until the time has come.
        ready = dict(self._poller.poll(None if wait is None else math.ceil(wait)))
        for console in (self.out, self.err):
            if console.fd in ready:
                self._poller.unregister(console.fd)
                console.flush()
        # What was heard comes before what the clock says: after a pause of this process, the
        # messages of the others are there and prove that they were never silent.
        self._read_all(ready)
        now = time.monotonic()
        if now >= self.control.next_deadline():
            self._deliver(events.Tick())
        if complaint := self.journal.complaint():
            self._say(complaint)
        self.mirror.wake(now)

    def _read_all(self, ready: Mapping[Any, int]) -> None:
        if self.signals.fileno() in ready:
            for signum in self.signals.receive():
                self._deliver(events.Signalled(signum))
        if self.forkserver.fileno() in ready:
            for reply in self.forkserver.receive():
                self._on_reply(reply)
            if self.forkserver.lost:
                self._poller.unregister(self.forkserver.fileno())
                reason = f"the fork server on {self.place.host} was killed"
                self._deliver(events.TroubleFound(Trouble(EXIT_LOST, reason)))
                self._deliver(events.WorkersGone())
        if self.search is not None and self.search.fileno() in ready:
            self._on_search(self.search)
        if self.channel is not None:
            for item in self.channel.receive():
                self._on_channel(item)

    def _deliver(self, event: events.Event) -> None:
        """Give an event to the core and carry out what it asks, and what comes of that."""
        self._events.append(event)
        while self._events:
            event = self._events.popleft()
            now = time.monotonic()
            self.journal.record("event", now, event)
            for effect in self.control.handle(event, now):
                self.journal.record("effect", now, effect)
                self._carry_out(effect)

    # Events

    def _on_reply(self, reply: dict[str, Any]) -> None:
        """What the fork server tells."""
        match reply:
            case {"event": "listening", "port": port}:
                self._deliver(events.StoreListening(port))
            case {"event": "exit", "rank": rank, "code": code, "signal": signum}:
                assert self.round_dir is not None, "no worker without a round"
                names = [self.round_dir / f"rank-{rank}.{kind}" for kind in ("err", "out")]
                last = tail(*names) if code else ""
                self._deliver(events.WorkerExited(rank, code, signum, last))
            case {"event": "gone"}:
                self.mirror.finish(time.monotonic())
                self._deliver(events.WorkersGone())
            case {"event": "unhandled", "signum": signum, "ranks": ranks}:
                who = ", ".join(map(str, ranks))
                name = signal_name(signum)
                self._say(f"{name} not passed on to rank {who}: the script has no handler for it")
            case {"event": "store-exit", "code": code}:
                where = "" if self.config.logs is None else f", see {self.config.logs.path}"
                self._say(
                    f"the store process on {self.place.host} ended with {code}{where}/store.err: "
                    "workers that use torch.distributed cannot meet"
                )
            case {"event": "started"}:
                self.journal.note("started", time.monotonic(), reply)

    def _on_search(self, search: Search) -> None:
        try:
            answer = search.receive()
        except OSError as e:
            self._stop_search(search)
            reason = f"cannot look for checkpoints in {self.config.checkpoint_dir}: {e}"
            self._deliver(events.TroubleFound(Trouble(EXIT_LOST, reason)))
            return
        if answer is not None:
            self._stop_search(search)
            self._deliver(events.CheckpointChosen(answer[0], tuple(answer[1])))

    def _stop_search(self, search: Search) -> None:
        self._poller.unregister(search.fileno())
        search.close()
        self.search = None

    def _on_channel(self, item: net.Item) -> None:
        if isinstance(item, net.Closed):
            self._deliver(events.PeerClosed(item.index))
            return
        if isinstance(item, net.Reached):
            if self.place.index != HEAD:
                self._deliver(events.HeadReached())
            return
        try:
            message = wire.decode(item.data)
        except wire.WireError as e:
            self._say(f"ignored from {item.address}: {e}")
            return
        self._deliver(events.Received(item.sender, message, item.address))

    # Effects

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(to=to, message=message):
                if self.channel is not None:
                    self.channel.send(to, wire.encode(message))
            case effects.OpenStore():
                self.forkserver.listen(loopback=self.config.job.nodes == 1)
            case effects.ChooseCheckpoint():
                self._choose_checkpoint()
            case effects.StartWorkers(assignment=part):
                try:
                    self._start_workers(part)
                except OSError as e:
                    reason = f"cannot write logs on {self.place.host}: {e.strerror}: {e.filename}"
                    trouble = Trouble(EXIT_LOST, reason)
                    self._events += [events.TroubleFound(trouble), events.WorkersGone()]
            case effects.SignalWorkers(signum=signum):
                self.forkserver.signal(signum)
            case effects.StopWorkers():
                self.forkserver.stop()
            case effects.KillWorkers():
                self.forkserver.kill()
            case effects.Say(text=text):
                self._say(text)
            case effects.Exit(verdict=verdict):
                self.verdict = verdict

    def _choose_checkpoint(self) -> None:
        if self.config.checkpoint_dir is None:
            self._events.append(events.CheckpointChosen(""))
            return
        self.search = Search(str(self.config.checkpoint_dir))
        self._poller.register(self.search.fileno(), zmq.POLLIN)

    def _start_workers(self, part: Assignment) -> None:
        logs = self.config.logs
        assert logs is not None, "an agent without logs has trouble and starts nothing"
        self.round_dir = logs.round(part.round)
        workers, shared = workers_of(part, self.config, self.environ, self.round_dir)
        self.mirror.forget()
        for worker in workers:
            self.mirror.follow(worker.out, self.out)
            self.mirror.follow(worker.err, self.err)
        if part.hosts_store:
            self._prepare_store()
        self.forkserver.start(workers, shared, store=part.hosts_store)

    def _prepare_store(self) -> None:
        """It imports torch while the agents still find each other."""
        if self.config.logs is not None:
            errors = str(self.config.logs.path / "store.err")
            self.forkserver.prepare_store(self.config.python, errors)

    def _say(self, text: str) -> None:
        """A line to the user, after all that the workers have written so far."""
        self.mirror.wake(time.monotonic())
        self.err.write(f"hpclaunch: {text}\n".encode())

    def _conclude(self, verdict: Verdict) -> None:
        logs = self.config.logs
        if verdict.code:
            where = "" if logs is None else str(logs.path)
            at_head = self.place.index == HEAD
            text = report.account(verdict, host=self.place.host, at_head=at_head, log_dir=where)
            if text:
                self._say(text)
        self._drain()

    def _drain(self) -> None:
        """Show everything, for as long as the consoles go on taking it."""
        while True:
            self.mirror.finish(time.monotonic())
            wanting = [c for c in (self.out, self.err) if c.wanting]
            if not wanting:
                return
            for console in wanting:
                held = console.room
                console.flush(STALLED)
                if console.wanting and console.room == held:
                    return  # nobody reads; every line is in the files


def run(config: Config, signals: Signals, server: forkserver.ForkServer) -> int:
    """The caller starts these two, so that the one misses nothing and the other comes up while
    this module is still being imported.
    """
    return Agent(config, os.environ, signals, server).run()
