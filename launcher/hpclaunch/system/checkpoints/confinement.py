"""A short-lived child process for reading a pickle, with limits on time and memory.

The standard library's unpickler is quick, but has no limits: a few bytes can claim a memo of
gigabytes, or a key whose hash takes years. A thread that does this cannot be stopped.
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hpclaunch.system.shared.prctl import die_with

# The limits grow with the size of the pickle, up to these.
MOST_SECONDS = 120  # of a CPU
MOST_MEMORY = 4 << 30  # bytes, beyond what this process uses
MOST_ANSWER = 256 << 20  # bytes that this process takes from a child
TOO_MUCH = "its pickle takes too much time or memory"

T = TypeVar("T")

_starting = threading.Lock()  # otherwise a child might inherit another's pipe and keep it open


class UnansweredError(Exception):
    """The child gave no answer; another try may get one. The text says why."""


def confined(size: int, work: Callable[[], T]) -> T:
    """Run `work` in a child, and return its result, of types that marshal knows. `size` is the
    number of bytes that it reads. Raises UnansweredError, and ValueError and OSError of `work`."""
    parent = os.getpid()
    with _starting:
        reading, writing = os.pipe()
        try:
            child = os.fork()
        except OSError:
            os.close(reading)
            os.close(writing)
            raise
        if not child:
            status = 1
            try:
                if die_with(parent):
                    with os.fdopen(writing, "wb") as pipe:
                        pipe.write(_answer(size, work))
                    status = 0
            finally:
                os._exit(status)
        os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
    except BaseException:  # Ctrl-C
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        raise UnansweredError(f"reading its pickle ended with signal {os.WTERMSIG(status)}")
    if status:
        raise UnansweredError(TOO_MUCH)
    match marshal.loads(answer):  # noqa: S302 - our own child wrote it
        case ("failed", number, text):
            raise OSError(number, text)
        case ("senseless", text):
            raise ValueError(text)
        case ("unanswered", text):
            raise UnansweredError(text)
        case (_, result):
            return result  # type: ignore[no-any-return]
    raise AssertionError


def _answer(size: int, work: Callable[[], Any]) -> bytes:
    try:
        _limit(size)
        outcome: tuple[Any, ...]
        try:
            outcome = "done", work()
        except OSError as e:
            outcome = "failed", e.errno, e.strerror
        except ValueError as e:
            outcome = "senseless", str(e)
        data = marshal.dumps(outcome)
        if len(data) <= MOST_ANSWER:
            return data
        why = TOO_MUCH
    except MemoryError:
        why = TOO_MUCH
    except Exception as e:
        why = f"reading its pickle failed: {type(e).__name__}: {e}"
    return marshal.dumps(("unanswered", why))


def _limit(size: int) -> None:
    gc.disable()  # the process ends soon
    used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    memory, seconds = (256 << 20) + 16 * size, 10 + size // (8 << 20)
    for kind, most in (
        (resource.RLIMIT_AS, used + min(memory, MOST_MEMORY)),
        (resource.RLIMIT_CPU, min(seconds, MOST_SECONDS)),  # SIGKILL at the hard limit
        (resource.RLIMIT_CORE, 0),
    ):
        given = [limit for limit in resource.getrlimit(kind) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min([most, *given]),) * 2)
