"""The helpers of an agent, and their names in messages."""

from __future__ import annotations

from enum import Enum


class ProcessKind(str, Enum):
    """The purpose of a helper."""

    LOGS = "logs"
    CHECKPOINTS = "checkpoints"
    STAGER = "stager"
    ERRANDS = "errands"
    GPUS = "gpus"
    MPS = "mps"
    METRICS = "metrics"
    FORK_SERVER = "fork server"


NAMES = {
    ProcessKind.LOGS: "process that shows the workers' output",
    ProcessKind.CHECKPOINTS: "process that searches for checkpoints",
    ProcessKind.STAGER: "process that copies checkpoints to storage",
    ProcessKind.ERRANDS: (
        "process that asks Slurm, looks up names, and runs py-spy and the command of --notify"
    ),
    ProcessKind.GPUS: "process that reads NVML",
    ProcessKind.MPS: "process that keeps MPS",
    ProcessKind.METRICS: "process that serves the metrics",
    ProcessKind.FORK_SERVER: "process that starts the workers",
}
