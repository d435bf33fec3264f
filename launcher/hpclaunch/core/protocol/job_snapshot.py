"""A job at one moment, as its head knows it. It is frozen: whoever has one may show it at leisure.

All times are seconds before, or until, the moment of the snapshot.
"""

from __future__ import annotations

from enum import Enum

from .gpu_use import GpuUse
from .model import RankVitals
from .stages import Stage
from .values import value

FORMAT = 1  # of what `status --json` prints


class AgentState(str, Enum):
    """What a node's agent does in the job."""

    ABSENT = "not here yet"
    PREPARING = "preparing"
    READY = "ready"  # for the next round
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"  # its workers have ended with 0
    SPARE = "spare"
    CORDONED = "cordoned"
    LOST = "lost"
    LEFT = "left"  # it has the verdict


@value(frozen=True)
class AgentSnapshot:
    """One agent, with its workers in the current round."""

    index: int
    node: int
    host: str
    state: AgentState
    why: str = ""  # it is lost or cordoned
    heard: float | None = None  # its last message; None for the head itself, and if there is none
    first_rank: int = 0
    ranks: int = 0  # how many; 0 outside of a round
    steps: tuple[int, ...] = ()  # of each rank, or one number if all have made as many
    still: float = 0.0  # for so long no worker has done anything but use the CPU
    hang: float = 0.0  # so much stillness means a hang; 0: none does
    doing: str = ""  # what its workers do, of `Doing`; "" if that is not known
    workers: tuple[RankVitals, ...] = ()  # () until the agent has told
    gpus: tuple[GpuUse, ...] = ()
    gpus_of: tuple[tuple[int, ...], ...] = ()  # worker by worker: their positions in `gpus`


@value(frozen=True)
class CheckpointSnapshot:
    """The newest complete checkpoint that the head has heard of."""

    path: str
    step: int | None
    size: int  # bytes
    age: float | None


@value(frozen=True)
class PastRound:
    """A round that has ended, and why. The newest faults are kept, not all."""

    round: int
    ended: float
    ranks: int  # 0 if that is not known: the round was another head's
    why: str
    is_fault: bool  # it counts as a restart


@value(frozen=True)
class JobSnapshot:
    stage: Stage
    entered: float  # when this stage began
    head: str  # the host of the agent that leads
    term: int
    round: int
    begun: float | None  # when the round began; None outside of one
    resumed: str  # the checkpoint that the round resumed from
    fewest: int  # nodes of a round
    most: int
    restarts: int
    max_restarts: int
    agents: tuple[AgentSnapshot, ...]  # in Slurm's order
    checkpoint: CheckpointSnapshot | None = None
    pace: float | None = None  # seconds for a step, over the last minute
    straggler: str = ""  # whom the others wait for
    straggler_host: str = ""
    end: float | None = None  # when Slurm ends the job; None if that is not known
    is_preempted: bool = False
    notice: str = ""  # of the end, or of a signal: "offered" or "given", and before which step
    is_notice_given: bool = False
    past: tuple[PastRound, ...] = ()  # the newest last
    verdict: str = ""  # how the job ends
    code: int | None = None  # its exit code
    goodput: float | None = None  # of the launch so far; None if that is not known
    is_complete: bool = True  # all agents have told what somebody who looks asks for

    @property
    def running(self) -> tuple[AgentSnapshot, ...]:
        """The agents that have ranks."""
        return tuple(agent for agent in self.agents if agent.ranks)

    @property
    def ranks(self) -> int:
        return sum(agent.ranks for agent in self.agents)

    @property
    def step(self) -> int:
        """Of the rank that is furthest, as the script counts; 0 if it does not say."""
        return max((step_of(agent) for agent in self.running), default=0)

    @property
    def steps(self) -> int:
        """Of the rank that has made the most in this round."""
        return max((steps_of(agent) for agent in self.running), default=0)


def step_of(agent: AgentSnapshot) -> int:
    """The same of an agent's ranks."""
    return max((worker.step for worker in agent.workers), default=0)


def steps_of(agent: AgentSnapshot) -> int:
    """The same of an agent's ranks."""
    return max((*(worker.steps for worker in agent.workers), *agent.steps), default=0)


@value(frozen=True)
class NodeGpu:
    """A GPU of the agent that tells."""

    index: int  # NVML's number
    uuid: str
    use: GpuUse


@value(frozen=True)
class LaunchSnapshot:
    """A launch, as one of its agents tells of it."""

    name: str  # "<job>.<step>", or "local-<time>-<pid>"
    slurm_id: str  # "" without Slurm
    host: str  # of the agent that tells
    pid: int
    program: str  # the script
    logs: str  # the log directory
    time: float  # Unix time of the snapshot
    age: float  # since the agent that tells was started
    job: JobSnapshot | None  # None: the agent does not lead
    head: str = ""  # in that case the host of the one that does
    old: float | None = None  # seconds since then, if it is from a file and nobody answers
    gpus: tuple[NodeGpu, ...] = ()  # of the agent that tells; () where nobody reads them
    format: int = FORMAT
