"""Helpers: processes of the agent's own, which speak JSON lines with it over a socket pair.

    python -I -S -X utf8=... -c ... PATHS MODULE FD BLOCKED WORDS...

calls MODULE's main(FD, BLOCKED, *WORDS). The process is isolated from the user's environment. It
decodes file names as the agent does, and imports this package and libraries from PATHS. FD is the
process's end of the socket, BLOCKED the signals that the user had blocked ("12,25"). All signals
are blocked when it begins: a signal that is meant for the agent must not end it.

main gets a lower number for FD: the agent's may be too high for the user's limit of open files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.messages import Message
from hpclaunch.worker.processes import children, descendants

from . import open_file_limit
from .prctl import adopt_orphans

ABANDON_LIMIT = 1.0  # seconds
GONE_LIMIT = 5.0  # seconds to end what a dead helper left behind
AGAIN = 0.01  # seconds between two checks whether that has ended
ROOT = str(Path(__file__).parents[3])  # where this package lies
_PYTHON = (sys.executable, "-I", "-S", "-X", f"utf8={sys.flags.utf8_mode}")
_PROGRAM = (
    "import json, os, sys; sys.path += json.loads(sys.argv[1]); fd = int(sys.argv[3]); "
    "low = os.dup(fd); os.close(fd); "
    "__import__(sys.argv[2], fromlist=['main']).main(str(low), *sys.argv[4:])"
)
_own: set[int] = set()  # the pids of all helpers, and of processes that are spared


class Helper:
    """A helper process, and the agent's end of the socket to it.

    `lost` is True once the process has closed its end. After that, call `is_gone` until it returns
    True, or `abandon` or `end`. `survivors` is set if the process or one below it could not be
    killed.
    """

    has_children = False  # they become ours when it is gone, and are killed
    kind: ClassVar[ProcessKind]

    def __init__(
        self,
        module: str,
        *words: str,
        paths: Iterable[str] = (),
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> None:
        adopt_orphans()  # of the helper, should it be killed
        self._older = children()  # of this process, also from before it became an agent by exec
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._lines = JsonLines(ours)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        own = [json.dumps([ROOT, *paths]), module, str(theirs.fileno()), numbers(mask)]
        try:
            self._process = subprocess.Popen(
                [*_PYTHON, "-c", _PROGRAM, *own, *words],
                pass_fds=[theirs.fileno()],
                stdin=stdin,
                stdout=stdout,
            )
            open_file_limit.restore(self._process.pid)
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        _own.add(self._process.pid)
        self.heard = False  # it has answered
        self._lost_at = math.inf
        self.survivors = False

    @property
    def lost(self) -> bool:
        return self._lost_at < math.inf

    def fileno(self) -> int:
        return self._lines.fileno()

    def send(self, request: Message) -> None:
        with contextlib.suppress(OSError):  # it is gone, as receive() shows
            self._lines.send(request.encoded())

    def send_if_read(self, request: Message) -> None:
        """Send a request that a later one replaces. Leave it out while many requests are unread:
        once the socket is full, sending blocks until the process, which may hang, reads again.
        """
        if not self.lost and self._is_ready(select.POLLOUT, 0.0):
            self.send(request)

    def receive(self) -> list[dict[str, Any]]:
        """Return the replies that are there. Call this when the descriptor is readable."""
        try:
            replies = self._lines.receive()
        except EOFError:
            self._lost_at = time.monotonic()
            _own.discard(self._process.pid)
            return []
        self.heard = True
        return replies

    def is_gone(self) -> bool:
        """Return whether a lost process and all below it have ended, after killing what is left.
        After GONE_LIMIT, set `survivors` and return True.
        """
        left = self._process.poll() is None or _kill(self._orphans())
        self.survivors = left and time.monotonic() >= self._lost_at + GONE_LIMIT
        return self.survivors or not left

    def was_killed(self) -> bool:
        """Return whether the process was killed from outside; call this once it is lost."""
        self._await_exit()
        return self._process.returncode in (None, -signal.SIGKILL)

    def spare(self, pid: int) -> None:
        """Leave alone a process of the helper that outlives it for a moment and ends by itself."""
        _own.add(pid)

    def end(self, limit: float) -> None:
        """Close the socket, which ends the process; after `limit` seconds kill it and all below.
        Give up soon, since it may hang in a driver.
        """
        self._lines.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(limit)
        code = self._process.returncode  # None: it has not ended
        if code is None or (self.has_children and (self.lost or code)):
            self._process.kill()
            self._end_orphans()
        self._leave()

    def abandon(self) -> None:
        """Kill the process and all below it. Give up soon, since it may hang in a driver. A lost
        process first gets ABANDON_LIMIT to end: its exit code shows whether it has failed.
        """
        below = descendants((), self._process.pid) if self.has_children else set()
        if self.lost:
            self._await_exit()
        self._process.kill()
        self._leave()
        limit = time.monotonic() + ABANDON_LIMIT
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ABANDON_LIMIT)
            if self.lost and self.has_children:
                self._end_children(self._orphans, limit)
            elif below:
                self._end_children(lambda: below & self._orphans(), limit)

    def _await_exit(self) -> None:
        """Wait until the lost process has ended, at most until ABANDON_LIMIT after its loss."""
        left = self._lost_at + ABANDON_LIMIT - time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(min(max(0.0, left), ABANDON_LIMIT))

    def _is_ready(self, events: int, limit: float) -> bool:
        """Wait up to `limit` seconds for POLLIN, POLLOUT or either of the socket."""
        poll = select.poll()
        poll.register(self, events)
        return bool(poll.poll(max(0.0, limit) * 1000))

    def _leave(self) -> None:
        self._lines.close()
        _own.discard(self._process.pid)

    def _end_orphans(self) -> None:
        """Kill what is left: the process's children died with it, and theirs were adopted here."""
        try:
            self._process.wait(GONE_LIMIT)
        except subprocess.TimeoutExpired:
            self.survivors = True
        else:
            self._end_children(self._orphans, time.monotonic() + GONE_LIMIT)

    def _orphans(self) -> set[int]:
        return descendants({*_own, *self._older})

    def _end_children(self, find: Callable[[], set[int]], limit: float) -> None:
        """Kill and reap children of ours until none is found or the time `limit` is reached."""
        while (left := _kill(find())) and time.monotonic() < limit:
            time.sleep(AGAIN)
        self.survivors = left


def _kill(pids: Collection[int]) -> bool:
    """Kill these children of ours, and reap those that have ended. Return whether there are any."""
    for pid in pids:
        # One that has gained another user's rights (setuid) cannot be killed.
        with contextlib.suppress(ProcessLookupError, ChildProcessError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
    return bool(pids)


def say_now(text: str, limit: float = 0.0) -> None:
    """Write a message to standard error without the log service, unless that would block for longer
    than `limit` seconds.
    """
    with contextlib.suppress(OSError):
        if select.select([], [2], [], limit)[1]:
            os.write(2, f"hpclaunch: {text}\n".encode(errors="replace"))


def place_of(library: str) -> str:
    """Return the directory in which an installed library lies, for `paths` of a helper."""
    found = find_spec(library)
    assert found is not None, "hpclaunch depends on it, or has used it"
    assert found.origin is not None
    return str(Path(found.origin).parents[1 if found.submodule_search_locations else 0])


def numbers(signums: Iterable[int]) -> str:
    return ",".join(str(int(s)) for s in signums)
