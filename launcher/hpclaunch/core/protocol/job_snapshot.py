"""A snapshot: a job at one moment, as its head knows it.

Times are seconds before the snapshot, except `end`: seconds after it.
"""

from __future__ import annotations

from enum import Enum

from .gpu_use import GpuUse
from .model import RankVitals
from .stages import Stage
from .values import value

FORMAT = 1  # of what `status --json` prints


class AgentState(str, Enum):
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
    why: str = ""  # why it is lost or cordoned
    heard: float | None = None  # its last message; None for the head, and before the first one
    first_rank: int = 0
    ranks: int = 0  # their number; 0 outside of a round
    steps: tuple[int, ...] = ()  # of each rank, or one number if all are equal
    still: float = 0.0  # time without a sign of life; CPU time does not count
    hang: float = 0.0  # the value of `still` that means a hang; 0: none does
    doing: str = ""  # a name of `Doing`; "" if not known
    workers: tuple[RankVitals, ...] = ()  # () until the agent has reported
    gpus: tuple[GpuUse, ...] = ()
    gpus_of: tuple[tuple[int, ...], ...] = ()  # for each worker the positions of its GPUs in `gpus`

    @property
    def step(self) -> int:
        """The furthest step of its ranks by the script's own count; 0 if that is not known."""
        return max((worker.step for worker in self.workers), default=0)

    @property
    def made(self) -> int:
        """The number of steps of its furthest rank in this round."""
        return max((*(worker.steps for worker in self.workers), *self.steps), default=0)


@value(frozen=True)
class CheckpointSnapshot:
    """The newest complete checkpoint that is known."""

    path: str
    step: int | None
    size: int  # bytes
    age: float | None
    # With --stage, the newest one that was copied to storage; "" if none was
    stored: str | None = None


@value(frozen=True)
class PastRound:
    """A round that ended early, and why."""

    round: int
    ended: float
    ranks: int  # 0 if not known, because another head led the round
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
    fewest: int  # the fewest nodes of a round
    most: int
    restarts: int  # of the whole launch
    max_restarts: int  # without a new checkpoint
    agents: tuple[AgentSnapshot, ...]  # in Slurm's order
    checkpoint: CheckpointSnapshot | None = None
    pace: float | None = None  # seconds for a step, over the last minute
    straggler: str = ""  # the rank or host that the others wait for
    straggler_host: str = ""
    end: float | None = None  # when Slurm ends the job; None if not known
    is_preempted: bool = False
    notice: str = ""  # the notice of the end or a signal: "offered" or "given", and its step
    is_notice_given: bool = False
    past: tuple[PastRound, ...] = ()  # the newest last
    verdict: str = ""  # the reason for the end of the job
    code: int | None = None  # its exit code
    is_flushing: bool = False  # it ends once all that was saved in memory is on storage
    goodput: float | None = None  # of the launch so far; None if not known
    spent: int = 0  # restarts since the last new checkpoint
    # Nothing that a viewer asks for is pending: the vitals of all agents, the newest checkpoint.
    is_complete: bool = True

    @property
    def running(self) -> tuple[AgentSnapshot, ...]:
        """The agents with ranks."""
        return tuple(agent for agent in self.agents if agent.ranks)

    @property
    def ranks(self) -> int:
        return sum(agent.ranks for agent in self.agents)

    @property
    def step(self) -> int:
        """The furthest step by the script's own count; 0 if it does not report one."""
        return max((agent.step for agent in self.running), default=0)

    @property
    def steps(self) -> int:
        """The number of steps of the furthest rank in this round."""
        return max((agent.made for agent in self.running), default=0)

    @property
    def still(self) -> float:
        """The time without a sign of life of any worker; 0 if all have ended."""
        return min((agent.still for agent in self._unfinished), default=0.0)

    @property
    def hang_limit(self) -> float | None:
        """The value of `still` that means a hang; None if none does."""
        return min((agent.hang for agent in self._unfinished if agent.hang), default=None)

    @property
    def _unfinished(self) -> tuple[AgentSnapshot, ...]:
        """The agents whose workers have not all ended with 0: the others report no progress."""
        return tuple(agent for agent in self.running if agent.state is not AgentState.DONE)


@value(frozen=True)
class NodeGpu:
    """A GPU of the agent that made the snapshot."""

    index: int  # NVML's number
    uuid: str
    use: GpuUse


@value(frozen=True)
class LaunchSnapshot:
    """A launch, as one of its agents knows it."""

    name: str  # "<job>.<step>", or "local-<time>-<pid>"
    slurm_id: str  # "" without Slurm
    host: str  # of this agent
    pid: int
    program: str  # the script
    logs: str  # the log directory
    time: float  # Unix time of the snapshot
    age: float  # since this agent was started
    job: JobSnapshot | None  # None: this agent does not lead
    head: str = ""  # the host of the head, if that is another agent; "" if unknown
    old: float | None = None  # the snapshot's age, if it was read from a file: no agent answers
    gpus: tuple[NodeGpu, ...] = ()  # of this agent; () where they are not read
    agent: int = 0  # the index of this agent
    format: int = FORMAT
