"""The fork server: starts, watches and ends everything that a round runs on one node.

`system/shared/helper.py` starts it, and says with which arguments; SPARED is its own: signals to
ignore beside the usual ones ("12,25", may be empty). Workers inherit the signals that the user had
blocked.

    from the agent                                 to the agent
    {"op": "prepare", "argv": [...],               {"event": "template", "state": S, "why": W}
        "env": {...}, "modules": [...],            {"event": "passed-over", "module": M, "why": W}
        "own": [...], "now": BOOL,                 {"event": "renewed"}
        "steps": [...]}
    {"op": "listen", "loopback": BOOL}             {"event": "listening", "port": P}
    {"op": "start", "warm": BOOL, "learn": BOOL,   {"event": "started", "rank": R, "pid": P}
        "progress": BOOL, "store": PATH,           {"event": "copier", "pid": P}
        "peers": [...], "env": {...},              {"event": "progress", ...}
        "workers": [{"rank", "argv", "env",        {"event": "exit", "rank": R, "code": C,
        "out", "err", "stdin", "cpus"}, ...],          "signal": S, "oom": BOOL}
        "terminals": {RANK: ["out", "err"]},       {"event": "gone", "spent": [...]}
        "size": [ROWS, COLUMNS], "pipes": BOOL}
    {"op": "resize", "size": [ROWS, COLUMNS]}
                                                   {"event": "restart", "kind": K, "name": NAME,
                                                       "file": F, "line": L, "forked": BOOL}
                                                   {"event": "continued", "what": NAME}
                                                   {"event": "cannot-start", "why": W}
                                                   {"event": "store-exit", "port": P,
                                                       "code": C, "signal": S, "why": W}
    {"op": "sample", "number": N}                  {"event": "sample", "number": N, "ranks": [...],
                                                    "ways": {ADDRESS: SECONDS}}
    {"op": "await-stillness", "seconds": [...]}
    {"op": "vitals", "number": N}                  {"event": "vitals", "number": N,
                                                       "ranks": [...]}
    {"op": "gather", "number": N}                  {"event": "evidence", "number": N,
                                                       "ranks": [...]}
    {"op": "signal", "signum": S}                  {"event": "unhandled", "signum": S, "ranks": []}
    {"op": "offer", "number": N, "step": K,        {"event": "offered", "number": N,
        "signum": S}                                   "accepted": BOOL, "busy": BOOL,
    {"op": "withdraw"}                                 "steps": [LEAST, MOST]}
    {"op": "give", "number": N}                    {"event": "unheard", "number": N}
                                                   {"event": "taken", "number": N,
                                                       "last": BOOL}
    {"op": "keep", "until": T}                     {"event": "lease-over"}
    {"op": "stop", "signum": S}                    {"event": "left", "processes": [
                                                       {"pid", "program", "rank"}, ...]}
    {"op": "kill-idle"}   SIGKILL to workers that have done nothing since (`activity.py`)
    {"op": "kill"}   SIGKILL to the workers
    {"op": "signal-left", "signum": S}   a signal to all that they have left behind
    {"op": "post-on-death", "port": P, "notice": N,
        "secret": HEX, "release": W}   what `notice_board.py` posts
    {"op": "part"}   the agent ends in order: there is nothing to post

Law: nothing started here outlives this process or the agent. The socket ends with the agent, and
then everything is killed; if the agent has died, this process alone stays for a few seconds, to say
so. Should it be killed itself, its children die by their parent-death signal. It is a subreaper, so
that a grandchild whose parent is gone becomes its own child, whatever session that has moved to:
"no children" means that nothing is left.

If somebody stops this process (SIGSTOP), the agent has it continue. If the agent has died, SIGCONT
is the parent-death signal of this process. A template, store or copier that is stopped continues as
well; "continued" names it.

Workers are forked from the template (`template_client.py`) when they start warm, and are fresh
interpreters otherwise. "store" is where the process that holds the round's TCPStore writes its
errors, "" when another node has it; the template forks it as well, and is started on its first
connection if not before. "restart" says that a worker has become a new interpreter
(`site/_hpclaunch_restart.py`): the later rounds of this launch start cold. "peers" are the networks
from which the nodes of the round connect to it. "store-exit" says that there is none any more;
"why" is empty where the process itself has written it. With "steps", and with "learn" for the next
round, a successor of the template imports what the script did; a start waits for the first one
only. This process itself is one thread without torch, CUDA or ZeroMQ.

A notice is offered to the workers, and then withdrawn or given (`step_notices.py`); "taken" says
that all of them have come to its step, and once more, with "last", that they have ended with it.

With "progress" it is told how far the workers have come, and where they are when it is asked
(`progress_watch.py`); and with "sample", how they keep pace (`sampler.py`).

"stop" signals the workers, but not the processes that they have started (see `foreground` for an
exception): a worker may need these to save, such as those of a DataLoader. Once it has ended, the
rest of its process group is ended (`end_groups`). Most leftovers of workers, such as Python's
resource_tracker, then clean up and end by themselves. "left" names those that still run once all
workers have ended, and the agent decides how long to wait for them.

At the end of the lease (T, on the monotonic clock) it holds what runs with SIGSTOP, whatever the
agent does: others may be about to go on without this node. If they do not, because all have been
suspended, or only the network was gone, "keep" lets it go on. Workers that have been asked to stop,
or are while they are held, are killed.
"""

import collections
import contextlib
import dataclasses
import math
import os
import re
import select
import signal
import time
from typing import Any

from .activity import Activity
from .json_lines import AgentChannel, AgentGoneError
from .memory_kills import MemoryKills
from .notice_board import NoticeBoard
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    SPARED,
    Spawner,
    Wakeup,
    ancestors,
    catches,
    children,
    command_line,
    complain,
    descendants,
    exists,
    exit_code,
    foreground,
    group_of,
    is_stopped,
    numbers,
    prctl,
    program,
    signal_all,
    take_pending,
    to_group,
    variable,
)
from .progress_watch import ProgressWatch
from .sampler import Sampler
from .step_notices import StepNotices
from .stop_watch import STOPPED_LIMIT, StopWatch
from .store import Store
from .template_client import UNSAFE, Lessons, RestartReports, State, TemplateClient
from .terminals import Terminals
from .vitals import VitalSigns

SWEEP_LIMIT = 5.0  # seconds; what happens after that is up to the agent
BIRTH_LIMIT = 5.0  # seconds that a stop waits for workers that the template is forking
SENDING = 0.05  # seconds within which a signal reaches all processes of a node
HOLD = 0.5  # seconds between two looks whether all that is held stands still
FLUSH_LIMIT = 5.0  # seconds that the news of a worker's end waits for its output to be in files
RANK = re.compile(r"[0-9]{1,9}")  # in an environment, which anybody may have set


class WorkerLease:
    """Until when the workers may run, on the monotonic clock; the head renews it. One that is over
    stays so until then: no later order may start workers without a new one.
    """

    def __init__(self):
        self.until = math.inf
        self.told = False  # that it is over, in this round

    @property
    def is_over(self):
        return time.monotonic() >= self.until

    def left(self):
        """Milliseconds for poll(), None without an end."""
        if self.told or self.until == math.inf:
            return None
        return max(0, math.ceil(1000 * (self.until - time.monotonic())))


class ForkServer:
    def __init__(self, channel, spared, blocked):
        self.channel = channel
        self.workers = {}  # pid -> rank, the living ones of the round
        self.commands = {}  # pid -> command line, of all workers of the round
        self.signalled = set()  # the processes that a stop is for
        self.left: Any = []  # the leftovers that were last reported to the agent
        self.running = False  # a round was started and not everything of it is gone
        self.stopping = False  # it was asked to stop
        self.held = False  # its workers are held, or were not started yet: they have no lease
        self.request: Any = None  # the round that waits for the template, or that it is forking
        self.asked = False  # the template is forking it
        self.early = {}  # pid -> how it ended, until the template has told which process it is
        self.warm = self.curious = False  # how the round starts
        self.lease = WorkerLease()
        self.activity = Activity()
        self.store = Store()
        self.terminals = Terminals()
        self.stop_watch = StopWatch(STOPPED_LIMIT)
        self.kept: Any = collections.deque()  # (limit, event, fields), waiting for a flush
        self.lessons = Lessons()
        self.restarts = RestartReports()
        self.warned = False  # of a worker that should have become a new interpreter
        self.must_be_cold = False  # a worker has become a new interpreter, as others would
        self.progress = ProgressWatch()
        self.gathering: Any = None  # (when to go on, the questions, their number) if some are asked
        self.sampler = Sampler(self.progress)
        self.vitals = VitalSigns(self.progress)
        self.notices = StepNotices(self.progress)
        self.given = 0  # the number of the last notice that was given in this round
        self.untaken = 0  # the same, until all have taken it
        self.board = NoticeBoard()
        self.memory_kills = MemoryKills()
        handlers = {s: signal.getsignal(s) for s in spared}
        for s in spared:
            signal.signal(s, signal.SIG_IGN)
        self.spawner = Spawner(handlers, blocked)
        self.template = TemplateClient(self.spawner, deaf=spared)
        self.spared = spared
        # The agent starts this process with all signals blocked. These remain so: `take_pending`.
        signal.pthread_sigmask(signal.SIG_SETMASK, spared)
        os.setpgid(0, 0)
        self.wakeup = Wakeup()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGCONT)

    def run(self):
        while True:
            poll = select.poll()
            poll.register(self.channel, select.POLLIN)
            poll.register(self.wakeup, select.POLLIN)
            if self.template.fileno() >= 0:
                poll.register(self.template, select.POLLIN)
            elif self.store.wanted:
                poll.register(self.store, select.POLLIN)
            others = (*self.lessons.pipes, self.restarts, self.terminals, self.template.successor)
            for awaited in others:
                if awaited is not None and awaited.fileno() >= 0:
                    poll.register(awaited, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(self.time_left())}
            if self.wakeup.fileno() in ready or time.monotonic() >= self.stop_watch.due:
                self.continue_stopped()
            if self.terminals.fileno() in ready:
                self.hear_terminals()
            while self.kept and time.monotonic() >= self.kept[0][0]:
                self.release(1)
            if self.held:
                self.hold()
            elif self.running and self.lease.is_over and not self.lease.told:
                self.on_lease_over()
            if self.template.fileno() in ready:
                self.hear_template()
            elif self.store.wanted and self.store.fileno() in ready:
                self.on_store_wanted()
            if self.restarts.fileno() in ready:
                self.hear_restarts()
            self.learn(ready)
            self.attend_to_successor(ready)
            self.watch_progress()
            if self.wakeup.fileno() in ready:
                self.wakeup.drain()
                self.reap()
            if self.channel.fileno() in ready:
                for request in self.channel.read():
                    getattr(self, "on_" + request.pop("op").replace("-", "_"))(**request)
            self.settle()

    def time_left(self):
        """Milliseconds for poll(), None without an end."""
        ends = [self.lease.left()] if self.running else []
        ends += [1000 * HOLD] if self.held else []
        if self.stop_watch.due < math.inf:
            ends += [max(0, 1000 * (self.stop_watch.due - time.monotonic()))]
        if self.gathering is not None:
            ends += [max(0, 1000 * (self.gathering[0] - time.monotonic()))]
        elif not (self.held or self.stopping):
            ends += [self.progress.left(), self.sampler.left()]
        successor = self.template.successor
        if successor is not None:
            ends += [max(0, 1000 * (successor.limit - time.monotonic()))]
        ends += [max(0, 1000 * (self.kept[0][0] - time.monotonic()))] if self.kept else []
        return min((end for end in ends if end is not None), default=None)

    def tell(self, event, **fields):
        with contextlib.suppress(AgentGoneError):  # run() sees it too
            self.channel.tell(event, **fields)

    # Requests

    def on_prepare(self, argv, env, modules, own, now, steps):
        self.template.prepare(argv, os.environ | env, modules, own, steps)
        if now:
            self.template.start()

    def on_listen(self, loopback):
        self.tell("listening", port=self.store.listen(loopback))

    def on_start(self, workers, env, store, peers, warm, learn, progress, terminals, size, pipes):
        self.store.begin(store, peers)
        self.progress.begin(workers, told=progress)
        self.sampler.begin()
        self.memory_kills.begin()
        had = self.terminals.pid
        self.terminals.give(workers, terminals, size, pipes=pipes)
        if self.terminals.pid != had:
            self.tell("copier", pid=self.terminals.pid)
        self.running, self.warm, self.curious = True, warm, learn
        self.request = {"workers": workers, "env": dict(os.environ | env)}
        self.stopping = self.lease.told = False
        if self.lease.is_over:  # the order may be old
            self.on_lease_over()
        self.proceed()

    def on_sample(self, number):
        if self.running and self.gathering is None:
            self.sampler.ask(number, self.pids())

    def on_await_stillness(self, seconds):
        self.progress.await_stillness(seconds)

    def on_vitals(self, number):
        if self.running:
            self.tell("vitals", number=number, ranks=self.vitals.of(self.pids()))

    def on_gather(self, number):
        if self.running:
            self.sampler.cancel()  # its answers would mix
            self.gathering = (0.0, self.progress.ask(self.pids()), number)
            self.gather()

    def on_signal(self, signum):
        """Pass a signal on to the workers that it does not kill."""
        deaf = []
        for pid, rank in self.workers.items():
            if catches(pid, signum):
                os.kill(pid, signum)
            else:
                deaf.append(rank)
        if deaf:
            self.tell("unhandled", signum=signum, ranks=deaf)

    def on_offer(self, number, step, signum):
        if self.running and self.request is None:
            answer = self.notices.offer(number, step, signum)
            self.tell("offered", number=number, **answer)

    def on_withdraw(self):
        self.notices.withdraw()

    def on_give(self, number):
        if self.running:
            deaf = self.notices.give(self.pids(), number)
            if deaf:
                self.tell("unhandled", signum=self.notices.signum, ranks=deaf)
            if len(deaf) == len(self.workers):
                self.tell("unheard", number=number)
            self.given = self.untaken = number
            self.watch_notice()

    def on_resize(self, size):
        watched = self.terminals.resize(size)
        for pid in [pid for pid, rank in self.workers.items() if rank in watched]:
            to_group(pid, signal.SIGWINCH)

    def on_keep(self, until):
        self.lease.until = until
        if not self.lease.is_over:
            self.lease.told = False
            if self.held:
                self.go_on()

    def on_stop(self, signum):
        self.stopping = True
        if self.held:
            self.tell("lease-over")
            self.kill_round()
            return
        self.await_birth()
        if self.spawner.handlers.get(signum) is signal.SIG_IGN:
            signum = signal.SIGTERM  # the workers ignore the other one, as after nohup
        self.signalled.update(*map(foreground, self.workers))
        if not self.was_sent_to_all(signum):
            signal_all(self.signalled, signum)
        for pid in self.workers:
            to_group(pid, signal.SIGCONT)
        self.end_groups(self.commands.keys() - self.workers.keys())
        self.activity.begin(self.signalled, self.others())

    def on_kill_idle(self):
        for pid in self.activity.idle(self.signalled, self.others()):
            signal_all(foreground(pid) if pid in self.workers else [-pid], signal.SIGKILL)

    def on_kill(self):
        self.await_birth()
        mine = descendants(self.others())
        signal_all(mine & (self.signalled | self.workers.keys()), signal.SIGKILL)

    def on_signal_left(self, signum):
        if signum == signal.SIGKILL:
            self.sweep()
        else:
            signal_all(descendants(self.others()), signum)

    def kill_round(self):
        self.held = False
        self.await_birth()
        self.sweep()

    def was_sent_to_all(self, signum):
        """Return whether the workers have received this signal already, because it was sent to all
        processes of the step: some clusters of Slurm do so, and systemd.

        Then this process has received it, too. A terminal or a shell sends a signal to a process
        group, and this process has one of its own.
        """
        if signum == signal.SIGTERM:
            return False  # it ends rounds as well: one that came may not be the one of the job
        time.sleep(SENDING)
        return take_pending({signum}).get(signum) in ancestors()

    def end_groups(self, groups):
        """End what workers that have ended leave in their process groups.

        Forks of a worker, such as the processes of a DataLoader, get SIGKILL: the worker's signal
        handlers, which they have inherited, must not run there. Other programs get SIGTERM.
        """
        if not any(map(exists, groups)):
            return
        for pid in descendants(self.others()) - self.signalled:
            if (group := group_of(pid)) in groups:
                words = command_line(pid)
                is_fork = words == self.commands[group][: len(words)]
                signal_all([pid], signal.SIGKILL if is_fork else signal.SIGTERM)

    def on_post_on_death(self, **what):
        self.board.prepare(**what)

    def on_part(self):
        self.board.take_down()

    # The lease

    def on_lease_over(self):
        self.lease.told = True
        self.tell("lease-over")
        self.hear_birth()
        if self.stopping or self.asked:
            self.kill_round()
        else:
            self.held = True
            for pid in self.workers:
                to_group(pid, signal.SIGSTOP)
            self.hold()

    def hold(self):
        """Stop whatever runs: somebody else may let processes go on, as `scontrol resume` does."""
        held: set[int] = set()
        while running := descendants(self.others()) - held:
            signal_all(running, signal.SIGSTOP)
            held |= running

    def go_on(self):
        self.held = False
        signal_all(descendants(self.others()), signal.SIGCONT)
        self.progress.go_on()
        self.proceed()

    # The round

    def proceed(self):
        """Start what waits for the template, as soon as it is known how."""
        state = self.template.state
        if self.request is not None and not (self.asked or self.held):
            fits = self.template.fits(self.request["workers"])
            warm = self.warm and fits and not self.must_be_cold
            if warm and (state is State.STARTING or self.template.awaits_successor):
                pass
            elif warm and state is State.READY:
                self.asked = True
                self.fork("workers", learn=self.curious, **self.request)
            else:
                self.spawn(**self.request)
                self.request = None
        if not self.store.wanted or self.asked:
            return
        if state in (State.READY, State.UNFIT):
            self.fork("store")
        elif state is State.DEAD and not self.template.torchless:
            self.store.close()
            self.lose_store(self.template.why)

    def fork(self, what, learn=False, **request):
        errors = self.store.errors if self.store.wanted else ""
        fds = [self.store.fileno()] if errors else []
        request = {"workers": (), "env": {}, **request}
        pipes = self.lessons.begin(len(request["workers"])) if learn else []
        more = {"learn": pipes, "restarts": self.restarts.writing}
        self.template.ask("fork", fds, what=what, store=errors, **more, **request)
        if errors:
            self.store.close()
            self.store.asked = True

    def lose_store(self, why="", code=1, signum=0):
        """Told at once: a rank that connects to the store later would wait in vain."""
        self.store.pid, self.store.asked = 0, False
        self.store.unguard_round()
        self.tell("store-exit", port=self.store.port, code=code, signal=signum, why=why)

    def on_store_wanted(self):
        """Somebody has connected to the store. If this Python has no torch, workers normally have
        none either; but a program of the user's may have its own."""
        if self.template.torchless:
            self.store.close()
            self.lose_store(self.template.why)
        else:
            self.template.start()

    def pids(self):
        return {rank: pid for pid, rank in self.workers.items()}

    def watch_progress(self):
        self.watch_notice()
        if self.gathering is None:
            self.look_at_workers()
        else:
            self.gather()

    def gather(self):
        at, questions, number = self.gathering
        if time.monotonic() < at:
            return
        pause = next(questions, None)
        if pause is not None:
            self.gathering = (time.monotonic() + pause, questions, number)
            return
        self.gathering = None
        self.look_at_workers(at_once=True)  # some may go on meanwhile
        self.tell("evidence", number=number, ranks=self.progress.evidence(self.pids()))

    def look_at_workers(self, at_once=False):
        if not (self.held or self.stopping):
            told = self.progress.look(self.pids(), at_once=at_once)
            if told is not None:
                self.tell("progress", **told)
            told = self.sampler.look(self.pids())
            if told is not None:
                self.tell("sample", **told)

    def watch_notice(self):
        if self.untaken and self.notices.is_taken(self.untaken):
            self.tell("taken", number=self.untaken, last=False)
            self.untaken = 0

    def hear_restarts(self):
        for report in self.restarts.read():
            if self.must_be_cold or (report.forked and self.warned):
                continue
            self.tell("restart", **dataclasses.asdict(report))
            self.warned = True
            if not report.forked:
                self.must_be_cold = True
                if not self.store.errors:  # else the next round's store is forked from it as well
                    self.template.leave()

    def learn(self, ready):
        lesson = self.lessons.take(ready)
        if lesson is not None and not self.must_be_cold:
            self.template.learn(*lesson)

    def attend_to_successor(self, ready):
        template, before = self.template, self.template.successor
        if before is not None and before.fileno() in ready:
            for module, why in template.hear_successor():
                self.tell("passed-over", module=module, why=why, learned=True)
        if template.successor is None:
            pass
        elif not template.successor.ready:
            if time.monotonic() >= template.successor.limit:
                template.drop_successor()  # it takes too long
        elif template.successor.pid not in children():  # a sweep has ended it
            template.drop_successor()
        elif not (self.asked or self.store.asked):
            template.succeed()
            self.tell("renewed")
        if self.request is not None and template.successor is not before:
            self.proceed()

    def spawn(self, workers, env):
        for worker in workers:
            out, err = worker["out"], worker["err"]
            more = {"stdin": worker["stdin"], "cpus": worker["cpus"]}
            environ = env | worker["env"]
            try:
                pid = self.spawner.spawn(worker["argv"], environ, out, err, **more)
            except OSError as e:
                self.stillborn(worker, str(e.strerror))
            else:
                self.born(worker, pid)

    def stillborn(self, worker, why, code=126, signum=0):
        complain(worker["err"], f"cannot start the worker: {why}")
        if not signum:  # the kernel grants no further process
            self.tell("cannot-start", why=why)
        self.tell("exit", rank=worker["rank"], code=code, signal=signum)

    def born(self, worker, pid):
        rank = worker["rank"]
        take_pending(self.spared)  # signals from before the worker began
        self.workers[pid], self.commands[pid] = rank, worker["argv"]
        self.progress.born(rank, pid)
        self.tell("started", rank=rank, pid=pid)

    def hear_template(self, wait=0.0):
        for reply in self.template.receive(wait):
            event = reply.pop("event")
            if event == "forked":
                self.on_forked(**reply)
            elif event in ("failed", "unsafe"):
                self.template.unlearn(reply["module"])
                self.tell("passed-over", learned=False, **reply)
            else:
                self.template.state = State.READY if event == "ready" else State.UNFIT
                self.template.words = reply["words"]
                self.tell("template", state=event, why=reply["why"])
                self.template.renew(idle=False)
                self.proceed()

    def on_forked(self, what, pids, store, why, code=126, signum=0):
        if self.store.asked and not store:
            self.lose_store(f"cannot start the store process: {why}", code, signum)
        elif store:
            self.store.pid, self.store.asked = store, False
            if store in self.early:
                self.lose_store("", *self.early.pop(store))
        if what != "workers":
            return
        request, self.request, self.asked = self.request, None, False
        for worker in request["workers"]:
            rank = worker["rank"]
            if str(rank) in pids:
                self.born(worker, pids[str(rank)])
            else:
                self.stillborn(worker, why, code, signum)
        for pid in self.early.keys() & self.workers.keys():
            self.ended(pid, *self.early[pid])
        self.early = {}

    def ended(self, pid, code, signum):
        rank = self.workers.pop(pid)
        self.progress.ended(rank)
        if self.stopping:
            self.end_groups({pid})
        killed = signum == signal.SIGKILL and not self.stopping
        more = {"oom": True} if killed and self.memory_kills.happened() else {}
        self.tell_flushed(rank, "exit", rank=rank, code=code, signal=signum, **more)

    def tell_flushed(self, of, event, **fields):
        """Tell once all that a rank (None: every rank) has written to terminals is in files."""
        if self.terminals.flush(of):
            self.kept.append((time.monotonic() + FLUSH_LIMIT, event, fields))
        else:
            self.release(len(self.kept))
            self.tell(event, **fields)

    def hear_terminals(self):
        done = self.terminals.flushed()
        if done is None:
            self.terminals.close()
        self.release(len(self.kept) if done is None else done)

    def release(self, number):
        for _ in range(min(number, len(self.kept))):
            _, event, fields = self.kept.popleft()
            self.tell(event, **fields)

    def await_birth(self):
        """A worker that is being forked cannot be ended before its pid is known.

        A template that takes too long is killed, and what it may have forked is swept. One that
        hangs in the kernel keeps the round from ending.
        """
        self.hear_birth()
        if self.asked:
            os.kill(self.template.pid, signal.SIGKILL)
            self.hear_birth()
        if not self.asked:
            self.request = None

    def hear_birth(self):
        limit = time.monotonic() + BIRTH_LIMIT
        while self.asked and time.monotonic() < limit:
            self.hear_template(wait=0.1)
            self.reap()

    def on_template_end(self, code, signum):
        """It was killed, or has failed: the next one may do better."""
        how = signal.Signals(signum).name if signum else f"exit code {code}"
        why = self.template.bury(how)
        if why != UNSAFE:
            self.tell("template", state=self.template.state.value, why=why)
        if self.asked or self.store.asked:
            killed, what = "the template process was killed", "workers" if self.asked else "store"
            self.on_forked(what, {}, 0, killed, 128 + signal.SIGKILL, signal.SIGKILL)
        if self.template.state is State.NONE and not self.must_be_cold:
            self.template.start()
        self.proceed()

    # Processes

    def continue_stopped(self):
        """Send SIGCONT to a template, store or copier that somebody has stopped."""
        known = {self.terminals.pid: "process that copies the workers' output"}
        known |= {self.store.pid: "store process"}
        stopped = filter(is_stopped, self.others() - {0})
        for pid in self.stop_watch.look(stopped, time.monotonic()):
            os.kill(pid, signal.SIGCONT)
            self.tell("continued", what=known.get(pid, "template process"))

    def reap(self):
        """Wait for whatever has ended. All children of this process are its own, so for -1."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code, signum = exit_code(status)
            if pid in self.workers:
                self.ended(pid, code, signum)
            elif pid == self.store.pid:
                self.lose_store("", code, signum)
            elif pid == self.template.pid:
                self.on_template_end(code, signum)
            elif pid == self.terminals.pid:
                self.terminals.pid = 0
            elif self.asked or self.store.asked:
                self.early[pid] = (code, signum)

    def settle(self):
        """End the round once its workers and all their leftovers have ended."""
        if not self.running or self.request is not None or self.workers:
            return
        self.watch_notice()
        if self.given and self.notices.was_last(self.given):
            self.tell("taken", number=self.given, last=True)
            self.given = 0
        pids = set(children()) - self.others()
        if pids:
            left = [leftover(pid) for pid in sorted(pids)]
            if left != self.left and not pids & self.signalled:
                self.left = left
                self.tell_flushed(None, "left", processes=left)
            return
        self.running = self.held = False
        self.commands, self.signalled, self.left = {}, set(), []
        self.gathering, self.given, self.untaken = None, 0, 0
        self.sampler.cancel()
        spent, _ = self.progress.spent()
        self.progress.end()
        self.tell_flushed(None, "gone", spent=spent)

    def others(self):
        """The children of this process that belong to no round's workers."""
        successor = self.template.successor
        made = {successor.pid} if successor is not None else set()
        return {self.terminals.pid, self.store.pid, self.template.pid} | made

    def sweep(self, everything=False):
        """SIGKILL until no child is left but the store, the template and the copier of terminals.

        Grandchildren become children on the way. Returns whether all are gone: a process inside a
        hung system call cannot be killed; should it end after all, there is a SIGCHLD as ever.
        """
        limit = time.monotonic() + SWEEP_LIMIT
        while time.monotonic() < limit:
            spared = {self.terminals.pid} if everything else self.others()
            living = [pid for pid in children() if pid not in spared]
            if not living:
                return True
            signal_all(living, signal.SIGKILL)
            self.board.serve(0.05, self.wakeup)
            self.wakeup.drain()
            self.reap()
        return False

    def leave(self, *, agent_died):
        """The agent is gone, or this process has failed: either way nothing may stay."""
        self.request = None
        self.template.end()
        if agent_died:
            self.kill_all()
            self.board.post()
        self.sweep(everything=True)
        self.terminals.close()
        limit = time.monotonic() + SWEEP_LIMIT
        while self.terminals.pid and time.monotonic() < limit:
            self.board.serve(0.05, self.wakeup)
            self.wakeup.drain()
            self.reap()
        signal_all(children(), signal.SIGKILL)
        while self.board.is_posted:
            self.board.serve(0.5)

    def kill_all(self):
        """Whatever is found until nothing new is: from here on, no worker gets anything done."""
        killed: set[int] = set()
        while living := descendants({self.terminals.pid}) - killed:
            signal_all(living, signal.SIGKILL)
            killed |= living


def leftover(pid):
    """Return the entry of a process in "left"; its rank is known from its environment."""
    rank = variable(pid, "RANK") or ""
    known = RANK.fullmatch(rank)
    return {"pid": pid, "program": program(pid), "rank": int(rank) if known else None}


def main(fd, blocked, spared):
    server = ForkServer(AgentChannel(fd), {*SPARED, *numbers(spared)}, numbers(blocked))
    agent_died = False
    try:
        server.run()
    except AgentGoneError:
        agent_died = True
    finally:
        server.leave(agent_died=agent_died)
