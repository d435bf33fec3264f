"""Values of Slurm's options on the command line of `hpclaunch sbatch`: one function per type.

Each raises ArgumentTypeError for a wrong word, and returns a value that can be written into a job
script. The types of the launcher's own options are in `values.py`.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

from hpclaunch.core.protocol.model import END_SIGNALS, FORWARDED

from .values import number

MOST_HOURS = 1_000_000  # a century


def word(text: str) -> str:
    """Check the name of an account or a partition."""
    if not re.fullmatch(r"[\w.,+@:-]+", text):
        raise ArgumentTypeError(f"{text!r} is not a name")
    return text


def gpus(text: str) -> tuple[str, int]:
    """Parse [TYPE:]N."""
    # Types of MIG instances, such as 1g.10gb, begin with a digit.
    found = re.fullmatch(r"(?:([0-9]*[A-Za-z][\w.-]*):)?([1-9][0-9]*)", text)
    if not found:
        raise ArgumentTypeError(f"{text!r} is not a number of GPUs, such as 4 or a100:4")
    return found[1] or "", int(found[2])


def limit(text: str) -> str:
    """Check a time limit, in any of Slurm's formats."""
    if not re.fullmatch(r"[0-9]+(:[0-9]{1,2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}", text):
        raise ArgumentTypeError(
            f"{text!r} is not a time limit: minutes, minutes:seconds, hours:minutes:seconds, "
            "days-hours, days-hours:minutes or days-hours:minutes:seconds"
        )
    return text


def seconds(limit: str) -> int:
    """Return the seconds of a time limit. 0 means no limit."""
    days, dash, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # hours[:minutes[:seconds]]
        hours, minutes, rest_seconds = (*parts, 0, 0)[:3]
    elif len(parts) < 3:  # minutes[:seconds]
        hours, (minutes, rest_seconds) = 0, (*parts, 0)[:2]
    else:
        hours, minutes, rest_seconds = parts
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest_seconds


def hours(text: str) -> float:
    value = number(text)
    if not 0 < value <= MOST_HOURS:
        raise ArgumentTypeError(f"{text!r} is not a number of hours, such as 72")
    return value


def capacity(text: str) -> str:
    """Check an amount of memory, in Slurm's format."""
    if not re.fullmatch(r"[0-9]+[KMGT]?", text):
        raise ArgumentTypeError(f"{text!r} is not an amount of memory, such as 64G, or 0 for all")
    return text


def warning(text: str) -> str:
    """Check NAME@SECONDS: a signal that agents handle, and its time before the limit."""
    name, _, seconds = text.removeprefix("SIG").partition("@")
    useful = [s.name.removeprefix("SIG") for s in (*FORWARDED, *END_SIGNALS)]
    if text.startswith("B:"):
        raise ArgumentTypeError(f"{text!r} would reach the batch shell only: leave B: out")
    if name not in useful or not seconds.isdecimal() or not 0 < int(seconds) < 65536:
        raise ArgumentTypeError(
            f"{text!r} is not NAME@SECONDS with one of {', '.join(useful)}, such as USR1@120"
        )
    return f"{name}@{seconds}"
