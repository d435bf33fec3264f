"""Errands that an agent leaves to a helper, since they may take long or hang, and their answers.

`agent/errands.py` numbers and sends them; `agent/errand_service.py` runs them. An answer has the
number of its errand.
"""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

from hpclaunch.worker.messages import Kinds, Message, by_op


class FindJobEnd(Message):
    """Find out when Slurm ends the job. Answered by JobEndFound."""

    limit = 120.0  # seconds; more than `scontrol` may take for all of its answers
    job: str
    step: str  # of the agents, such as "7.0"; "" outside of one
    end: str  # SLURM_JOB_END_TIME, or ""
    restarts: str  # SLURM_RESTART_COUNT, or ""
    nodes: str  # check which of these are drained; "" for none
    since: float  # seconds since 1970; a job that had ended by then is an earlier one
    before: JobEndFound | None = None  # the last answer; a part of it counts if Slurm is silent
    number: int = 0


class JobEndFound(Message):
    """The end of a job: the fields of an EndFound."""

    number: int
    left: float | None
    state: str  # the value of a JobState
    may_requeue: bool | None
    requeued_if_killed: bool
    draining: tuple[str, ...]
    endless: bool
    began: float | None  # when the job began, in seconds since 1970
    has_answered: bool  # Slurm has answered at least once
    restarts: int  # how often the job was started again before this run
    step_end: float  # when the step reaches its own time limit, in seconds since 1970; or infinite


class Resolve(Message):
    """Look up the addresses of a node. Answered by Resolved; after a pause if there are none."""

    limit = 300.0  # seconds; resolvers have time-outs of their own
    host: str
    number: int = 0


class Resolved(Message):
    number: int
    addresses: tuple[str, ...]  # none if the name is unknown


class Explain(Message):
    """Find out why the head on this host is silent. Answered by Explained."""

    limit = 30.0
    host: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    number: int = 0


class Explained(Message):
    number: int
    text: str


class ReadStacks(Message):
    """Have py-spy read the native stacks of processes. Answered by Stacks."""

    limit = 3.0  # seconds; py-spy may read from the file system on which the workers hang
    py_spy: str
    pids: tuple[int, ...]  # in this order, if the time is not enough for all
    until: float  # monotonic time
    number: int = 0


class Stacks(Message):
    number: int
    texts: tuple[str, ...]  # for each pid; "" where the time was over


class AskMps(Message):
    """Ask an MPS daemon that is not ours whether workers can use it. Answered by MpsAnswered."""

    limit = 30.0  # seconds; enough to start the process and wait for two answers
    control: str  # the path of nvidia-cuda-mps-control
    pipes: str  # the daemon's directory
    number: int = 0


class MpsAnswered(Message):
    number: int
    foreign: str  # the pipe directory of a daemon that can be used, or ""
    refused: str  # why it is not used; "" if it can be used, or does not answer


class Notify(Message):
    """Run the user's command with an event on its standard input. Answered by Notified."""

    limit = 60.0  # seconds; longer than the command may take before it is killed
    command: str
    event: dict[str, Any]
    number: int = 0


class Notified(Message):
    number: int
    why: str  # what was wrong; "" if nothing


class Failed(Message):
    """The answer of an errand that has raised an exception."""

    number: int


Errand: TypeAlias = FindJobEnd | Resolve | Explain | ReadStacks | AskMps | Notify
Answer: TypeAlias = JobEndFound | Resolved | Explained | Stacks | MpsAnswered | Notified
ERRANDS: Kinds[Errand] = by_op(get_args(Errand))
ANSWERS: Kinds[Answer | Failed] = by_op([*get_args(Answer), Failed])
