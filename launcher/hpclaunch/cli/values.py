"""Values of options, on the command line or in variables: one function per type.

Each raises ArgumentTypeError for a wrong word. The parser adds the name of the option.
"""

from __future__ import annotations

import math
import os
import re
import signal
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpclaunch.core.ending.table import REQUEUEABLE
from hpclaunch.core.protocol import ranges
from hpclaunch.core.protocol.model import NOTICE_SIGNALS, EndKind
from hpclaunch.core.protocol.timing import LEARNED, LEAST_HANG, LEAST_LOSS

if TYPE_CHECKING:
    from hpclaunch.system.metrics_target import MetricsTarget

WORDS = {"auto": LEARNED, "off": 0.0}  # in place of seconds
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
MEMORY = "/dev/shm"  # noqa: S108 - the parent of the directory of --stage
NPROC_KINDS = ("auto", "gpu", "cpu", "xpu")


def number(text: str | float) -> float:
    """Return a number, or for any other text NaN, which is within no limits."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def integer(least: int, most: float = math.inf) -> Callable[[str], int]:
    wanted = f"{least} or more" if most == math.inf else f"from {least} to {most}"

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text!r} is not a whole number, {wanted}")
        return value

    return convert


def seconds(text: str) -> float:
    """Parse a number of seconds, 0 or more, other than nan and inf."""
    value = number(text)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def ago(text: str) -> float:
    """Parse 90, 90s, 5m, 2h or 7d. Return seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d*)?)([smhd]?)", text, re.ASCII)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a time such as 90s, 5m, 2h or 7d")
    return float(found[1]) * SECONDS[found[2]]


def ranks(text: str) -> frozenset[int]:
    """Parse a list of ranks such as 0,3-5."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", text, re.ASCII):
        raise ArgumentTypeError(f"{text!r} is not a list of ranks such as 0,3-5")
    return ranges.parsed(text)


def expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as e:
        raise ArgumentTypeError(f"{text!r} is not a regular expression: {e}") from None


def loss_timeout(text: str) -> float:
    if (value := seconds(text)) < LEAST_LOSS:
        raise ArgumentTypeError(f"must be at least {LEAST_LOSS:g} s, not {text}")
    return value


def hang_timeout(text: str) -> float:
    """Parse auto, off or seconds into a value of `Timing.hang`."""
    value = _seconds_or_word(text)
    if text not in WORDS and value < LEAST_HANG:
        raise ArgumentTypeError(f"must be at least {LEAST_HANG:g} s, not {text}")
    return value


def notice(text: str) -> float:
    """Parse auto, off or seconds into a value of `Timing.notice`."""
    value = _seconds_or_word(text)
    if text not in WORDS and not value:
        raise ArgumentTypeError(f"{text!r} is neither auto, off nor a number of seconds above 0")
    return value


def _seconds_or_word(text: str) -> float:
    if text in WORDS:
        return WORDS[text]
    try:
        return seconds(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r} is neither auto, off nor a number of seconds") from None


def notice_signal(text: str) -> signal.Signals | None:
    """Parse the name of a signal, with or without SIG."""
    if not text:
        return None
    known = {s.name.removeprefix("SIG"): s for s in NOTICE_SIGNALS}
    if (name := text.removeprefix("SIG")) not in known:
        raise ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
    return known[name]


REQUEUE_CAUSES = {kind.value: kind for kind in REQUEUEABLE}


def endings(text: str) -> tuple[EndKind, ...]:
    """Parse the ends of a job after which there is another run."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in REQUEUE_CAUSES:
            raise ArgumentTypeError(f"{name!r} is none of {', '.join(REQUEUE_CAUSES)}")
    if not names:
        raise ArgumentTypeError(f"no cause named: {', '.join(REQUEUE_CAUSES)}")
    return tuple(dict.fromkeys(REQUEUE_CAUSES[name] for name in names))


def interval(text: str) -> float:
    if not (value := seconds(text)):
        raise ArgumentTypeError("must be more than 0 seconds")
    return value


def flag(text: str) -> bool:
    """Parse a variable that stands for a flag, as torchrun does."""
    try:
        return bool(int(text))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is neither 0 (off) nor 1 (on)") from None


def given(text: str) -> str | None:
    """Return None for an empty value, which counts as no option, as in torchrun."""
    return text or None


def directory(text: str) -> Path | None:
    """Parse a path. A shell leaves the ~ of --log-dir=~/logs to the program."""
    return Path(os.path.expanduser(text)) if text else None


def own_directory(text: str) -> Path | None:
    """Parse a path that is not empty, as it is if a variable is not set."""
    if not text:
        raise ArgumentTypeError("the name of the directory is empty")
    return directory(text)


def metrics(text: str) -> MetricsTarget | None:
    if not text:
        return None
    from hpclaunch.system import metrics_target  # needed only with --metrics

    try:
        return metrics_target.parse(text)
    except ValueError as e:
        raise ArgumentTypeError(str(e)) from None


def patterns(text: str) -> tuple[str, ...]:
    """Parse names, possibly with *, separated by commas."""
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def nodes(text: str) -> tuple[int, int]:
    """Parse N or MIN:MAX."""
    least, _, most = text.partition(":")
    try:
        low, high = int(least), int(most if ":" in text else least)
    except ValueError:
        low = high = 0
    if not 0 < low <= high:
        raise ArgumentTypeError(
            f"{text!r} is not a number of nodes N, nor a range MIN:MAX with 0 < MIN <= MAX"
        )
    return low, high


def nproc(text: str) -> str:
    """Check a number of workers, or a word whose meaning depends on the node."""
    if text in NPROC_KINDS:
        return text
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count <= 0:
        raise ArgumentTypeError(
            f"{text!r} is not a number of workers above 0, nor one of {', '.join(NPROC_KINDS)}"
        )
    return str(count)


def signals(text: str) -> tuple[signal.Signals, ...]:
    return tuple(_signal(name.strip()) for name in text.split(","))


def _signal(name: str) -> signal.Signals:
    if name not in signal.Signals.__members__:
        raise ArgumentTypeError(
            f"{name!r} is no signal: write names separated by commas, as in SIGTERM,SIGUSR1"
        )
    found = signal.Signals[name]
    if found in (signal.SIGKILL, signal.SIGSTOP):
        raise ArgumentTypeError(f"no process can handle {name}: omit it")
    if found in (signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        raise ArgumentTypeError(f"{name} concerns only a single process: omit it")
    return found


def rdzv_conf(text: str) -> dict[str, str] | None:
    """Parse KEY=VALUE,KEY=VALUE. A value may contain = but no comma."""
    if not text.strip():
        return None
    pairs = [[part.strip() for part in pair.partition("=")] for pair in text.split(",")]
    if any(not key or not value for key, _, value in pairs):
        raise ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE,KEY=VALUE")
    return {key: value for key, _, value in pairs}


def threads(text: str) -> str:
    """Parse auto, or a percentage of a GPU."""
    if text == "auto":
        return text
    value = number(text.removesuffix("%"))
    if not 0 < value <= 100:
        raise ArgumentTypeError(f"{text!r} is neither auto nor a percentage above 0, up to 100")
    return f"{value:g}"


def memory(text: str) -> str | None:
    """Parse a whole number of megabytes or gigabytes, as MPS takes it."""
    if not text:
        return None
    word = text.upper().removesuffix("B")
    amount, unit = word[:-1], word[-1:]
    if not (amount.isascii() and amount.isdecimal() and int(amount) and unit in "MG"):
        raise ArgumentTypeError(f"{text!r} is not an amount of memory, such as 512M or 4G")
    return f"{int(amount)}{unit}"


def modules(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ArgumentTypeError(f"{text!r} is not a list of modules")
    return names
