"""The adapter of the fork server: starts, stops and asks workers, and reports what they do."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ..core.protocol import effects, events
from ..core.protocol.model import (
    HEAD,
    OUT_OF_MEMORY,
    Answer,
    Body,
    Evidence,
    Leftover,
    NoticeAnswer,
    Query,
    QueryKind,
    RankVitals,
    StepNotice,
    Vitals,
)
from ..core.protocol.node_facts import (
    ColdCause,
    ColdStart,
    PreloadSkipped,
    SignalUnhandled,
    TemplateReplaced,
    WorkerTurnedCold,
)
from ..system.logs.log_directory import EVIDENCE
from ..system.processes.fork_server_client import ForkServerClient
from ..system.shared.helper import AGAIN
from ..worker import fork_server_messages as messages
from . import evidence, sampling
from .adapter import Adapter, Fd, Performs
from .context import Context
from .gpu_sharing import GpuSharing
from .health_watch import HealthWatch
from .logs import LastWords
from .output import Output
from .resuming import Resuming
from .round_start import RoundStart
from .workers import prepare


class ForkServer(Adapter):
    """The adapter of the fork server, which is replaced if it was killed."""

    def __init__(
        self,
        context: Context,
        client: ForkServerClient,
        output: Output,
        health: HealthWatch,
        sharing: GpuSharing,
        resuming: Resuming,
    ) -> None:
        self._config, self._environ, self._client = context.config, context.environ, client
        self._output, self._logs = output, context.logs
        self._last_words = LastWords(context.logs)
        self._health, self._sharing, self._resuming = health, sharing, resuming
        self._note, self._record = context.note, context.record
        self._native_stacks = evidence.NativeStacks(context.errands)
        self._start = RoundStart(context, output, sharing, resuming)
        self._look_at = math.inf  # when to check whether a lost fork server is gone
        self._is_in_order = False  # the agent ends in order, so no death notice is posted
        self._death_notice: messages.PostOnDeath | None = None
        self._take_vitals: Callable[[tuple[RankVitals, ...]], None] = lambda _: None

    def post_on_death(self, notice: messages.PostOnDeath) -> None:
        """Have the fork server, or its successor, post this death notice once the agent is dead."""
        self._death_notice = notice
        self._send(notice)

    def ask_vitals(self, take: Callable[[tuple[RankVitals, ...]], None]) -> None:
        """Ask for the vitals of the workers, for the history. `take` is called with them later."""
        self._take_vitals = take
        self._client.send_if_read(messages.Query(messages.HISTORY, 0))

    def resize(self) -> None:
        """Set the size of the workers' terminals to that of the user's."""
        self._send(messages.Resize(self._output.size))

    def _send(self, request: messages.Request) -> None:
        self._client.send(request)

    # Effects

    def performs(self) -> Performs:
        return {
            effects.OpenStore: self._open_store,
            effects.StartWorkers: self._start_workers,
            effects.KeepWorkers: lambda effect: self._client.send_if_read(
                messages.Keep(effect.until)
            ),
            effects.AskWorkers: lambda effect: self._ask(effect.query),
            effects.AwaitStillness: lambda effect: self._send(
                messages.AwaitStillness([*effect.seconds])
            ),
            effects.OfferNotice: lambda effect: self._offer(effect.notice),
            effects.WithdrawNotice: lambda _: self._send(messages.Withdraw()),
            effects.GiveNotice: lambda effect: self._send(messages.Give(effect.number)),
            effects.SignalWorkers: lambda effect: self._send(messages.Signal(effect.signum)),
            effects.StopWorkers: self._stop_workers,
            effects.KillIdleWorkers: lambda _: self._send(messages.KillIdle()),
            effects.KillWorkers: self._kill_workers,
            effects.SignalLeftovers: lambda effect: self._send(messages.SignalLeft(effect.signum)),
        }

    def _open_store(self, _: effects.OpenStore) -> None:
        self._sharing.cancel()  # this is for the next round, and any earlier one is over
        self._send(messages.Listen(self._config.job.nodes == 1))

    def _start_workers(self, effect: effects.StartWorkers) -> list[events.Event]:
        self._resuming.began(effect.assignment)
        return self._start.begin(effect.assignment, self._client)

    def _ask(self, query: Query) -> None:
        if query.kind is QueryKind.VITALS:
            self._health.ask_use()
        self._client.send_if_read(messages.Query(query.kind.value, query.number))

    def _offer(self, notice: StepNotice) -> None:
        self._send(messages.Offer(notice.number, notice.step, notice.signum))

    def _stop_workers(self, effect: effects.StopWorkers) -> list[events.Event]:
        self._resuming.stopped()
        if self._start.cancel():
            return [events.WorkersGone()]
        self._send(messages.Stop(effect.signum))
        return []

    def _kill_workers(self, _: effects.KillWorkers) -> list[events.Event]:
        if self._start.cancel():
            self._resuming.ended()
            return [events.WorkersGone()]
        self._send(messages.Kill())
        return []

    # Events

    def fds(self) -> Iterable[Fd]:
        return () if self._client.lost else (self._client.fileno(),)

    def ready(self, fds: Collection[Fd], now: float) -> Iterator[events.Event]:
        if self._client.lost or self._client.fileno() not in fds:
            return
        for reply in self._client.hear():
            yield from self._on_reply(reply)
        if self._client.lost:
            self._resuming.ended()  # the workers die with it
            self._look_at = now

    def deadline(self) -> float:
        return self._look_at

    def update(self, now: float) -> list[events.Event]:
        """Replace a lost fork server once all of its workers have ended, which may take a while."""
        if now < self._look_at:
            return []
        if not self._client.is_gone():
            self._look_at = now + AGAIN
            return []
        self._look_at = math.inf
        return self._replace()

    def _replace(self) -> list[events.Event]:
        """Replace the fork server, which is gone. Its workers are gone as well."""
        dead = self._client
        dead.abandon()
        self._logs.service.finish()
        self._start.cancel()
        how = ""
        if dead.survivors:
            how = "was killed and left workers behind"
        elif not dead.heard:
            how = "cannot start"
        else:
            try:
                self._client = dead.successor()
            except OSError as e:
                how = f"cannot be started again: {e.strerror}"
        if how:
            reason = f"the fork server {how}"
            return self._in_order(events.HealthFound(reason), events.WorkersGone())
        if self._death_notice is not None:
            self._send(self._death_notice)
        prepare(self._client, self._config, self._environ)
        return self._in_order(events.ForkServerReplaced())

    def _in_order(self, *some: events.Event) -> list[events.Event]:
        """Queue these events behind all that the fork server has reported before."""
        return self._last_words.add(lambda _: some)

    def _on_reply(self, reply: messages.Event) -> Iterable[events.Event]:
        """Return events for the core that follow from a reply of the fork server."""
        match reply:
            case messages.Listening(port):
                return [events.StoreListening(port)]
            case messages.Exit(rank, code, signum, oom):
                return self._on_exit(rank, code, signum, oom=oom)
            case messages.CannotStart(why):
                return [events.HealthFound(f"workers cannot be started: {why}")]
            case messages.LeaseOver():
                return [events.LeaseOver()]
            case messages.Left(processes):
                leftovers = tuple(Leftover(**process.fields()) for process in processes)
                return self._in_order(events.LeftBehind(leftovers))
            case messages.Gone(spent):
                self._resuming.ended()
                self._logs.service.finish()
                return self._in_order(events.WorkersGone(tuple(spent)))
            case messages.StoreExit(port, code, signum, why):
                files = [] if why else [self._start.store_errors]
                return self._last_words.add(
                    lambda tail: [events.StoreEnded(port, code, signum, why or tail)], files
                )
            case messages.Progress(steps=steps, spent=spent):
                lists = {"steps": tuple(steps), "spent": tuple(spent)}
                return [events.WorkersSeen(**{**reply.fields(), **lists})]
            case messages.Answer(messages.HISTORY, body=body):
                self._take_vitals(_ranks(body))
            case messages.Answer(kind, number, body):
                return self._on_answer(Query(QueryKind(kind), number), body)
            case messages.Offered(number, accepted, busy, steps):
                answer = NoticeAnswer(number, accepted, busy, tuple(steps))
                return [events.NoticeOffered(answer)]
            case messages.Unheard(number):
                return [events.NoticeUnheard(number)]
            case messages.Taken(number, last):
                # The file appears only once all workers have reached the step of the notice.
                file = self._start.notice_file
                self._logs.service.keep(file.parent, {file.name: "notice was given\n"})
                self._resuming.hurry()
                return [events.NoticeTaken(number, last)]
            case messages.Started(rank, pid):
                self._note(reply.op, reply.fields())
                self._health.started(rank, pid)
                self._sharing.started(rank, pid)
            case messages.Copier(pid):
                self._client.spare(pid)
            case _:
                self._inform(reply)
        return ()

    def _inform(self, reply: messages.Event) -> None:
        """Record, or note in the journal, something that the core does not need."""
        if not isinstance(reply, messages.Unhandled):
            self._note(reply.op, reply.fields())
        host, is_head = self._config.host, self._config.place.index == HEAD
        match reply:
            case messages.Unhandled(signum, ranks):
                self._record(SignalUnhandled(host, signum, tuple(ranks)))
            case messages.Template("none", why):
                self._record(TemplateReplaced(host, why))
            case messages.Template(_, why) if why and self._config.start.warm and is_head:
                self._record(ColdStart(host, why))
            case messages.Restart(kind, name, file, line, forked) if is_head:
                cause = ColdCause.MODULE if kind == "module" else ColdCause.VARIABLE
                self._record(WorkerTurnedCold(host, cause, name, file, line, is_impossible=forked))
            case messages.PassedOver(module, why, learned) if is_head and not learned:
                self._record(PreloadSkipped(host, module, why))

    def _on_exit(self, rank: int, code: int, signum: int, *, oom: bool) -> list[events.Event]:
        if code:
            self._resuming.failed()
        directory, stage = self._start.directory, self._resuming.stage
        files = [directory / f"rank-{rank}.{kind}" for kind in ("err", "out")] if code else []

        def make(wrote: str) -> Iterator[events.Event]:
            faults = self._health.faults_of(rank) if code else []
            faults += [f"{OUT_OF_MEMORY} (oom_kill in memory.events)"] if oom else []
            if stage is not None:  # by its path, the core sees that a checkpoint is at fault
                wrote = stage.with_stored(wrote)
            last = "\n".join(filter(None, [wrote, *faults]))
            yield events.WorkerExited(rank, code, signum, last)

        return self._last_words.add(make, files)

    def _on_answer(self, query: Query, found: Mapping[str, Any]) -> list[events.Event]:
        """Answer a query of the core from what the fork server has found."""
        if query.kind is QueryKind.EVIDENCE:
            directory = self._start.directory / EVIDENCE
            hang = evidence.HangEvidence(directory, query, found["ranks"], {})
            return self._native_stacks.add_to(hang, self._keep_evidence)
        if query.kind is QueryKind.SAMPLE:
            agents = len(self._config.job.places)
            return [_answered(query, sampling.sample_of(**found, agents=agents))]
        return [_answered(query, Vitals(_ranks(found), self._health.use))]

    def _keep_evidence(self, found: evidence.HangEvidence) -> list[events.Event]:
        self._logs.service.keep(found.directory, evidence.files_of(found))
        states = tuple(map(evidence.state_of, found.ranks))
        return [_answered(found.query, Evidence(states))]

    # The end

    def conclude(self, end: effects.Exit) -> None:
        self._is_in_order = not end.alone

    def close(self) -> None:
        self._client.close(in_order=self._is_in_order)


def _ranks(found: Mapping[str, Any]) -> tuple[RankVitals, ...]:
    """Return the vitals of each worker from the fork server's answer."""
    return msgspec.convert(found["ranks"], tuple[RankVitals, ...])


def _answered(query: Query, body: Body) -> events.Event:
    return events.WorkersAnswered(Answer(query, body))
