"""Which run of a job this is: Slurm may have started the job again, or its script was submitted
again. A script that is submitted again is told so by a variable, since it is another job for Slurm.

All runs have the name of the first job, so their logs, reports and rounds are found together.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpclaunch.core.protocol.errors import UsageError

RESUBMITTED = "SLURM_HPCLAUNCH_RUNS"  # "FIRST-JOB RUNS-BEFORE NAME"


def before(environ: Mapping[str, str]) -> int:
    """How many runs come before this one. Raises UsageError."""
    return _before_job(environ)[1] + restarts(environ)


def first_job(job: str, environ: Mapping[str, str]) -> str:
    """The id of the job of the first run; `job` is that of this one."""
    return _before_job(environ)[0] or job


def restarts(environ: Mapping[str, str]) -> int:
    """How often Slurm has started this very job again. Raises UsageError."""
    text = environ.get("SLURM_RESTART_COUNT", "0")
    if not text.isdecimal():
        raise UsageError(f"SLURM_RESTART_COUNT={text} makes no sense: it is no number of restarts")
    return int(text)


def elements_before(environ: Mapping[str, str]) -> int:
    """How many elements of its array come before this one."""
    first = _number(environ.get("SLURM_ARRAY_TASK_MIN", ""))
    return max(0, _number(environ.get("SLURM_ARRAY_TASK_ID", "")) - first)


def told(environ: Mapping[str, str]) -> str:
    """What the script is told if it is submitted again in this run."""
    first = first_job(environ["SLURM_JOB_ID"], environ)
    return f"{first} {before(environ) + 1} {environ.get('SLURM_JOB_NAME', '')}"


def _before_job(environ: Mapping[str, str]) -> tuple[str, int]:
    """The id of the first job, "" for this one, and the number of runs in the jobs before.

    The variable also comes to other jobs that the job's script submits. These have other names.
    """
    first, _, rest = environ.get(RESUBMITTED, "").partition(" ")
    number, _, name = rest.partition(" ")
    if not number.isdecimal() or name != environ.get("SLURM_JOB_NAME", ""):
        return "", 0
    return first, int(number)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
