"""What the command line and the environment determine before an agent begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.placement.binding import Mode
from ..core.placement.devices import Gpu
from ..core.placement.streams import Streams
from ..core.protocol.model import Allocation, Job, Trouble
from ..core.protocol.node_facts import ColdStart, LaunchNote
from ..core.protocol.values import value
from ..system.logs.log_directory import LogDirectory

if TYPE_CHECKING:
    from ..core.health.findings import Finding
    from ..system.metrics_target import MetricsTarget


@value(frozen=True)
class Start:
    """Where workers come from: warm from the template, cold as fresh interpreters."""

    warm: bool
    ahead: bool  # the template imports torch now, even if it may only serve the store
    modules: tuple[str, ...] = ()  # what it imports beside torch
    learn: bool = False  # the workers tell what they import, for the templates of later rounds
    # What the script imports, as far as its text shows: steps as in `_hpclaunch_lesson.py`, and
    # ["from", module, name]: a package may import the name's module only then.
    steps: tuple[tuple[str, str, str], ...] = ()


@value(frozen=True)
class Checkpoints:
    """Where checkpoints are saved, and what the user has said about them."""

    where: str  # a directory, or a pattern of directories
    exclude: tuple[str, ...]  # patterns of names
    complete: str  # pattern of the file that seals a directory; "": as the format has it
    verify: str  # "auto", "full", "structure" or "off"


@value(frozen=True)
class Config:
    """One agent's settings.

    `allocation`, `nproc`, the CPUs, the GPUs and `trouble` are those of its task; the rest is the
    same for the whole job.
    """

    allocation: Allocation
    job: Job
    nproc: int
    command: tuple[str, ...]  # what a worker runs: program, script and arguments
    stdin: str  # the file that each worker opens as its standard input; "": it inherits the agent's
    python: str  # the workers' interpreter
    start: Start
    run_id: str  # TORCHELASTIC_RUN_ID
    role: str
    signals: str  # TORCHELASTIC_SIGNALS_TO_HANDLE
    handled: tuple[int, ...]  # those of them that an agent does not handle anyway
    as_tasks: bool  # whether Slurm's variables are to describe the worker
    cpus: tuple[int, ...]  # those that this task may use
    cpus_are_shared: bool  # they are those of every task on this node
    bind: Mode  # how they are given to the workers
    threads: int  # OMP_NUM_THREADS for several workers, 0 for one that is alone
    gpus: tuple[Gpu, ...]  # those that this task may use, as far as that matters
    broken: tuple[Finding, ...]  # what did not answer when they were counted
    cuda: tuple[int, int]  # the newest that their driver can run
    selector: str  # the variable that chooses among them
    virtual_local_rank: bool
    mps: tuple[
        str, str, str
    ]  # its mode, threads and memory: Settings in core/placement/mps_shares.py
    shared_backend: str  # replaces nccl where workers share a GPU; "": whatever the script says
    local_addr: str  # the address to be reached at; "": from the route to the head
    checkpoints: Checkpoints | None
    resume_with: tuple[str, ...]  # arguments to append, with {checkpoint} in them
    logs: LogDirectory | None  # None only with trouble
    anew: bool  # the first agent of this launch was started before, and was killed
    progress: bool  # the workers tell how far they have come
    streams: Streams  # which of the workers' output the console shows
    as_torchrun: bool  # started in its place: every failure is exit code 1
    metrics: MetricsTarget | None  # where a monitoring system finds them
    metrics_ranks: bool  # also those of each rank
    notify: str  # a line for a shell, which is told of events; "": none
    trouble: Trouble | None  # why this agent cannot take part; the head tells the user
    notes: tuple[LaunchNote | ColdStart, ...] = ()  # recorded before the workers start
