"""Findings: what the health checks and the doctor have found on a host and its GPUs.

The table of problems has the name of the check and the advice for each problem of a host or a
device. A launch and the doctor use it with different limits: a launch reports what may break the
training, the doctor also what may slow it down. Problems that the driver of a GPU reports are in
`gpu_rules.py` and `xids.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique


class Grade(str, Enum):
    OK = "ok"
    WARN = "warn"  # training may suffer
    FAIL = "FAIL"  # training would break


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check on one host. WARN and FAIL come with `advice`."""

    check: str
    found: str
    grade: Grade = Grade.OK
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.grade.value}: {self.check}: {self.found}"


def failed(findings: Iterable[Finding]) -> bool:
    return any(f.grade is Grade.FAIL for f in findings)


def reason(findings: Iterable[Finding]) -> str:
    return "; ".join(f"{f.check}: {f.found}" for f in findings)


LOGS = "log directory"
CHECKPOINTS = "checkpoint directory"
SHM = "shared memory"
MEMORY = "memory"
LOAD = "load"
CLOCK = "clock"
GPUS = "GPUs"
RESULTS = "results"
COMPUTE = "compute"
MEMORY_SPEED = "memory speed"
LINKS = "links"
RANKS = "ranks"

_ROOM = "make room, or give --log-dir"
_WAITS = "every step of a training waits for the slowest rank"
_NETWORK = (
    "nvidia-smi nvlink --status, ibstat, or ethtool; "
    "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose another network"
)


@unique
class Problem(Enum):
    """A problem: the name of its check, and the advice."""

    LOGS_SILENT = (LOGS, "wait, or give --log-dir")
    LOGS_NOT_WRITABLE = (LOGS, "start the job in a directory that you can write, or give --log-dir")
    LOGS_FULL = (LOGS, _ROOM)
    CHECKPOINTS_FULL = (
        CHECKPOINTS,
        "make room, or give --checkpoint-dir: the script may fail when it saves",
    )
    SHM_SMALL = (
        SHM,
        "give a container --shm-size or --ipc=host; else use DataLoader(num_workers=0)",
    )
    SHM_FULL = (
        SHM,
        "look for files that a job has left (ls -l /dev/shm); a container needs --shm-size",
    )
    MEMORY_SHORT = (MEMORY, "#SBATCH --mem=...; --mem=0 is all of a node")
    LOADED = (LOAD, f"look for other processes on this host (top): {_WAITS}")
    CLOCK_FREE = (
        CLOCK,
        "start a time service on this host (chronyd): times in logs and of files mislead",
    )
    GPU_SILENT = (
        GPUS,
        "report it to the administrator, with nvidia-smi's and dmesg's output",
    )
    # Measured by `hpclaunch doctor --measure`.
    WRONG_RESULTS = (RESULTS, "do not train on it, and report it to the administrator")
    FAILED_COMPUTE = (
        COMPUTE,
        "look for other processes on the device (nvidia-smi), and at the rows GPUs and torch of "
        "hpclaunch doctor",
    )
    SILENT_RANK = (RANKS, "check its host with top, nvidia-smi and dmesg")
    SLOW_COMPUTE = (
        COMPUTE,
        f"look for other processes (top, nvidia-smi) and for throttling: {_WAITS}",
    )
    SLOW_MEMORY = (MEMORY_SPEED, f"look for other processes (top, nvidia-smi): {_WAITS}")
    SLOW_LINK = (LINKS, f"check its rate and errors: {_NETWORK}")
    FAILED_LINK = (LINKS, f"check for a firewall, and whether the link is up: {_NETWORK}")

    def finding(self, found: str, grade: Grade = Grade.WARN) -> Finding:
        check, advice = self.value
        return Finding(check, found, grade, advice)
