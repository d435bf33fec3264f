"""What agents say to one another: two messages, each the whole state of its sender.

An agent sends a `Report` whenever its state changes and again at every beat; the head answers
with an `Order`. Neither is a step of a conversation: losing one, receiving one twice or late
does no harm, since the next one says everything again and `serial` tells which is newer.
"""

from __future__ import annotations

from dataclasses import dataclass

from .model import Assignment, Goal, Phase, Trouble, Verdict, WorkerExit


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
    unfit: str = ""  # why its node is to be set aside
    heard: int = 0  # the serial of the newest order that it answers
    fenced: bool = False  # its workers of that round were ended, since the head was not heard

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

    @property
    def news(self) -> tuple[object, ...]:
        """Differs between two orders only if the later one says something new."""
        return (self.term, self.goal, self.round)


Message = Report | Order
