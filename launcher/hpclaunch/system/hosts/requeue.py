"""Requests to Slurm for another run of this job, or for none: the last act of a launch."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping

from ..shared import slurm_steps
from ..shared.scontrol import fields_of, said, shown

LIMIT = 30.0  # seconds; a controller that is busy takes its time


class RefusedError(Exception):
    """Slurm refuses a request. The text says why."""


def is_possible() -> bool:
    """Return whether this host has `scontrol`. Containers often lack it."""
    return shutil.which("scontrol") is not None


def name_of(job: str, environ: Mapping[str, str]) -> str:
    """Return the job's id, or ARRAY_TASK for the element whose id is that of the whole array.

    Any other job is named by its id: one that an element has submitted has inherited the element's
    variables.
    """
    array, task = (environ.get(f"SLURM_ARRAY_{n}", "") for n in ("JOB_ID", "TASK_ID"))
    return f"{array}_{task}" if array == job and task else job


def requeue(job: str, environ: Mapping[str, str]) -> None:
    """Have Slurm end this job and start it again. Raises RefusedError.

    If Slurm counts more restarts than there were before this run, the job was requeued already, by
    the script, by another launch of the job, or by an administrator.
    """
    if _was_requeued(shown("job", job), environ):
        return
    try:
        _run("scontrol", "requeue", job)
    except RefusedError:
        if not _was_requeued(shown("job", job), environ):  # nobody else has done it
            raise


def _was_requeued(fields: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    restarts = fields.get("Restarts", "")
    return restarts.isdecimal() and int(restarts) > slurm_steps.runs_before(environ)


def release_others(environ: Mapping[str, str]) -> None:
    """Have Slurm send SIGTERM to all agents of this step, so that they leave early."""
    step = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        with contextlib.suppress(RefusedError):  # they leave later by themselves
            _run("scancel", "--signal=TERM", step)


def cancel_rest(array: str) -> None:
    """Cancel the elements of an array that are still pending. Raises RefusedError.

    After an `scancel` of the whole array, Slurm refuses that too, but nothing is pending then.
    """
    try:
        _run("scancel", "--state=PENDING", array)
    except RefusedError:
        elements = [fields_of(line) for line in said("job", "-o", array).splitlines()]
        if not elements or any(element.get("JobState") == "PENDING" for element in elements):
            raise


def _run(*command: str) -> None:
    """Run a command of Slurm. Raises RefusedError."""
    try:
        ended = slurm_steps.run(command, slurm_steps.environment(os.environ), LIMIT)
    except OSError as e:
        raise RefusedError(f"{command[0]}: {e.strerror}") from e
    if ended.complaint:
        raise RefusedError(" ".join(ended.complaint.split()))
