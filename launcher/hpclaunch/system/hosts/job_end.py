"""The process that asks Slurm when the job ends: `scontrol` may take long, or hang.

A request is answered with its number, the fields of an EndFound, and when the job began; of several
that have come meanwhile, only the newest is. Without an answer of Slurm's, as in containers that
lack `scontrol`, the end is what SLURM_JOB_END_TIME said when the job began. A step may have a time
limit of its own (`srun --time`): the end is the earlier of both. Standard library only.
"""

from __future__ import annotations

import math
import os
import re
import time
from typing import Any

from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.system.shared.helper import Helper
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.system.shared.scontrol import fields_of, said, shown
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError


class JobEndClient(Helper):
    """`ask`, and then `receive` once it is readable."""

    does = "asks Slurm when the job ends"

    def __init__(self, job: str, step: str, end: str, restarts: str, nodes: str) -> None:
        """`step` is the step of the agents, such as "7.0"; `end` is SLURM_JOB_END_TIME, `restarts`
        is SLURM_RESTART_COUNT; each is "" if there is none.

        `nodes` are those of which to tell whether they are drained.
        """
        me = str(os.getpid())
        super().__init__("hpclaunch.system.hosts.job_end", me, job, step, end, restarts, nodes)


def main(
    fd: str, _blocked: str, agent: str, job: str, step: str, end: str, restarts: str, nodes: str
) -> None:
    if not die_with(int(agent)):
        return
    channel = AgentChannel(fd)
    began: float | None = None
    started, has_answered, step_end = time.time(), False, math.inf
    drained: list[str] = []
    try:
        while True:
            for request in channel.read()[-1:]:
                fields = shown("job", job)
                has_answered = has_answered or bool(fields)
                if step:
                    step_end = end_of_step(shown("step", step), step_end)
                at, found = ask(fields, end, restarts, step_end)
                # If Slurm has answered before, that answer still counts. A job that was over before
                # this process began is an earlier one, whose variables are left in the shell.
                if (has_answered and not fields) or (at is not None and at < started):
                    at = None
                found["draining"] = drained = draining(nodes, drained) if nodes else []
                found["left"] = None if at is None else at - time.time()
                began = began or seconds(fields.get("StartTime", ""))
                channel.tell("end", number=request["number"], found=found, began=began)
    except AgentGoneError:
        pass


def ask(
    fields: dict[str, str], end: str, restarts: str, step_end: float = math.inf
) -> tuple[float | None, dict[str, Any]]:
    """Return when the job ends (None if that is not known), and the other fields of an EndFound.

    `fields` are what Slurm says of the job, {} if it does not answer. `end` counts if they do not
    name the end, unless there is no time limit any more. `restarts` is how often the job was
    started again before this run. `step_end` counts if it is earlier. Times are in seconds since
    1970.
    """
    at = seconds(fields.get("EndTime", ""))
    preempted_at = seconds(fields.get("PreemptTime", ""))
    may_requeue = {"0": False, "1": True}.get(fields.get("Requeue", ""))
    requeued = int(_digits(fields.get("Restarts", "")) or 0) > int(_digits(restarts) or 0)
    again = endless = False
    state = JobState.RUNNING if fields else JobState.UNKNOWN
    if requeued:
        state = JobState.REQUEUED
        at = time.time() + kill_wait()  # Slurm no longer says when such a job ends
    elif fields.get("JobState") == "COMPLETING":
        state = JobState.OVER
    elif preempted_at is not None:
        state = JobState.PREEMPTED
        partition = shown("partition", fields.get("Partition", ""))
        again = bool(may_requeue) and partition.get("PreemptMode") != "CANCEL"
        if at is None:  # of a job without a time limit, Slurm does not show it
            at = preempted_at + float(_digits(partition.get("GraceTime", "")) or 0)
    elif at is None:
        endless = fields.get("TimeLimit") == "UNLIMITED"
        at = float(end) if _digits(end) and not endless else None
    if step_end < (math.inf if at is None else at):
        at, endless = step_end, False
    found = {"state": state, "endless": endless, "may_requeue": may_requeue}
    return at, found | {"requeued_if_killed": again}


def end_of_step(fields: dict[str, str], before: float) -> float:
    """Return when a step reaches its time limit; infinite without one, and `before` if Slurm does
    not answer.
    """
    began, limit = seconds(fields.get("StartTime", "")), fields.get("TimeLimit", "")
    if began is None:
        return before
    found = re.fullmatch(r"(?:(\d{1,9})-)?(\d\d?):(\d\d):(\d\d)", limit)
    if found is None:  # UNLIMITED, or Partition_Limit, which is that of the job
        return math.inf
    days, hours, minutes, rest = (int(number or 0) for number in found.groups())
    return began + ((days * 24 + hours) * 60 + minutes) * 60 + rest


def draining(nodes: str, before: list[str]) -> list[str]:
    """Those of the nodes that no other job gets any more; if Slurm does not answer, as `before`."""
    text = said("node", "-o", nodes)
    if not text:
        return before
    lines = map(fields_of, text.splitlines())
    return [
        node["NodeName"]
        for node in lines
        if "NodeName" in node and "DRAIN" in node.get("State", "")
    ]


def kill_wait() -> float:
    """Seconds between the SIGTERM and the SIGKILL with which Slurm ends a job."""
    found = re.search(r"^KillWait\s*=\s*(\d+)", said("config"), re.MULTILINE)
    return float(found[1]) if found else 0.0


def _digits(text: str) -> str:
    return text if text.isdecimal() else ""


def seconds(text: str) -> float | None:
    """Since 1970. Some versions of Slurm write times in their own way, whatever they are told."""
    if text.isdecimal():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
