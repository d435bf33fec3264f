"""The fork server: starts, watches and ends everything that a round runs on one node.

`system/shared/helper.py` starts it, and says with which arguments; SPARED is its own: signals to
ignore beside the usual ones ("12,25", may be empty). Workers inherit the signals that the user had
blocked. `fork_server_messages.py` has what the agent asks and learns.

Law: nothing started here outlives this process or the agent. The socket ends with the agent, and
then everything is killed; if the agent has died, this process alone stays for a few seconds, to say
so (`notice_board.py`). Should it be killed itself, its children die by their parent-death signal.
It is a subreaper, so that a grandchild whose parent is gone becomes its own child, whatever session
that has moved to: "no children" means that nothing is left.

If somebody stops this process (SIGSTOP), the agent has it continue. If the agent has died, SIGCONT
is the parent-death signal of this process. A template, store or copier that is stopped continues as
well; Continued names it.

This process is one thread without torch, CUDA or ZeroMQ. Its parts know nothing of each other's
work; this file puts them together:

- `companions.py`: the processes that belong to no round
- `workers.py`: who lives, and what has descended from them
- `births.py`: how workers and the store process begin
- `worker_watch.py`: what is found out about the workers, and the notices that they take
- `worker_stop.py`: how they are stopped
- `worker_lease.py`: until when they may run
- `ordered_events.py`: events that wait for output
- `sweeping.py`: how everything is killed
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time

from .births import Births, Events, Request
from .companions import Companions
from .descriptors import Descriptors
from .fork_server_messages import (
    REQUESTS,
    AwaitStillness,
    Copier,
    Event,
    Exit,
    Give,
    Gone,
    Keep,
    Kill,
    KillIdle,
    LeaseOver,
    Left,
    Leftover,
    Listen,
    Listening,
    Offer,
    Part,
    PostOnDeath,
    Prepare,
    Query,
    Resize,
    Signal,
    SignalLeft,
    Start,
    Started,
    Stop,
    Unhandled,
    Withdraw,
    Worker,
)
from .fork_server_messages import Request as AgentRequest
from .json_lines import AgentChannel, AgentGoneError
from .memory_kills import MemoryKills
from .messages import decode, never
from .notice_board import NoticeBoard
from .ordered_events import OrderedEvents
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    SPARED,
    Spawner,
    Wakeup,
    children,
    exit_code,
    numbers,
    prctl,
    program,
    signal_all,
    take_pending,
    to_group,
    variable,
)
from .store import Store
from .sweeping import Sweeping, kill_all
from .template_client import TemplateClient
from .terminals import Terminals
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
        self.template = TemplateClient(spawner, blocked=spared)
        self.store = Store()
        self.terminals = Terminals()
        self.events = OrderedEvents(self.terminals, self.report)
        self.companions = Companions(self.template, self.store, self.terminals, self.report)
        self.workers = Workers(self.companions.pids)
        self.lease = WorkerLease(self.workers)
        calls = Events(self.report, self.on_birth, self.on_end, self.reap)
        self.births = Births(spawner, self.template, self.store, self.lease, calls)
        self.watch = WorkerWatch(self.workers, self.report, lambda: self.is_paused)
        self.stop = WorkerStop(self.workers, handlers)
        self.memory_kills = MemoryKills()
        self.board = NoticeBoard()
        self.left: list[Leftover] = []  # those that were last reported to the agent
        # Queries about the round that is about to begin, by kind. One that came too late for the
        # last round gets an answer in the next; the agent knows by its number that it is stale.
        self.early: dict[str, Query] = {}
        # The agent starts this process with all signals blocked. These remain so: `take_pending`.
        signal.pthread_sigmask(signal.SIG_SETMASK, spared)
        os.setpgid(0, 0)
        self.wakeup = Wakeup()
        self.sweeping = Sweeping(self.board, self.wakeup, self.reap)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
        self.descriptors = self.registered()

    def registered(self) -> Descriptors:
        found, births = Descriptors(), self.births
        found.add(self.terminals, self.events.hear_terminals)
        found.add(self.template, births.hear_template)
        found.add_some(births.stores_to_watch, lambda _: births.on_store_wanted())
        found.add(births.restarts, births.hear_restarts)
        found.add_some(lambda: births.lessons.pipes, births.hear_lesson)
        found.add_some(self.template.successors, lambda _: births.hear_successor())
        found.add(self.wakeup, self.on_wakeup)
        found.add(self.channel, self.hear_agent)
        return found

    def run(self) -> None:
        while True:
            ready = self.descriptors.wait(self.due())
            self.events.send_due()
            if self.lease.holds:
                self.lease.look()
            elif self.workers.is_running and self.lease.is_due:
                self.on_lease_over()
            self.descriptors.handle(ready)
            self.births.attend_to_successor()
            if time.monotonic() >= self.companions.due():
                self.companions.look()
            self.watch.look()
            self.settle()

    def due(self) -> float:
        """Return until when to wait for descriptors."""
        lease = self.lease.due() if self.workers.is_running else math.inf
        others = (self.watch, self.companions, self.births, self.events)
        return min(lease, *(each.due() for each in others))

    @property
    def is_paused(self) -> bool:
        """Whether the workers make no progress, because they are held or stopped."""
        return self.lease.holds or self.stop.is_asked_for

    def report(self, event: Event) -> None:
        with contextlib.suppress(AgentGoneError):  # run() sees it too
            self.channel.send(event.encoded())

    def hear_agent(self) -> None:
        for raw in self.channel.read():
            self.handle(decode(REQUESTS, raw))

    def handle(self, request: AgentRequest) -> None:
        runs = self.workers.is_running
        match request:
            case Prepare(argv, env, modules, own, now, steps):
                self.template.prepare(argv, os.environ | env, modules, own, steps)
                if now:
                    self.template.start()
            case Listen(loopback):
                self.report(Listening(self.store.listen(loopback)))
            case Start():
                self.on_start(request)
            case Resize(size):
                watched = self.terminals.resize(size)
                for rank, pid in self.workers.pids().items():
                    if rank in watched:
                        to_group(pid, signal.SIGWINCH)
            case AwaitStillness(seconds):
                self.watch.progress.await_stillness(seconds)
            case Query(kind, number) if runs:
                self.watch.ask(kind, number)
            case Offer(number, step, signum) if runs and self.births.is_done:
                self.report(self.watch.notices.offer(number, step, signum))
            case Withdraw():
                self.watch.notices.withdraw()
            case Give(number) if runs:
                self.watch.give(number)
            case Query(kind):
                self.early[kind] = request
            case Offer() | Give():
                pass  # the workers have ended; or they have not begun, and the head offers again
            case Signal(signum):
                if without := self.workers.pass_on(signum):
                    self.report(Unhandled(signum, without))
            case Keep(until):
                if self.lease.keep(until):
                    self.watch.progress.begin_anew()
                    self.births.proceed()
            case Stop(signum):
                self.on_stop(signum)
            case KillIdle():
                self.stop.kill_idle()
            case Kill():
                self.births.finish()
                self.stop.kill()
            case SignalLeft(signum):
                if signum == signal.SIGKILL:
                    self.sweeping.sweep(self.companions.pids)
                else:
                    signal_all(self.workers.descendants(), signum)
            case PostOnDeath(port, notice, secret, release):
                self.board.prepare(port, notice, secret, release)
            case Part():
                self.board.take_down()
            case _:
                never(request)

    # The round

    def on_start(self, start: Start) -> None:
        self.store.begin(start.store, start.peers)
        self.memory_kills.begin()
        variables = self.watch.begin(worker.rank for worker in start.workers)
        had = self.terminals.pid
        streams = self.terminals.open(start.workers, start.terminals, start.size, pipes=start.pipes)
        if self.terminals.pid != had:
            self.report(Copier(self.terminals.pid))
        workers = []
        for worker in start.workers:
            env = worker.env | (variables.get(worker.rank, {}) if start.progress else {})
            workers.append(worker.replaced(env=env))
        self.workers.begin()
        self.stop.begin_round()
        self.lease.begin_round()
        if self.lease.is_over:  # the order may be old
            self.on_lease_over()
        env = os.environ | start.env
        self.births.start(Request(workers, streams, env, start.warm, start.learn))
        for query in self.early.values():
            self.watch.ask(query.kind, query.number)
        self.early.clear()

    def on_birth(self, worker: Worker, pid: int) -> None:
        take_pending(self.spared)  # signals from before the worker began
        self.workers.born(worker.rank, pid, worker.argv)
        self.watch.progress.born(worker.rank, pid)
        self.report(Started(worker.rank, pid))

    def on_end(self, pid: int, code: int, signum: int) -> None:
        rank = self.workers.ended(pid)
        self.watch.progress.ended(rank)
        self.stop.ended(pid)
        killed = signum == signal.SIGKILL and not self.stop.is_asked_for
        oom = killed and self.memory_kills.happened()
        self.events.add(Exit(rank, code, signum, oom), rank)

    def on_stop(self, signum: int) -> None:
        self.stop.ask()
        if self.lease.holds:
            self.report(LeaseOver())
            self.kill_round()
        else:
            self.births.finish()
            self.stop.signal(signum)

    def on_lease_over(self) -> None:
        self.lease.end()
        self.report(LeaseOver())
        self.births.hear_fork()
        if self.stop.is_asked_for or self.births.is_forking:
            self.kill_round()
        else:
            self.lease.hold()

    def kill_round(self) -> None:
        self.lease.release()
        self.births.finish()
        self.sweeping.sweep(self.companions.pids)

    def settle(self) -> None:
        """End the round once its workers and all their leftovers have ended."""
        if not self.workers.is_running or self.workers.living or not self.births.is_done:
            return
        self.watch.end_notice()
        pids = set(children()) - self.companions.pids()
        if pids:
            left = [leftover(pid) for pid in sorted(pids)]
            if left != self.left and not self.stop.is_for(pids):
                self.left = left
                self.events.add(Left(left))
            return
        self.left = []
        self.workers.end()
        self.lease.release()
        self.events.add(Gone(self.watch.end()))

    # Processes

    def on_wakeup(self) -> None:
        self.wakeup.drain()
        self.companions.look()
        self.reap()

    def reap(self) -> None:
        """Wait for whatever has ended. All children of this process are its own, so for -1."""
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
                self.births.ended(pid, *exit_code(status))

    def leave(self, *, agent_died: bool) -> None:
        """Let nothing stay: the agent is gone, or this process has failed."""
        self.births.drop()
        self.template.end()
        if agent_died:
            kill_all({self.terminals.pid})
            self.board.post()
        self.sweeping.leave(lambda: self.terminals.pid, self.terminals.close)


def leftover(pid: int) -> Leftover:
    """Describe a process that workers have left; its rank is known from its environment."""
    rank = variable(pid, "RANK") or ""
    known = RANK.fullmatch(rank)
    return Leftover(pid, program(pid), int(rank) if known else None)


def main(fd: str, blocked: str, spared: str) -> None:
    server = ForkServer(AgentChannel(fd), {*SPARED, *numbers(spared)}, numbers(blocked))
    agent_died = False
    try:
        server.run()
    except AgentGoneError:
        agent_died = True
    finally:
        server.leave(agent_died=agent_died)
