"""The agent's loop: events from system/ go into the core, the core's effects go out to system/.

There is one thread and one poll, whose time-out is the core's next deadline. Nothing is decided
here.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zmq

from ..core.consensus.awake_clock import LATE
from ..core.control import Control
from ..core.health.host_rules import Disk
from ..core.protocol import effects, events
from ..core.protocol.errors import UsageError
from ..core.protocol.facts import Fact
from ..core.protocol.model import (
    EXIT_FAILED,
    HEAD,
    OUT_OF_MEMORY,
    Assignment,
    Leftover,
    NoticeAnswer,
    Origin,
    RankVitals,
    Trouble,
    Verdict,
)
from ..core.protocol.values import replace
from ..core.protocol.wording import signal_name
from ..core.source.reasons import of_restart
from ..observe.console import Console
from ..system.logs import error_file, messages
from ..system.logs.fact_files import FactFile
from ..system.logs.journal import Journal
from ..system.logs.log_client import LogServiceClient
from ..system.logs.log_directory import EVIDENCE
from ..system.processes import fork_server_client
from ..system.processes.signals import Signals
from ..system.shared.disk import DiskSeen
from ..system.shared.helper import CONTINUES, StoppedHelpers
from ..worker import fork_server_messages as replies
from ..worker.messages import never
from . import evidence, post_mortem, sampling
from .config import Config
from .end_watch import EndWatch
from .errands import Errands
from .gpu_sharing import GpuSharing
from .health_watch import HealthWatch
from .history_keeping import VITALS, HistoryKeeping
from .joining import join
from .last_words import LastWords
from .later_imports import LaterImports
from .ledger_keeping import LedgerKeeping
from .metrics import Metrics
from .notifying import Notifying
from .output import Output
from .resuming import Resuming
from .successors import Successors
from .viewing import Viewing
from .waiting import WaitOnTerminal
from .workers import Crew, is_warm, notice_file, prepare, workers_of

PATIENCE = 3.0  # seconds that helpers have to answer after this process was suspended
DISK_LIMIT = 3.0  # seconds; longer than a log service stays stopped


class Agent:
    """Built from a Config; `run` returns the job's exit code once everybody is done."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        signals: Signals,
        server: fork_server_client.ForkServerClient,
        logs: LogServiceClient,
    ) -> None:
        self.config = config
        self.environ = environ
        self.place = config.job.places[config.allocation.index]
        self.signals = signals
        self.forkserver = server
        label = config.allocation.label
        host = self.place.host
        self.output = Output(
            logs,
            config.streams,
            role=config.role,
            launch=config.allocation.name,
            label=label,
            host=host,
        )
        self._is_replaced = Successors(host, self.output.say)
        self.stopped_helpers = StoppedHelpers(self.output.say)
        self.joined = join(config, environ, self.output.say)
        self.channels = self.joined.channels
        self._poller = zmq.Poller()
        self.errands = Errands(self._poller, self._is_replaced)
        self.incarnation = incarnation = os.urandom(8).hex()
        self._leave_notice()
        address, gpus = self.joined.address, tuple(gpu.uuid for gpu in config.gpus)
        index, nproc = self.place.index, config.nproc
        port = 0 if self.channels is None else self.channels.port
        made: dict[str, Any] = {"job": config.job, "index": index, "nproc": nproc}
        made |= {"address": address, "incarnation": incarnation, "gpus": gpus, "port": port}
        made |= {"networks": self.joined.networks, "anew": config.anew}
        made |= {"task": config.allocation.task, "has_place": config.allocation.has_place}
        self.control = Control(**made)
        logs_at = None if config.logs is None else config.logs.path
        self.journal = Journal(logs_at, label)
        self.journal.began(made)
        self.facts = FactFile(logs_at, label, config.allocation.name, host)
        self.ledger = LedgerKeeping(config, self.control, self._record)
        says = (self.output.say, self._note, self._is_replaced)
        self.health = HealthWatch(config, self._poller, *says)
        self.sharing = GpuSharing(config, environ, self._poller, *says)
        self.resuming = Resuming(
            config, self._poller, self._look_at_disk, self.output.say, self._is_replaced
        )
        self.end_watch = EndWatch(config.job, environ, self.errands)
        self.native_stacks = evidence.NativeStacks(self.errands)
        seen = (self.output, self.ledger, self.health, self._deliver)
        self.viewing = Viewing(config, self.control, self._poller, *seen)
        self.waiting = WaitOnTerminal(self.control, self.output, environ, self._deliver)
        self.metrics = Metrics(
            config, self.viewing.name, self._poller, self.output.say, self._is_replaced
        )
        self.notifying = Notifying(config, self.errands, self.output.say)
        self.history = HistoryKeeping(config, self.control, self._look_for_history)
        self.later_imports = LaterImports()
        self.last_words = LastWords()
        self.console = Console()
        self.round_dir: Path | None = None
        self._asked = 0  # the number of the newest request to the log service
        self._starting: tuple[int, Assignment, Crew] | None = None  # once its files are there
        self._disk_until = math.inf  # when to go on without knowing the disk of the logs
        self._checked_at = time.monotonic()  # when deadlines were checked last
        self._patient_until = -math.inf  # no helper counts as late before this time
        self.verdict: Verdict | None = None
        self._in_order = False  # nobody has to be told that this agent is gone
        self._events: deque[events.Event] = deque()

    # The loop

    def run(self) -> int:
        try:
            for source in (self.signals, self.forkserver, self.output.service):
                self._poller.register(source.fileno(), zmq.POLLIN)
            if self.channels is not None:
                self.channels.watch(self._poller, self.errands)
            for note in self.config.notes:
                self.output.say(note)
            self._deliver(events.Started())
            if self.config.trouble is not None:
                self._deliver(events.TroubleFound(self.config.trouble))
            while self.verdict is None:
                self._turn()
            self.signals.ignore()
            self._conclude(self.verdict)
            return self._exit_code(self.verdict)
        finally:
            with ExitStack() as ends:  # each one, even if another fails
                if self.channels is not None and self._in_order:
                    ends.callback(self.channels.close)
                if self.config.logs is not None and self._in_order and self.place.index == HEAD:
                    self.output.service.remove(self.config.logs.first)
                ends.callback(self.health.close)
                ends.callback(self.sharing.close)  # after the workers, which its daemons serve
                ends.callback(self.forkserver.close, in_order=self._in_order)
                if self.channels is not None and not self._in_order:
                    ends.callback(self.channels.close)  # its port is for the fork server now
                ends.callback(self.output.service.close)
                # After the callbacks below, which run before it and may still record something.
                ends.callback(self.journal.finish, self.output.service)
                ends.callback(self.facts.finish, self.output.service)
                ends.callback(self.resuming.close)
                ends.callback(self.errands.close)
                ends.callback(self.viewing.close)
                ends.callback(self.metrics.close)
                ends.callback(self.notifying.close)

    def _turn(self) -> None:
        service = self.output.service
        more = zmq.POLLOUT if service.wanting else 0
        self._poller.register(service.fileno(), zmq.POLLIN | more)
        helped = (self.last_words, self.health, self.resuming, self.errands)
        answers_due = min(self._disk_until, *(part.next_deadline() for part in helped))
        parts = (
            self.control,
            self.viewing,
            self.waiting,
            self.ledger,
            self.history,
            self.later_imports,
            self.stopped_helpers,
        )
        deadline = min(part.next_deadline() for part in parts)
        deadline = min(deadline, max(answers_due, self._patient_until))
        if self.channels is not None:
            deadline = min(deadline, self.channels.next_deadline())
        wait = None if deadline == math.inf else max(0.0, deadline - time.monotonic()) * 1000
        # Rounded up: woken a moment too early, the loop would spin until the deadline.
        ready = dict(self._poller.poll(None if wait is None else math.ceil(wait)))
        if service.wanting:
            service.flush()
        # Messages are read before deadlines are checked: after a pause of this process, those of
        # the others are there, and prove that they were never silent.
        self._read_all(ready)
        now = time.monotonic()
        if now >= deadline + LATE:
            self._patient_until = now + PATIENCE
        if (late := now - max(deadline, self._checked_at)) >= LATE:
            self._note("late", {"seconds": round(late, 3)})
        self._checked_at = now
        if now >= self._patient_until:
            self._expire_answers(now)
        if now >= self.stopped_helpers.next_deadline():
            self.stopped_helpers.look(now)
        self.viewing.expire(now)
        self.later_imports.expire(now)
        if now >= self.control.next_deadline():
            self._deliver(events.Tick())
        now = time.monotonic()
        self.ledger.keep(self.output.service, self.end_watch.began, now)
        self.history.keep(self.output.service, now, self.health.use, self.resuming.newest)
        self.waiting.update(now)
        self.journal.flush(self.output.service)
        self.facts.flush(self.output.service)

    def _expire_answers(self, now: float) -> None:
        """Continue without the answers of helpers that are too late."""
        self._deliver(*self.health.expire(now), *self.resuming.expire(now))
        self._deliver(*self.last_words.expire(now), *self.errands.expire(now))
        if now >= self._disk_until:
            assert self.config.logs is not None, "it was asked for"
            silent = Disk(str(self.config.logs.path), silent=True)
            self._deliver(*self._check_health(silent))

    def _read_all(self, ready: Mapping[Any, int]) -> None:
        if self.signals.fileno() in ready:
            for signum in self.signals.receive():
                if signum == signal.SIGCHLD:
                    self.stopped_helpers.look(time.monotonic())
                elif signum == signal.SIGWINCH:
                    self.forkserver.resize(self.output.size)
                else:
                    self._deliver(events.Signalled(signum))
        if self.output.service.fileno() in ready:
            self._hear_log_service()
        if self.forkserver.fileno() in ready:
            for reply in self.forkserver.hear():
                self._on_reply(reply)
            if self.forkserver.lost:
                self._replace_forkserver()
        self._deliver(*self.health.receive(ready), *self.sharing.receive(ready))
        self._deliver(*self.resuming.receive(ready), *self.errands.receive(ready))
        if self.channels is not None:
            self._deliver(*self.channels.receive(time.monotonic(), ready))
        self.metrics.receive(ready)
        self.viewing.receive(ready)  # last: it is to see what has arrived

    def _deliver(self, *some: events.Event) -> None:
        """Give events to the core and carry out its effects, until nothing more follows."""
        self._events += some
        while self._events:
            event = self._events.popleft()
            now = time.monotonic()
            self.journal.event(event, now)
            asked = self.control.handle(event, now)
            self.journal.effects(asked, self.control)
            for effect in asked:
                self._carry_out(effect)

    def _replace_forkserver(self) -> None:
        """The dead one's workers have died with it."""
        dead = self.forkserver
        self._poller.unregister(dead.fileno())
        dead.close()
        self.output.service.finish()
        self._starting = None
        if dead.survivors or not dead.heard:
            how = "was killed and left workers behind" if dead.survivors else "cannot start"
            reason = f"the fork server {how}"
            self._tell_in_order(events.HealthFound(reason), events.WorkersGone())
            return
        self.forkserver = dead.successor()
        self._leave_notice()
        self._poller.register(self.forkserver.fileno(), zmq.POLLIN)
        prepare(self.forkserver, self.config, self.environ)
        self._tell_in_order(events.ForkServerReplaced())

    def _leave_notice(self) -> None:
        if self.channels is not None:
            self.channels.leave_notice(self.forkserver, self.incarnation)

    # Events

    def _on_reply(self, reply: replies.Event) -> None:
        """Act on an event from the fork server."""
        match reply:
            case replies.Listening(port):
                self._deliver(events.StoreListening(port))
            case replies.Exit(rank, code, signum, oom):
                self._exit(rank, code, signum, oom=oom)
            case replies.CannotStart(why):
                self._deliver(events.HealthFound(f"workers cannot be started: {why}"))
            case replies.LeaseOver():
                self._deliver(events.LeaseOver())
            case replies.Left(processes):
                leftovers = tuple(Leftover(**process.fields()) for process in processes)
                self._tell_in_order(events.LeftBehind(leftovers))
            case replies.Gone(spent):
                self.resuming.ended()
                self.output.service.finish()
                self._tell_in_order(events.WorkersGone(tuple(spent)))
            case replies.Unhandled(signum, deaf):
                who = ", ".join(map(str, deaf))
                name = signal_name(signum)
                self.output.say(
                    f"{name} not passed on to rank {who}: the script has no handler for it"
                )
            case replies.StoreExit(port, code, signum, why):
                files = [] if why else [self._store_errors]
                self._tell_with_tail(
                    files, lambda tail: [events.StoreEnded(port, code, signum, why or tail)]
                )
            case replies.Template(state, why):
                self._note(reply.op, reply.fields())
                if state == "none":
                    self.output.say(
                        f"the template process on {self.place.host} ended ({why}) and was replaced"
                    )
                elif why and self.config.start.warm and self.place.index == HEAD:
                    self.output.say(f"cold start: {why}")
            case replies.Restart():
                self._note(reply.op, reply.fields())
                if self.place.index == HEAD:
                    self.output.say(of_restart(**reply.fields()))
            case replies.Renewed():
                self._note(reply.op, {})
            case replies.PassedOver(module, why, learned):
                self._note(reply.op, reply.fields())
                if self.place.index == HEAD and not learned:
                    self.output.say(f"--preload {module}: passed over, {why}")
            case replies.Copier(pid):
                self.forkserver.spare(pid)
            case replies.Continued(what):
                self.output.say(f"the {what} on {self.place.host} {CONTINUES}")
            case replies.Progress(steps=steps, spent=spent):
                lists = {"steps": tuple(steps), "spent": tuple(spent)}
                self._deliver(events.WorkersSeen(**{**reply.fields(), **lists}))
            case replies.Evidence(number, ranks):
                assert self.round_dir is not None, "no evidence without a round"
                hang = evidence.HangEvidence(self.round_dir / EVIDENCE, number, ranks, {})
                self._deliver(*self.native_stacks.add_to(hang, self._keep_evidence))
            case replies.Sample(number, ranks, ways):
                agents = len(self.config.job.places)
                sample = sampling.sample_of(number, ranks, ways, agents)
                self._deliver(events.SampleTaken(sample))
            case replies.Vitals(number, vitals):
                told = tuple(RankVitals(**rank.fields()) for rank in vitals)
                if number == VITALS:
                    self.history.heard(told)
                    return
                self._deliver(events.VitalsTaken(number, told, self.health.use))
            case replies.Offered(number, accepted, busy, steps):
                found = NoticeAnswer(number, accepted, busy, tuple(steps))
                self._deliver(events.NoticeOffered(found))
            case replies.Unheard(number):
                self._deliver(events.NoticeUnheard(number))
            case replies.Taken(number, last):
                self._make_notice_file()
                self._deliver(events.NoticeTaken(number, last))
            case replies.Started(rank, pid):
                self._note(reply.op, reply.fields())
                self.health.started(rank, pid)
                self.sharing.started(rank, pid)
            case _:
                never(reply)

    def _keep_evidence(self, found: evidence.HangEvidence) -> list[events.Event]:
        self.output.service.keep(found.directory, evidence.files_of(found))
        states = tuple(map(evidence.state_of, found.ranks))
        return [events.EvidenceGathered(found.number, states)]

    def _exit(self, rank: int, code: int, signum: int, *, oom: bool) -> None:
        assert self.round_dir is not None, "no worker without a round"
        if code:
            self.resuming.ended()
        directory = self.round_dir
        names = [directory / f"rank-{rank}.{kind}" for kind in ("err", "out")] if code else []

        def tell(wrote: str) -> Iterator[events.Event]:
            faults = self.health.faults_of(rank) if code else []
            faults += [f"{OUT_OF_MEMORY} (oom_kill in memory.events)"] if oom else []
            last = "\n".join(filter(None, [wrote, *faults]))
            yield events.WorkerExited(rank, code, signum, last)

        self._tell_with_tail(names, tell)

    def _tell_with_tail(
        self, files: Sequence[Path], make: Callable[[str], Iterable[events.Event]]
    ) -> None:
        """Deliver what `make` makes of the last lines of these files, once they are read."""
        number = self._next_number() if files else 0
        if files:
            self.output.service.tail(number, files)
        self._deliver(*self.last_words.add(make, number=number, now=time.monotonic()))

    def _tell_in_order(self, *some: events.Event) -> None:
        """Deliver these events after all that the fork server has told before."""
        self._deliver(*self.last_words.add(lambda _: some))

    # The log service

    def _next_number(self) -> int:
        self._asked += 1
        return self._asked

    def _hear_log_service(self) -> None:
        service = self.output.service
        for reply in service.replies():
            match reply:
                case messages.Prepared(id=number):
                    self._start_workers(number)
                case messages.Refused(id=number, why=why, file=file, full=full):
                    self._refuse(number, f"{why}: {file}", full=full)
                case messages.Tail(id=number, text=text):
                    self._deliver(*self.last_words.receive(number, text))
                case messages.Facts(lines=lines):
                    self.ledger.take_earlier(lines)
                case messages.Disk(seen=seen) if self._disk_until < math.inf:
                    self._deliver(*self._check_health(Disk(**seen.fields())))
        if service.lost:
            self._poller.unregister(service.fileno())
            service.close()
            self.output.replace_service()
            if not self._is_replaced(service):
                raise RuntimeError("the workers' output cannot be shown")
            if self._disk_until < math.inf:
                self._ask_for_disk()

    def _ask_for_disk(self) -> Iterable[events.Event]:
        """Before the health of this node is checked, which a hung file system is not to hold up."""
        if self.config.logs is None:
            return self.health.check(None)
        self._disk_until = time.monotonic() + DISK_LIMIT
        self.output.service.look(self._next_number(), self.config.logs.path)
        return []

    def _check_health(self, disk: Disk) -> Iterable[events.Event]:
        self._disk_until = math.inf
        return self.health.check(disk)

    def _look_at_disk(self, seen: DiskSeen) -> None:
        self.health.look_at_checkpoints(Disk(**seen.fields()))

    # Effects

    def _carry_out(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(to=to, message=message):
                if self.channels is not None:
                    self.channels.send(to, message)
            case effects.Dial(agents=agents, addresses=addresses):
                if self.channels is not None:
                    self.channels.dial(agents, addresses)
            case effects.TakePlace(index=index):
                self._take_place(index)
            case effects.Probe():
                if self.channels is not None:
                    self.channels.probe(effect, time.monotonic())
            case effects.OpenStore():
                self.forkserver.listen(loopback=self.config.job.nodes == 1)
            case effects.PrepareGpus(assignment=part):
                self._events += self.sharing.prepare(part)
            case effects.CheckHealth():
                self._events += self._ask_for_disk()
            case effects.ChooseCheckpoint():
                self._events += self.resuming.choose(effect)
            case effects.LookAt(look=look):
                self._events += self.resuming.look(look)
            case effects.Diagnose(number=number):
                self._events += self.joined.diagnose(number)
            case effects.StartWorkers(assignment=part):
                try:
                    self._prepare_workers(part)
                except UsageError as e:
                    trouble = Trouble(Origin.USAGE, f"on {self.place.host}: {e}")
                    self._events += [events.TroubleFound(trouble), events.WorkersGone()]
            case effects.KeepWorkers(until=until):
                self.forkserver.keep(until)
            case effects.GatherEvidence(number=number):
                self.forkserver.gather(number)
            case effects.AwaitStillness(seconds=seconds):
                self.forkserver.await_stillness(seconds)
            case effects.TakeSample(number=number):
                self.forkserver.sample(number)
            case effects.TakeVitals(number=number):
                self.health.ask_use()
                self.forkserver.vitals(number)
            case effects.AskForEnd(number=number):
                self.end_watch.ask(number)
            case effects.OfferNotice(notice=notice):
                self.forkserver.offer(notice.number, notice.step, notice.signum)
            case effects.WithdrawNotice():
                self.forkserver.withdraw()
            case effects.GiveNotice(number=number):
                self.forkserver.give(number)
            case effects.SignalWorkers(signum=signum):
                self.forkserver.signal(signum)
            case effects.StopWorkers() | effects.KillWorkers() if self._starting is not None:
                self._starting = None
                self.resuming.ended()
                self._events.append(events.WorkersGone())
            case effects.StopWorkers(signum=signum):
                self.resuming.ended()
                self.forkserver.stop(signum)
            case effects.KillIdleWorkers():
                self.forkserver.kill_idle()
            case effects.KillWorkers():
                self.forkserver.kill()
            case effects.SignalLeftovers(signum=signum):
                self.forkserver.signal_left(signum)
            case effects.Record(fact=fact, ago=ago):
                self._record(fact, ago)
            case effects.Say(text=text):
                self.output.say(text)
            case effects.Exit(verdict=verdict, alone=alone):
                self.verdict = verdict
                self._in_order = not alone

    def _record(self, fact: Fact, ago: float = 0.0) -> None:
        """Let all observers note a fact, which happened so many seconds ago."""
        at = round(time.time() - ago, 3)
        self.facts.record(fact, at)
        self.ledger.note(fact, at)
        self.history.note(fact)
        for line in self.console.lines(fact):
            self.output.say(line)
        self.notifying.note(fact, self.ledger.goodput)

    def _look_for_history(self) -> None:
        self.health.ask_use()
        self.forkserver.vitals(VITALS)
        if self.control.leads:
            self.resuming.ask_newest()

    def _make_notice_file(self) -> None:
        """Once all workers have taken it: one that looks for the file has come to the step."""
        assert self.round_dir is not None, "no notice without a round"
        file = notice_file(self.round_dir, self.config)
        self.output.service.keep(file.parent, {file.name: "notice was given\n"})

    def _take_place(self, index: int) -> None:
        assert self.channels is not None, "an agent that is alone has a place"
        try:
            self.channels.take_place(index)
        except UsageError as e:
            trouble = Trouble(Origin.USAGE, f"on {self.place.host}: {e}")
            self._events.append(events.TroubleFound(trouble))
            return
        self._leave_notice()
        self._events.append(events.PlaceTaken(self.channels.port))

    def _prepare_workers(self, part: Assignment) -> None:
        """Have the round's files made, and then start the workers."""
        assert self.config.logs is not None, "an agent without logs has trouble and starts nothing"
        self.resuming.began(part)
        self._prepare_files(part, self.config.logs.round(part.round))

    def _prepare_files(self, part: Assignment, directory: Path) -> None:
        self.round_dir = directory
        pipes = self.sharing.directories
        crew = workers_of(part, self.config, self.environ, self.round_dir, pipes)
        crew = replace(crew, workers=self.output.in_one_file(part, crew.workers))
        number = self._next_number()
        self._starting = (number, part, crew)
        errors = [worker.env[error_file.VARIABLE] for worker in crew.workers]
        store = self._store_errors
        self.output.prepare(number, part, crew.workers, self.round_dir, errors=errors, store=store)

    def _start_workers(self, number: int) -> None:
        if self._starting is None or self._starting[0] != number:
            return  # they have been stopped meanwhile
        _, part, crew = self._starting
        self._starting = None
        self.forkserver.start(
            crew.workers,
            crew.shared,
            store=str(self._store_errors) if part.hosts_store else "",
            peers=part.peers,
            warm=is_warm(part, self.config, self.environ),
            learn=self.config.start.learn,
            progress=self.config.progress,
            terminals=self.output.terminals(part),
            size=self.output.size,
            pipes=self.config.command[0] != self.config.python,
        )
        self._note("binding", crew.placed)

    def _refuse(self, number: int, reason: str, *, full: bool) -> None:
        """The round's files cannot be made. Where the disk is full, they are made elsewhere."""
        if self._starting is None or self._starting[0] != number:
            return
        _, part, _ = self._starting
        assert self.config.logs is not None, "there was a directory to ask for"
        if full and self.round_dir == self.config.logs.round(part.round):
            try:
                substitute = self.config.logs.make_substitute(part.round)
            except OSError as e:
                why = ": ".join(str(word) for word in (e.strerror, e.filename) if word)
                reason = f"{reason}; nor in the temporary directory: {why}"
            else:
                what = f"the output of round {part.round} is in {substitute} on {self.place.host}"
                self.output.say(f"{what}: {reason}")
                self._prepare_files(part, substitute)
                return
        self._starting = None
        reason = f"cannot write logs: {reason}"
        self._deliver(events.HealthFound(reason), events.WorkersGone())

    def _note(self, kind: str, value: Any) -> None:
        self.journal.note(kind, value)

    @property
    def _store_errors(self) -> Path:
        """The file for the errors of the processes that hold the rounds' stores."""
        assert self.round_dir is not None, "no store before the first round"
        return self.round_dir.parent / "store.err"

    def _exit_code(self, verdict: Verdict) -> int:
        return min(verdict.code, EXIT_FAILED) if self.config.as_torchrun else verdict.code

    def _conclude(self, verdict: Verdict) -> None:
        logs = self.config.logs
        self.viewing.keep()
        self.metrics.finish(self.viewing.last)
        if verdict.code:
            where = "" if logs is None else str(logs.path)
            at_head = self.control.leads
            text = post_mortem.account(
                verdict,
                code=self._exit_code(verdict),
                host=self.place.host,
                at_head=at_head,
                log_dir=where,
            )
            if text:
                self.output.say(text)
            if logs is not None:
                failures = [verdict.cause] if verdict.cause else []
                error_file.hand_on((*failures, *verdict.consequences), logs.path, self.environ)
        # Last: if the report fails, the user still knows why the job did.
        self.ledger.finish(self.output.service)


def run(
    config: Config,
    signals: Signals,
    server: fork_server_client.ForkServerClient,
    logs: LogServiceClient,
    begun: Callable[[], None],
) -> int:
    """Be an agent; returns the exit code. Raises UsageError before `begun` is called, if at all.

    The caller creates `signals`, `server` and `logs` before this module is imported: so no signal
    is missed, and both processes start up during the import.
    """
    agent = Agent(config, os.environ, signals, server, logs)
    begun()
    code = agent.run()
    if agent.verdict is not None:
        from . import sequel  # no start of an agent pays for it

        sequel.carry_out(agent.verdict, config.job, os.environ, leads=agent.control.leads)
    return code
