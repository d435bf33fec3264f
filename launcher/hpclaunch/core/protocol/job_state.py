"""The state of a job. Helpers without site-packages import this module."""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """The state of the job according to Slurm."""

    UNKNOWN = "unknown"  # Slurm does not answer
    RUNNING = "running"
    PREEMPTED = "preempted"  # it ends soon, to make room for another job
    REQUEUED = "requeued"  # it ends soon: somebody has asked Slurm to start it again
    OVER = "over"  # it is being ended: it was cancelled, or has reached its time limit
