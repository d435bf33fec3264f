"""The number of this run of a job: Slurm may have started the job again."""

from __future__ import annotations

from collections.abc import Mapping

from hpclaunch.core.protocol.errors import UsageError


def before(environ: Mapping[str, str]) -> int:
    """Return how often Slurm has started this job again. Raises UsageError."""
    text = environ.get("SLURM_RESTART_COUNT", "0")
    if not text.isdecimal():
        raise UsageError(f"SLURM_RESTART_COUNT={text} makes no sense: it is no number of restarts")
    return int(text)


def elements_before(environ: Mapping[str, str]) -> int:
    """Return how far the index of this element of an array is from the lowest one."""
    first = _number(environ.get("SLURM_ARRAY_TASK_MIN", ""))
    return max(0, _number(environ.get("SLURM_ARRAY_TASK_ID", "")) - first)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
