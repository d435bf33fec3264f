"""A short-lived child process for reading a pickle: with limits on time and memory, and the first
to be killed where memory runs short.

The standard library's unpickler is quick, but what it builds has no limit: a few bytes can claim a
memo of gigabytes, or a key whose hash takes years. No thread could be stopped in the midst of that.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hpclaunch.system.shared.prctl import die_with

MOST_SECONDS = 30  # of a CPU
MOST_MEMORY = 4 << 30  # bytes, beyond what this process has
TOO_MUCH = "its pickle takes too much time or memory"

T = TypeVar("T")


class OverLimitError(ValueError):
    """The child was ended by its limits."""


def confined(work: Callable[[], T]) -> T:
    """Return what `work` returns in a child, of types that marshal knows. Raise ValueError and
    OSError as `work` does, and OverLimitError."""
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        status = 1
        try:
            if die_with(parent):
                _limit()
                _write(writing, marshal.dumps(_outcome(work)))
                status = 0
        finally:
            os._exit(status)
    os.close(writing)
    try:
        answer = _read(reading)
    except BaseException:  # Ctrl-C
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(reading)
        _, status = os.waitpid(child, 0)
    if status:
        raise OverLimitError(TOO_MUCH)
    match marshal.loads(answer):  # noqa: S302 - our own child wrote it
        case ("failed", number, text):
            raise OSError(number, text)
        case ("senseless", text):
            raise ValueError(text)
        case (_, result):
            return result  # type: ignore[no-any-return]
    raise AssertionError


def _outcome(work: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        return "done", work()
    except OSError as e:
        return "failed", e.errno, e.strerror
    except ValueError as e:
        return "senseless", str(e)


def _limit() -> None:
    gc.disable()  # nothing is left of this process soon
    with contextlib.suppress(OSError):  # some containers do not let it be changed
        Path("/proc/self/oom_score_adj").write_text("1000")
    used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, used + MOST_MEMORY),
        (resource.RLIMIT_CPU, MOST_SECONDS),  # SIGKILL at the hard limit
        (resource.RLIMIT_CORE, 0),
    ):
        given = [limit for limit in resource.getrlimit(kind) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min([most, *given]),) * 2)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)
