"""What the command line and the environment settle before an agent begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .core.model import Job, Trouble
from .system.logs import LogDirectory
from .system.slurm import Allocation


@dataclass(frozen=True, slots=True)
class Config:
    """One agent's settings; all but `allocation`, `nproc` and `trouble` are those of the job."""

    allocation: Allocation
    job: Job
    nproc: int
    python: str
    script: tuple[str, ...]  # the script and its arguments, verbatim
    checkpoint_dir: Path | None
    resume_with: tuple[str, ...]  # arguments to append, with {checkpoint} in them
    logs: LogDirectory | None  # None only with trouble
    trouble: Trouble | None  # why this agent cannot take part; the head tells the user
    notes: tuple[str, ...] = ()  # what the head says at the start
