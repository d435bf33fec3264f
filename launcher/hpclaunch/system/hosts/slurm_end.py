"""The end of a job according to `scontrol`, which may take long, or hang: only errands use this.

If Slurm never answers, as in containers that lack `scontrol`, the end is SLURM_JOB_END_TIME, as it
was when the job began. If the step has a time limit of its own (`srun --time`), the earlier end
counts. Standard library only.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import Any

from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.system.shared.errands import FindJobEnd, JobEndFound
from hpclaunch.system.shared.scontrol import fields_of, said, shown


def find(asked: FindJobEnd) -> JobEndFound:
    """Run the errand FindJobEnd."""
    fields = shown("job", asked.job)
    before = asked.before
    has_answered = bool(fields) or (before is not None and before.has_answered)
    restarts = int(_digits(asked.restarts) or 0) if before is None else before.restarts
    if now := _digits(fields.get("Restarts", "")):
        # A job that was not started again, but submitted from within one that was, has inherited
        # the variable: it is too high. Slurm's own number only grows.
        restarts = min(restarts, int(now))
    step_end = math.inf if before is None else before.step_end
    if asked.step:
        step_end = end_of_step(shown("step", asked.step), step_end)
    known = () if before is None else before.draining
    drained = draining(asked.nodes, known) if asked.nodes else ()
    at, found = ask(fields, asked.end, restarts, step_end)
    # If Slurm does not answer now, its last answer still counts. An end before the launch is that
    # of an earlier job, whose variables are left in the shell.
    if (has_answered and not fields) or (at is not None and at < asked.since):
        at = None
    return JobEndFound(
        number=asked.number,
        left=None if at is None else at - time.time(),  # now that all questions are answered
        draining=drained,
        began=seconds(fields.get("StartTime", "")),
        has_answered=has_answered,
        restarts=restarts,
        step_end=step_end,
        **found,
    )


def ask(
    fields: dict[str, str], end: str, restarts: int, step_end: float = math.inf
) -> tuple[float | None, dict[str, Any]]:
    """Return when the job ends (None if that is not known), and further fields of a JobEndFound.

    `fields` describe the job; {} if Slurm does not answer. If they lack its end, and it has a time
    limit, `end` counts. `restarts` is how often the job was started again before this run.
    `step_end` counts if it is earlier. Times are in seconds since 1970.
    """
    at = seconds(fields.get("EndTime", ""))
    preempted_at = seconds(fields.get("PreemptTime", ""))
    may_requeue = {"0": False, "1": True}.get(fields.get("Requeue", ""))
    requeued = int(_digits(fields.get("Restarts", "")) or 0) > restarts
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
        if at is None:  # Slurm does not show it for a job without a time limit
            at = preempted_at + float(_digits(partition.get("GraceTime", "")) or 0)
    elif at is None:
        endless = fields.get("TimeLimit") == "UNLIMITED"
        at = float(end) if _digits(end) and not endless else None
    if step_end < (math.inf if at is None else at):
        at, endless = step_end, False
    found = {"state": state.value, "endless": endless, "may_requeue": may_requeue}
    return at, found | {"requeued_if_killed": again}


def end_of_step(fields: dict[str, str], before: float) -> float:
    """Return when a step reaches its time limit, or infinity; `before` if Slurm does not answer."""
    began, limit = seconds(fields.get("StartTime", "")), fields.get("TimeLimit", "")
    if began is None:
        return before
    found = re.fullmatch(r"(?:(\d{1,9})-)?(\d\d?):(\d\d):(\d\d)", limit)
    if found is None:  # UNLIMITED; or Partition_Limit, which the job's end respects
        return math.inf
    days, hours, minutes, rest = (int(number or 0) for number in found.groups())
    return began + ((days * 24 + hours) * 60 + minutes) * 60 + rest


def draining(nodes: str, before: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that get no further job; `before` if Slurm does not answer."""
    text = said("node", "-o", nodes)
    if not text:
        return tuple(before)
    lines = map(fields_of, text.splitlines())
    return tuple(
        node["NodeName"]
        for node in lines
        if "NodeName" in node and "DRAIN" in node.get("State", "")
    )


def kill_wait() -> float:
    """Return the seconds between the SIGTERM and the SIGKILL with which Slurm ends a job."""
    found = re.search(r"^KillWait\s*=\s*(\d+)", said("config"), re.MULTILINE)
    return float(found[1]) if found else 0.0


def _digits(text: str) -> str:
    return text if text.isdecimal() else ""


def seconds(text: str) -> float | None:
    """Return a time in seconds since 1970. Some versions of Slurm write times in their own format,
    whatever SLURM_TIME_FORMAT is.
    """
    if text.isdecimal():
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
