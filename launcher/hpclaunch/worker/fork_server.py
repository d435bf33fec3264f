"""The fork server: starts, watches and ends everything that a round runs on one node.

`system/shared/helper.py` starts it, and describes the arguments. SPARED is an additional one: the
signals to ignore besides the usual ones ("12,25", may be empty). Workers inherit the signals that
the user had blocked. `fork_server_messages.py` has the messages between the agent and this process.

Law: nothing started here outlives this process or the agent, except the copier for a moment. The
socket ends with the agent, and then everything is killed. If the agent has died, this process stays
for a few seconds to confirm that (`notice_board.py`). If this process is killed, its children die
by their parent-death signal. It is a subreaper: a grandchild whose parent has ended becomes its
child, in whatever session it is. So "no children" means that nothing is left.

This process has one thread, and imports neither torch, CUDA nor ZeroMQ. This file connects its
parts:

- `workers.py`: which workers live, and their descendants
- `starting.py`: how workers and the store process are started
- `template_client.py`: the template, which forks workers
- `store.py`: the store of a round
- `worker_watch.py`: progress and vital signs of the workers
- `step_notices.py`: notices that all workers take before the same step
- `worker_stop.py`: how they are stopped
- `worker_lease.py`: until when they may run
- `terminals.py`: the streams that are not files, and events that wait for output
- `memory_kills.py`: whether the kernel has killed a worker for its memory
- `notice_board.py`: the notice that the agent has died
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import signal
import time

from . import fork_server_messages as messages
from .descriptors import Watched, await_readable, handle
from .json_lines import AgentChannel, AgentGoneError
from .memory_kills import MemoryKills
from .messages import decode, never
from .notice_board import NoticeBoard
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    SPARED,
    SWEEP_LIMIT,
    Spawner,
    Wakeup,
    children,
    exit_code,
    kill_all,
    numbers,
    prctl,
    program,
    signal_all,
    sweep,
    take_pending,
    to_group,
    variable,
)
from .starting import Callbacks, Starting
from .step_notices import StepNotices
from .store import Store
from .template_client import TemplateClient
from .terminals import OrderedEvents, Terminals
from .worker_lease import WorkerLease
from .worker_stop import WorkerStop
from .worker_watch import WorkerWatch
from .workers import Workers

RANK = re.compile(r"[0-9]{1,9}")  # in an environment, which anybody may have set


class ForkServer:
    def __init__(self, channel: AgentChannel, spared: set[int], blocked: set[int]) -> None:
        handlers = {s: signal.getsignal(s) for s in spared}
        for s in spared:
            signal.signal(s, signal.SIG_IGN)
        self.channel = channel
        self.spared = spared
        spawner = Spawner(handlers, blocked)
        self.template = TemplateClient(spawner, spared)
        self.store = Store()
        self.terminals = Terminals()
        self.events = OrderedEvents(self.terminals, self.report)
        self.workers = Workers(self.companions)
        self.lease = WorkerLease(self.workers)
        calls = Callbacks(self.report, self.on_started, self.on_end, self.reap)
        self.starting = Starting(spawner, self.template, self.store, self.lease, calls)
        self.watch = WorkerWatch(self.workers, self.report, lambda: self.is_paused)
        self.notices = StepNotices(self.watch.progress, self.workers, self.report)
        self.stop = WorkerStop(self.workers, handlers)
        self.memory_kills = MemoryKills()
        self.board = NoticeBoard()
        self.left: list[messages.Leftover] = []  # as last reported to the agent
        # Queries about the round that is about to begin, by kind. One that was too late for the
        # last round is answered in the next; its number shows the agent that it is stale.
        self.early: dict[str, messages.Query] = {}
        # All signals are blocked so far. The spared ones remain so, for `take_pending`.
        signal.pthread_sigmask(signal.SIG_SETMASK, spared)
        os.setpgid(0, 0)
        self.wakeup = Wakeup()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGCONT)  # if stopped, it would outlive the agent otherwise

    def watched(self) -> Watched:
        """Yield what this process waits for, and acts on in this order."""
        starting = self.starting
        yield self.terminals, self.events.hear_terminals
        yield self.template, starting.hear_template
        for store in starting.stores_to_watch():
            yield store, starting.on_store_wanted
        yield starting.restarts, starting.hear_restarts
        for pipe in starting.lessons.pipes:
            yield pipe, functools.partial(starting.hear_lesson, pipe)
        for successor in self.template.successors():
            yield successor, starting.hear_successor
        yield self.wakeup, self.on_wakeup
        yield self.channel, self.hear_agent

    def run(self) -> None:
        while True:
            ready = await_readable(self.watched(), self.due())
            self.events.send_due()
            if self.lease.holds:
                self.lease.stop_all()
            elif self.workers.is_running and self.lease.is_due:
                self.on_lease_over()
            handle(self.watched(), ready)
            self.starting.attend_to_successor()
            self.notices.look()
            self.watch.look()
            self.settle()

    def due(self) -> float:
        """Return until when to wait for descriptors."""
        lease = self.lease.due() if self.workers.is_running else math.inf
        others = (self.watch, self.starting, self.events)
        return min(lease, *(each.due() for each in others))

    @property
    def is_paused(self) -> bool:
        """Whether the workers are held or stopped, and so make no progress."""
        return self.lease.holds or self.stop.is_asked_for

    def report(self, event: messages.Event) -> None:
        with contextlib.suppress(AgentGoneError):  # run() notices it, too
            self.channel.send(event.encoded())

    def hear_agent(self) -> None:
        for raw in self.channel.read():
            self.handle(decode(messages.REQUESTS, raw))

    def handle(self, request: messages.Request) -> None:
        runs = self.workers.is_running
        match request:
            case messages.Prepare():
                self.template.prepare(request)
                if request.now:
                    self.starting.start_template()
            case messages.Listen(loopback):
                try:
                    self.report(messages.Listening(self.store.listen(loopback)))
                except OSError as e:
                    self.report(messages.CannotStart(f"no port for their store: {e.strerror}"))
            case messages.Start():
                self.on_start(request)
            case messages.Resize(size):
                watched = self.terminals.resize(size)
                for rank, pid in self.workers.pids().items():
                    if rank in watched:
                        to_group(pid, signal.SIGWINCH)
            case messages.AwaitStillness(seconds):
                self.watch.progress.await_stillness(seconds)
            case messages.Query(kind, number) if runs:
                self.watch.ask(kind, number)
            case messages.Offer(number, step, signum) if runs and self.starting.is_done:
                self.report(self.notices.offer(number, step, signum))
            case messages.Withdraw():
                self.notices.withdraw()
            case messages.Give(number) if runs:
                self.notices.give(number)
            case messages.Query(kind):
                self.early[kind] = request
            case messages.Offer() | messages.Give():
                pass  # the workers have ended, or have not begun, and the head offers again
            case messages.Signal(signum):
                if without := self.workers.pass_on(signum):
                    self.report(messages.Unhandled(signum, without))
            case messages.Keep(until):
                if self.lease.keep(until):
                    self.watch.progress.begin_anew()
                    self.starting.proceed()
            case messages.Stop(signum):
                self.on_stop(signum)
            case messages.KillIdle():
                self.stop.kill_idle()
            case messages.Kill():
                self.starting.finish()
                self.stop.kill()
            case messages.SignalLeft(signum):
                if signum == signal.SIGKILL:
                    sweep(self.companions, self.wait)
                else:
                    signal_all(self.workers.descendants(), signum)
            case messages.PostOnDeath(port, notice, secret, release):
                self.board.prepare(port, notice, secret, release)
            case messages.Part():
                self.board.take_down()
            case _:
                never(request)

    # The round

    def on_start(self, start: messages.Start) -> None:
        self.store.begin(start.store, start.peers)
        self.memory_kills.begin()
        variables = self.watch.begin(worker.rank for worker in start.workers)
        had = self.terminals.pid
        streams = self.terminals.open(start.workers, start.terminals, start.size, pipes=start.pipes)
        if self.terminals.pid != had:
            self.report(messages.Copier(self.terminals.pid))
        workers = []
        for worker in start.workers:
            env = worker.env | (variables.get(worker.rank, {}) if start.progress else {})
            workers.append(worker.replaced(env=env))
        self.workers.begin()
        self.stop.begin_round()
        self.lease.begin_round()
        if self.lease.is_over:  # the request to start may be an old one
            self.on_lease_over()
        env = os.environ | start.env
        self.starting.start(start.replaced(workers=workers, env=env), streams)
        for query in self.early.values():
            self.watch.ask(query.kind, query.number)
        self.early.clear()

    def on_started(self, worker: messages.Worker, pid: int) -> None:
        take_pending(self.spared)  # signals from before the worker began
        self.workers.started(worker.rank, pid, worker.argv)
        self.watch.progress.started(worker.rank, pid)
        self.report(messages.Started(worker.rank, pid))

    def on_end(self, pid: int, code: int, signum: int) -> None:
        rank = self.workers.ended(pid)
        has_failed = bool(code or signum) and not self.stop.is_asked_for
        self.watch.progress.ended(rank, has_failed=has_failed)
        self.stop.ended(pid)
        killed = signum == signal.SIGKILL and not self.stop.is_asked_for
        oom = killed and self.memory_kills.happened()
        self.events.add(messages.Exit(rank, code, signum, oom), rank)

    def on_stop(self, signum: int) -> None:
        self.stop.ask()
        if self.lease.holds:
            self.report(messages.LeaseOver())
            self.kill_round()
        else:
            self.starting.finish()
            self.stop.signal(signum)

    def on_lease_over(self) -> None:
        self.report(messages.LeaseOver())
        self.starting.hear_fork()
        if self.stop.is_asked_for or self.starting.is_forking:
            self.kill_round()
        else:
            self.lease.hold()

    def kill_round(self) -> None:
        self.lease.release()
        self.starting.finish()
        sweep(self.companions, self.wait)

    def settle(self) -> None:
        """End the round once its workers and all their leftovers have ended."""
        if not self.workers.is_running or self.workers.living or not self.starting.is_done:
            return
        self.notices.report_end()
        pids = set(children()) - self.companions()
        if pids:
            left = [leftover(pid) for pid in sorted(pids)]
            if left != self.left and not self.stop.is_for(pids):
                self.left = left
                self.events.add(messages.Left(left))
            return
        self.left = []
        self.workers.end()
        self.lease.release()
        self.notices.end()
        self.events.add(messages.Gone(self.watch.end()))

    # Processes

    def companions(self) -> set[int]:
        """Return the pids of the children that are neither workers nor leftovers: the template, its
        successor, the store process and the copier. 0 stands for one that does not run."""
        successors = {successor.pid for successor in self.template.successors()}
        return {self.template.pid, self.store.pid, self.terminals.pid} | successors

    def on_wakeup(self) -> None:
        self.wakeup.drain()
        self.reap()

    def reap(self) -> None:
        """Wait for all children that have ended: this process has started or adopted each."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.workers.living:
                self.on_end(pid, *exit_code(status))
            elif pid == self.terminals.pid:
                self.terminals.ended()
            else:
                self.starting.ended(pid, *exit_code(status))

    def wait(self) -> None:
        """Wait for a moment, then reap the children that have ended. The notice board answers
        questions meanwhile."""
        self.board.serve(0.05, self.wakeup)
        self.on_wakeup()

    def leave(self, *, agent_is_gone: bool) -> None:
        """End everything. If the agent is gone, first kill all workers, and post the notice that it
        has died, if there is one; otherwise this process has failed. The copier has SWEEP_LIMIT to
        end by itself.
        """
        self.starting.drop()
        self.template.end()
        if agent_is_gone:
            kill_all({self.terminals.pid})
            self.board.post()
        sweep(lambda: {self.terminals.pid}, self.wait)
        self.terminals.close()
        limit = time.monotonic() + SWEEP_LIMIT
        while self.terminals.pid and time.monotonic() < limit:
            self.wait()
        signal_all(children(), signal.SIGKILL)
        while self.board.is_posted:
            self.board.serve(0.5)


def leftover(pid: int) -> messages.Leftover:
    """Describe a process that workers have left behind; its environment has the rank."""
    rank = variable(pid, "RANK") or ""
    known = RANK.fullmatch(rank)
    return messages.Leftover(pid, program(pid), int(rank) if known else None)


def main(fd: str, blocked: str, spared: str) -> None:
    server = ForkServer(AgentChannel(fd), {*SPARED, *numbers(spared)}, numbers(blocked))
    agent_is_gone = False
    try:
        server.run()
    except AgentGoneError:
        agent_is_gone = True
    finally:
        server.leave(agent_is_gone=agent_is_gone)
