"""Asking Slurm for another run of this job, or for none. Both are the last act of a launch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from ..shared.scontrol import shown

LIMIT = 30.0  # seconds; a controller that is busy takes its time


def is_possible() -> bool:
    """Whether this host has the command. Containers often lack it."""
    return shutil.which("scontrol") is not None


def runs_before(environ: Mapping[str, str]) -> int:
    """How often the job has begun before this run."""
    return _number(environ, "SLURM_RESTART_COUNT")


def elements_before(environ: Mapping[str, str]) -> int:
    """How many elements of its array come before this one."""
    first = _number(environ, "SLURM_ARRAY_TASK_MIN")
    return max(0, _number(environ, "SLURM_ARRAY_TASK_ID") - first)


def name_of(job: str, environ: Mapping[str, str]) -> str:
    """How Slurm is to be told of this job: the id of an element may be that of its whole array."""
    array, task = (environ.get(f"SLURM_ARRAY_{n}", "") for n in ("JOB_ID", "TASK_ID"))
    return f"{array}_{task}" if array and task else job


def requeue(job: str, before: int) -> str:
    """Have Slurm end this job and start it again. Returns what is in the way; "" if nothing is.

    `before` is the number of runs before this one: if Slurm knows of more, it was requeued already,
    by the script or by an administrator.
    """
    restarts = shown("job", job).get("Restarts", "")
    if restarts.isdigit() and int(restarts) > before:
        return ""
    return _run("scontrol", "requeue", job)


def cancel_rest(array: str) -> str:
    """Cancel the elements that have not begun. Returns what is in the way; "" if nothing is."""
    return _run("scancel", "--state=PENDING", array)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
    except OSError as e:
        return f"{command[0]}: {e.strerror}"
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {LIMIT:g} s"
    said = " ".join(os.fsdecode(done.stderr).split())
    return "" if not done.returncode else said or f"{command[0]} ended with {done.returncode}"


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else 0
