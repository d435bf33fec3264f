"""What agents say to one another: messages that are each the whole state of their sender.

An agent sends a `Report` whenever its state changes and again at every beat; the head answers
with an `Order`. One that has lost its head asks others to lead, and those that cannot answer with
a `Hint`. None is a step of a conversation: losing one, receiving one twice or late
does no harm, since the next one says everything again and `serial` tells which is newer.
"""

from __future__ import annotations

from dataclasses import dataclass

from .configuration import Configuration
from .model import Assignment, Goal, Look, Phase, Seen, Trouble, Verdict, WorkerExit


@dataclass(frozen=True, slots=True)
class Report:
    """An agent to the head: where I stand."""

    host: str  # what this agent's machine is called
    incarnation: str  # differs for every start of an agent
    serial: int
    nproc: int
    address: str  # where the others reach this agent's node
    head_address: str  # where this agent reached the head; "" for the head itself
    store_port: int  # where a store would listen here, should rank 0 come to this node
    round: int  # the last round it took part in, -1 before the first
    phase: Phase
    exits: tuple[WorkerExit, ...]  # of that round
    stop_signal: int  # the signal that asked this agent to end the job, or 0
    trouble: Trouble | None
    gpus: tuple[str, ...] = ()  # the UUIDs of those that its task may use
    unfit: str = ""  # why its node is to be cordoned
    heard: int = 0  # the serial of the newest order that it answers
    fenced: bool = False  # its workers of that round were ended, since the head was not heard
    group: int = -1  # its node's group in that round
    term: int = 0  # the newest whose head it has followed
    seeking: int = -1  # the term that it asks the receiver to begin
    version: int = -1  # of the newest configuration that it has
    configuration: Configuration | None = None  # that one, while it seeks
    port: int = 0  # where it listens, for as long as it lives
    seen: Seen | None = None  # of the checkpoint that it was asked to look at

    @property
    def news(self) -> tuple[object, ...]:
        """Differs between two reports only if the later one says something new."""
        return (
            self.phase,
            self.round,
            len(self.exits),
            self.stop_signal,
            self.trouble,
            self.unfit,
            self.fenced,
            self.term,
            self.seeking,
            self.version,
            self.seen,
        )


@dataclass(frozen=True, slots=True)
class Order:
    """The head to one agent: where I want you."""

    term: int
    serial: int
    incarnation: str  # of the agent that it is meant for
    goal: Goal
    round: int
    assignment: Assignment | None = None  # with RUN, until the agent has reported that round
    verdict: Verdict | None = None  # with END
    lost: bool = False  # with STOP: a worker has failed, and its peers wait for it in vain
    heard: int = 0  # the serial of the newest report that it answers
    keep: float = 0.0  # seconds from the sending of that report that workers may run
    configuration: Configuration | None = None  # if the agent has an older one
    tenure: int = 0  # the term in which this head began to lead
    look: Look | None = None  # with WAIT: at the checkpoint that it would begin with

    @property
    def news(self) -> tuple[object, ...]:
        """Differs between two orders only if the later one says something new."""
        return (self.term, self.goal, self.round, self.look)


@dataclass(frozen=True, slots=True)
class Hint:
    """To an agent that asks the wrong one to lead."""

    term: int
    led: bool  # the head of that term is heard here; else it is asked for here

    @property
    def news(self) -> tuple[object, ...]:
        return (self.term, self.led)


Message = Report | Order | Hint
