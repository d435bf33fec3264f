"""The settings of an agent, from the command line and the environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.placement.binding import Mode
from ..core.placement.devices import Gpu
from ..core.placement.streams import Streams
from ..core.protocol.model import Allocation, Job, Place, Trouble
from ..core.protocol.node_facts import ColdStart, LaunchNote
from ..core.protocol.values import value
from ..system.logs.log_directory import LogDirectory

if TYPE_CHECKING:
    from ..core.health.findings import Finding
    from ..system.metrics_target import MetricsTarget


@value(frozen=True)
class Start:
    """Start of workers: warm, forked from the template, or cold, as new interpreters."""

    warm: bool
    ahead: bool  # import torch in the template now, even if only the store needs it
    modules: tuple[str, ...] = ()  # further modules for the template to import
    learn: bool = False  # workers report what they import, for the templates of later rounds
    # The imports found in the text of the script, as steps of `_hpclaunch_lesson.py`. In
    # ["from", module, name], the name may be that of a submodule.
    steps: tuple[tuple[str, str, str], ...] = ()


@value(frozen=True)
class Checkpoints:
    """The directory of checkpoints, and the user's options for them."""

    where: str  # a directory, or a pattern of directories
    exclude: tuple[str, ...]  # patterns of names
    complete: str  # pattern of the file that marks a directory as complete; "": as in its format
    verify: str  # "auto", "full", "structure" or "off"
    stage: str = ""  # the base of the staging directory; "": the script saves in `where`
    aliases: tuple[str, ...] = ()  # with --stage: paths of `where` through other links


@value(frozen=True)
class Config:
    """One agent's settings.

    `allocation`, `nproc`, `trouble`, the CPUs and the GPUs belong to its task. All else is the same
    for the whole job.
    """

    allocation: Allocation
    job: Job
    nproc: int
    command: tuple[str, ...]  # of a worker: program, script and arguments
    arguments: tuple[str, ...]  # of the script: the last words of `command`
    stdin: str  # a file for the workers' standard input; "": they inherit the agent's
    python: str  # the workers' interpreter
    start: Start
    run_id: str  # TORCHELASTIC_RUN_ID
    role: str
    signals: str  # TORCHELASTIC_SIGNALS_TO_HANDLE
    handled: tuple[int, ...]  # the signals among these that an agent does not always handle
    as_tasks: bool  # set Slurm's variables as if each worker were a task
    cpus: tuple[int, ...]  # that this task may use
    cpus_are_shared: bool  # all tasks on this node may use the same CPUs
    bind: Mode  # how the CPUs are divided among the workers
    threads: int  # OMP_NUM_THREADS where several workers share the CPUs; 0: OpenMP decides
    gpus: tuple[Gpu, ...]  # that this task may use; AMD's only if the number of GPUs matters
    broken: tuple[Finding, ...]  # GPUs that did not answer when they were counted
    selector: str  # the variable that selects GPUs
    virtual_local_rank: bool
    mps: tuple[str, str, str]  # the fields of Settings in core/placement/mps_shares.py
    shared_backend: str  # replaces nccl where workers share a GPU; "": the script's own
    local_addr: str  # the address at which others reach this node; "": from the route to the head
    checkpoints: Checkpoints | None
    resume_with: tuple[str, ...]  # arguments to add, in which {checkpoint} stands for the path
    logs: LogDirectory | None  # None only with trouble
    anew: bool  # the first agent of this launch was killed and started again
    progress: bool  # the workers report their progress
    streams: Streams  # the part of the workers' output that the console shows
    as_torchrun: bool  # started in place of torchrun: every failure has exit code 1
    metrics: MetricsTarget | None  # where monitoring systems find the metrics
    notify: str  # a shell command to run for each event; "": none
    trouble: Trouble | None  # why this agent cannot take part; the head shows it
    notes: tuple[LaunchNote | ColdStart, ...] = ()  # recorded before the workers start

    @property
    def place(self) -> Place:
        """This agent's place, or a stand-in for it until the head gives it one."""
        return self.job.places[self.allocation.index]

    @property
    def host(self) -> str:
        return self.place.host

    @property
    def directory(self) -> Path | None:
        """The log directory of the launch."""
        return None if self.logs is None else self.logs.path
