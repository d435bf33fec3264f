"""The messages between agents. Each one holds the whole state of its sender.

An agent sends a `Report` whenever its state changes, and again at every beat. The head answers with
an `Order`. An agent that has lost its head asks another to lead, also with a `Report`; the other
may answer with a `Hint` to ask elsewhere. Without Slurm, an agent may not know its place in the
job: the first head answers its reports with a `PlaceGiven` before anything else.

A message that is lost, repeated or late does no harm: the next one repeats the whole state, and
`serial` shows which one is newer.
"""

from __future__ import annotations

import signal
from typing import TypeVar

from .configuration import Configuration
from .model import (
    Answer,
    Assignment,
    Body,
    Goal,
    Look,
    NoticeAnswer,
    Phase,
    Progress,
    Query,
    Seen,
    Spent,
    StepNotice,
    Trouble,
    Verdict,
    WorkerExit,
)
from .values import value

B = TypeVar("B", bound=Body)


@value(frozen=True)
class Report:
    """The state of an agent, for the head."""

    host: str  # the name of this agent's machine
    incarnation: str  # differs for every start of an agent
    serial: int
    nproc: int
    address: str  # where others reach this agent's node; "" where unknown, as on the head's node
    head_address: str  # where this agent reached the head; "" for the head itself
    store_port: int  # where a store would listen here, if this agent gets rank 0
    round: int  # the last round that it began, or heard was stopped; -1 before the first
    phase: Phase
    exits: tuple[WorkerExit, ...]  # of its workers in that round
    stop_signal: int  # the signal that asked this agent to end the job; 0 for none
    trouble: Trouble | None
    gpus: tuple[str, ...] = ()  # the UUIDs of the GPUs that its task may use
    unfit: str = ""  # why its node must be cordoned; "" if it need not be
    heard: int = 0  # the serial of the newest order that it has received
    group: int = -1  # its node's GROUP_RANK in that round; -1 if it had no part in it
    term: int = 0  # the newest term whose head it has followed
    seeking: int = -1  # the term that it asks the receiver to lead; -1 for none
    version: int = -1  # of the newest configuration that it has; -1 for none
    configuration: Configuration | None = None  # that configuration; only sent while it seeks
    port: int = 0  # the port where it listens for as long as it lives
    seen: Seen | None = None  # its answer to the last Look; None if there was none
    networks: tuple[str, ...] = ()  # from which its node connects to others; () in a job of one
    progress: Progress | None = None  # of its workers; None while none run
    answers: tuple[Answer, ...] = ()  # to the queries of the orders, at most one of each kind
    notice: NoticeAnswer | None = None  # its answer to the last notice that it was offered
    warned: int = 0  # the signal that may mean the end of the job, now or later; 0 for none
    passed: tuple[int, int] = (0, 0)  # the last signal for the workers, and how many came
    spent: Spent = Spent()  # the time that its workers have spent in that round
    task: int = 0  # Slurm's number of its task, by which ranks are ordered; 0 without Slurm
    start: str = ""  # the incarnation of the head that it follows; "" before the first order
    # Two starts of this agent with the same claim cannot live at the same time; "" if not known.
    claim: str = ""
    stager: int = 0  # the port where its stager listens; 0 if it does not
    stage_refused: str = ""  # why no script can save in the memory of its node; "" if it can

    @property
    def news(self) -> tuple[object, ...]:
        """The fields that make a report new, so that it is sent at once."""
        return (
            self.phase,
            self.round,
            len(self.exits),
            self.stop_signal,
            self.trouble,
            self.unfit,
            self.term,
            self.seeking,
            self.version,
            self.seen,
            self.progress is not None and self.progress.suspected,
            tuple(answer.query for answer in self.answers if answer.query.kind.is_urgent),
            self.notice,
            self.warned,
            self.passed,
            self.stager,
            self.stage_refused,
        )

    def answer(self, body: type[B], query: Query | None = None) -> B | None:
        """Return an answer's body of this type; with `query`, only from the answer to it."""
        for each in self.answers:
            if isinstance(each.body, body) and query in (None, each.query):
                return each.body
        return None


@value(frozen=True)
class Order:
    """The order of the head to one agent: everything that the agent must do."""

    term: int
    serial: int
    incarnation: str  # of the agent that it is for
    goal: Goal
    round: int
    assignment: Assignment | None = None  # with RUN, until the agent has reported that round
    verdict: Verdict | None = None  # with END
    lost: bool = False  # with STOP, unless the job ends: workers may wait for others that are gone
    signum: int = signal.SIGTERM  # with STOP: the signal for the workers
    heard: int = 0  # the serial of the newest report that the head has received
    keep: float = 0.0  # the worker lease, in seconds after that report was sent
    configuration: Configuration | None = None  # None if the agent has this one already
    tenure: int = 0  # the term in which this head began to lead
    look: Look | None = None  # with WAIT: the checkpoint to look at; None for none
    queries: tuple[Query, ...] = ()  # with RUN: at most one of each kind
    clock: float = 0.0  # the head's monotonic clock when it sent this
    notice: StepNotice | None = None  # with RUN: the notice to offer to the workers, or to give
    later: bool = False  # the signal in the report's `warned` means a later end
    start: str = ""  # the incarnation of the head

    @property
    def news(self) -> tuple[object, ...]:
        """The fields that make an order new."""
        urgent = tuple(query for query in self.queries if query.kind.is_urgent)
        more = (self.look, urgent, self.notice, self.later)
        return (self.term, self.goal, self.round, *more)


@value(frozen=True)
class Hint:
    """The answer of an agent that was asked to lead, but must not."""

    term: int
    led: bool  # True: the sender follows the head of that term; False: it asks that head to lead


@value(frozen=True)
class PlaceGiven:
    """The place that the first head gives to an agent without one."""

    incarnation: str  # of the agent that it is for
    index: int


Message = Report | Order | Hint | PlaceGiven
