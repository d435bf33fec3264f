"""The process that asks Slurm when the job ends: `scontrol` may take long, or hang.

Each request is answered with {"left": SECONDS or null, "preempted": BOOL}. Without an answer of
Slurm's, as in containers that lack `scontrol`, the end is what SLURM_JOB_END_TIME said when the job
began. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import time

from hpclaunch.system.shared.helper import Helper
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError

LIMIT = 10.0  # seconds for one question


class JobEndClient(Helper):
    """`ask`, and then `receive` once it is readable."""

    def __init__(self, job: str, end: str) -> None:
        """`end` is SLURM_JOB_END_TIME, "" without it."""
        super().__init__("hpclaunch.system.hosts.job_end", str(os.getpid()), job, end)


def main(fd: str, _blocked: str, agent: str, job: str, end: str) -> None:
    if not die_with(int(agent)):
        return
    channel = AgentChannel(fd)
    try:
        while True:
            for request in channel.read():
                found, preempted = ask(job)
                at = found or (float(end) if end.isdigit() else None)
                left = None if at is None else at - time.time()
                channel.tell("end", left=left, preempted=preempted, number=request["number"])
    except AgentGoneError:
        pass


def ask(job: str) -> tuple[float | None, bool]:
    """(when the job ends, whether it is preempted); the time is None if Slurm does not say."""
    fields = shown("job", job)
    at = seconds(fields.get("EndTime", ""))
    preempted = seconds(fields.get("PreemptTime", ""))
    if preempted is None or at is not None:
        return at, preempted is not None
    # Of a job without a time limit, Slurm does not show when it ends.
    grace = shown("partition", fields.get("Partition", "")).get("GraceTime", "")
    return preempted + float(grace if grace.isdigit() else 0), True


def shown(kind: str, name: str) -> dict[str, str]:
    """What `scontrol show` says of it; {} if it does not answer."""
    command = ["scontrol", "show", kind, "-o", name]
    env = os.environ | {"SLURM_TIME_FORMAT": "%s"}  # of times: seconds since 1970
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT, env=env, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return fields_of(done.stdout.decode(errors="replace"))


def fields_of(text: str) -> dict[str, str]:
    """Of the first line: a heterogeneous job has several."""
    pairs = (word.partition("=") for word in text.partition("\n")[0].split())
    return {name: value for name, _, value in pairs}


def seconds(text: str) -> float | None:
    """Since 1970. Some versions of Slurm write times in their own way, whatever they are told."""
    if text.isdigit():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
