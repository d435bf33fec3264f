"""The start of the processes of a round: workers and the store process.

Workers are forked from the template (`template_client.py`) when they start warm, and are fresh
interpreters otherwise. The store process is always forked from the template, which is started on
the store's first connection if not before. A start waits for the template's first successor, since
every worker would have to repeat its imports otherwise.

Once a worker has become a new interpreter (`site/_hpclaunch_restart.py`), later rounds of this
launch start cold.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from . import fork_server_messages as messages
from .fork_server_messages import Worker
from .lessons import LessonPipe, Lessons, RestartReports
from .messages import never
from .processes import Spawner, children, complain
from .store import Store
from .template_client import State, TemplateClient
from .template_messages import Begun, Failed, Fork, Forked, Ready, Unfit, Unsafe
from .terminals import Streams
from .worker_lease import WorkerLease

FORK_LIMIT = 5.0  # seconds that a stop waits for workers that the template is forking
KILLED = 128 + signal.SIGKILL  # exit code
NO_PROCESS = 126  # exit code of a worker for which the kernel grants no process


class Callbacks(NamedTuple):
    """The functions that Starting calls."""

    report: Callable[[messages.Event], None]
    started: Callable[[Worker, int], None]  # a worker, its pid
    ended: Callable[[int, int, int], None]  # pid of a worker that was started, code, signal
    reap: Callable[[], None]  # wait for processes that have ended


class Starting:
    def __init__(
        self,
        spawner: Spawner,
        template: TemplateClient,
        store: Store,
        lease: WorkerLease,
        on: Callbacks,
    ) -> None:
        self.template = template
        self.store = store
        self.lessons = Lessons()
        self.restarts = RestartReports()
        self._spawner = spawner
        self._lease = lease
        self._on = on
        self._request: messages.Start | None = None  # waits for the template, or is being forked
        self._streams: dict[int, Streams] = {}  # of each rank of the request
        self.is_forking = False  # the template forks the workers of the request
        self._early: dict[int, tuple[int, int]] = {}  # pid -> (code, signal) of an unknown child
        self._has_reported_restart = False
        self._must_be_cold = False  # a worker has become a new interpreter

    @property
    def is_done(self) -> bool:
        """Whether all workers that were asked for have been started, or cannot be."""
        return self._request is None

    def start_template(self) -> bool:
        """Start the template. Return False if that is impossible: workers start cold then, and the
        next round or connection to a store tries again."""
        try:
            self.template.start()
        except OSError as e:
            self.template.why = f"the template process cannot be started: {e.strerror}"
            self._on.report(messages.Template(State.DEAD.value, self.template.why))
            return False
        return True

    def start(self, request: messages.Start, streams: dict[int, Streams]) -> None:
        """Start these workers, as soon as it is known whether warm or cold. `streams` has those of
        each rank, in place of the files that a worker names."""
        self._request, self._streams = request, streams
        if request.warm and self.template.state is State.NONE and not self._must_be_cold:
            self.start_template()  # the last attempt has failed
        self.proceed()

    def proceed(self) -> None:
        """Start what waits for the template or for a lease, if it need not wait any longer."""
        template, state, request = self.template, self.template.state, self._request
        if request is not None and not (self.is_forking or self._lease.holds):
            fits = template.fits(request.workers)
            warm = request.warm and fits and not self._must_be_cold
            if warm and (state is State.STARTING or template.awaits_successor):
                pass
            elif warm and state is State.READY:
                self.is_forking = True
                workers = [w.replaced(**self._streams[w.rank]) for w in request.workers]
                self._fork("workers", workers, request.env, learn=request.learn)
            else:
                self._request = None
                self._spawn(request)
        if not self.store.wanted or self.is_forking:
            return
        if state in (State.READY, State.UNFIT):
            self._fork("store", [], {}, learn=False)
        elif state is State.DEAD and not template.torchless:
            self.store.close()
            self._lose_store(template.why)

    def _spawn(self, request: messages.Start) -> None:
        for worker in request.workers:
            environ, streams = request.env | worker.env, self._streams[worker.rank]
            try:
                pid = self._spawner.spawn(
                    worker.argv,
                    environ,
                    streams["out"],
                    streams["err"],
                    stdin=worker.stdin,
                    cpus=worker.cpus,
                )
            except OSError as e:
                self._not_started(worker.rank, str(e.strerror))
            else:
                self._on.started(worker, pid)

    def _not_started(self, rank: int, why: str, code: int = NO_PROCESS, signum: int = 0) -> None:
        complain(self._streams[rank]["err"], f"cannot start the worker: {why}")
        if not signum:  # the kernel grants no further process
            self._on.report(messages.CannotStart(why))
        self._on.report(messages.Exit(rank, code, signum))

    # The template forks

    def _fork(self, what: str, workers: list[Worker], env: dict[str, str], *, learn: bool) -> None:
        store = self.store.errors if self.store.wanted else ""
        fds = [self.store.fileno()] if store else []
        pipes = self.lessons.begin(len(workers)) if learn else []
        self.template.ask(Fork(what, store, workers, env, pipes, self.restarts.writing), fds)
        if store:
            self.store.begin_fork()

    def finish(self) -> None:
        """Start no further workers, and wait for those that are being forked: they cannot be ended
        before their pids are known.

        A template that takes too long is killed, and the workers that it may have forked are swept.
        A template that hangs in the kernel keeps the round from ending.
        """
        self.hear_fork()
        if self.is_forking:
            os.kill(self.template.pid, signal.SIGKILL)
            self.hear_fork()
        if not self.is_forking:
            self._request = None

    def hear_fork(self) -> None:
        """Wait for workers that are being forked, for FORK_LIMIT at most."""
        limit = time.monotonic() + FORK_LIMIT
        while self.is_forking and time.monotonic() < limit:
            self.hear_template(wait=0.1)
            self._on.reap()

    def drop(self) -> None:
        """Forget what waits, or is being forked: this process is about to end."""
        self._request, self.is_forking = None, False

    def hear_template(self, wait: float = 0.0) -> None:
        for reply in self.template.receive(wait):
            match reply:
                case Forked():
                    self._on_forked(reply)
                case Failed(module, why) | Unsafe(module, why):
                    self.template.unlearn(module)
                    self._on.report(messages.PassedOver(module, why, learned=False))
                case Ready(words):
                    self._on_loaded(State.READY, words, "")
                case Unfit(words, why):
                    self._on_loaded(State.UNFIT, words, why)
                case Begun():
                    raise AssertionError("only a successor begins")
                case _:
                    never(reply)

    def _on_loaded(self, state: State, words: list[str], why: str) -> None:
        self.template.state, self.template.words = state, words
        self._on.report(messages.Template(state.value, why))
        self.template.renew(idle=False)
        self.proceed()

    def _on_forked(self, reply: Forked, code: int = NO_PROCESS, signum: int = 0) -> None:
        if self.store.asked and not reply.store:
            self._lose_store(f"cannot start the store process: {reply.why}", code, signum)
        elif reply.store:
            self.store.forked(reply.store)
            if reply.store in self._early:
                self._lose_store("", *self._early.pop(reply.store))
        if reply.what != "workers":
            if not self.is_forking:
                self._early = {}  # another process may have such a pid later
            return
        request, self._request, self.is_forking = self._request, None, False
        assert request is not None, "workers are forked by request"
        pids = []
        for worker in request.workers:
            if worker.rank in reply.pids:
                pids.append(reply.pids[worker.rank])
                self._on.started(worker, pids[-1])
            else:
                self._not_started(worker.rank, reply.why, code, signum)
        early, self._early = self._early, {}
        for pid in early.keys() & pids:
            self._on.ended(pid, *early[pid])

    def ended(self, pid: int, code: int, signum: int) -> None:
        """Act on the end of a child that is not known as a worker."""
        if pid == self.store.pid:
            self._lose_store("", code, signum)
        elif pid == self.template.pid:
            self._on_template_end(code, signum)
        elif self.is_forking or self.store.asked:
            self._early[pid] = (code, signum)

    def _on_template_end(self, code: int, signum: int) -> None:
        """Start another template, unless this one has failed or ends too often."""
        if self.template.ended(code, signum):
            self._on.report(messages.Template(self.template.state.value, self.template.why))
        if self.is_forking or self.store.asked:
            what = "workers" if self.is_forking else "store"
            reply = Forked(what, {}, 0, "the template process was killed")
            self._on_forked(reply, KILLED, signal.SIGKILL)
        if self.template.state is State.NONE and not self._must_be_cold:
            self.start_template()
        self.proceed()

    # The store

    def stores_to_watch(self) -> list[Store]:
        """Return the store, if the first connection to it is to start the template."""
        return [self.store] if self.store.wanted and self.template.fileno() < 0 else []

    def on_store_wanted(self) -> None:
        """Start the template, since a worker has connected to the store. If this Python has no
        torch, workers normally have none either; but a program of the user's may have its own."""
        if self.template.torchless or not self.start_template():
            self.store.close()
            self._lose_store(self.template.why)

    def _lose_store(self, why: str, code: int = 1, signum: int = 0) -> None:
        """Report at once that nobody serves the store: a rank that connects later would hang."""
        self.store.lost()
        self._on.report(messages.StoreExit(self.store.port, code, signum, why))

    # Restarts and lessons

    def hear_restarts(self) -> None:
        for report in self.restarts.read():
            if self._must_be_cold or (report.forked and self._has_reported_restart):
                continue
            self._on.report(report)
            self._has_reported_restart = True
            if not report.forked:
                self._must_be_cold = True
                if not self.store.errors:  # otherwise the next store is forked from it
                    self.template.leave()

    def hear_lesson(self, pipe: LessonPipe) -> None:
        lesson = self.lessons.take(pipe)
        if lesson is not None and not self._must_be_cold:
            self.template.learn(*lesson)

    def hear_successor(self) -> None:
        before = self.template.successor
        for module, why in self.template.hear_successor():
            self._on.report(messages.PassedOver(module, why, learned=True))
        if self.template.successor is not before:
            self.proceed()

    def due(self) -> float:
        """Return when `attend_to_successor` is to be called at the latest."""
        successor = self.template.successor
        return math.inf if successor is None else successor.limit

    def attend_to_successor(self) -> None:
        """Let the successor take the template's place if it is ready, or end it if it is late."""
        template, successor = self.template, self.template.successor
        if successor is None:
            return
        if not successor.ready:
            if time.monotonic() >= successor.limit:
                template.drop_successor()  # it takes too long
        elif successor.pid not in children():  # a sweep has ended it
            template.drop_successor()
        elif not (self.is_forking or self.store.asked):
            template.succeed()
            self._on.report(messages.Renewed())
        if template.successor is not successor:
            self.proceed()
