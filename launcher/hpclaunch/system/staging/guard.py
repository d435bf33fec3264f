"""The guard: a thread that kills a process whose save would use up all memory. Otherwise the kernel
would kill one, which may be the agent or take all others of the job with it; and Slurm would record
the job as OUT_OF_MEMORY, even if it continues.

A save that only fills the file system in memory (tmpfs) is left alone: it fails by itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection

from hpclaunch.core.protocol.wording import size as written
from hpclaunch.worker.processes import all_pids, signal_all

from .messages import NoRoom
from .room import is_in_memory, least, memory_rooms

PERIOD = 0.1  # seconds between two samples
SHORTEST = 0.01  # the same while memory is about to be used up
SOON = 0.5  # seconds for which memory lasts at this speed; then the processes that save are found
AHEAD = 0.05  # the same; then they are killed
SMALL = 32  # a file below this part of what is kept free is no save
RECENT = 1.0  # seconds since a file that is being saved was written; and since that was found
REST = 2  # times the duration of a search until the next one
BLOCK = 512  # bytes, the unit of st_blocks


class Guard:
    """The guard of a staging directory. Before it kills, it sends NoRoom. `send` may be called by
    any thread.
    """

    def __init__(self, stage: str, send: Callable[[NoRoom], None]) -> None:
        self._stage, self._send = os.path.realpath(stage), send
        self._own = os.path.dirname(self._stage)  # it stays; the script may replace the one in it
        self._saving: list[int] = []  # the processes that save
        self._found_at, self._took = -math.inf, 0.0  # the last search for them, and its duration

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the staging directory was removed
            if is_in_memory(self._own):
                self._watch()

    def _watch(self) -> None:
        at, used, pause = time.monotonic(), self._used(), PERIOD
        while True:
            time.sleep(pause)
            before, since = used, at
            # In this order: after a system call, this thread may have to wait for others (GIL).
            at, used = time.monotonic(), self._used()
            lasts = math.inf
            if used > before:
                lasts = self._check((used - before) / (at - since)) - (time.monotonic() - at)
            pause = max(SHORTEST, min(lasts / 4, PERIOD))

    def _used(self) -> int:
        """Return the bytes in use in the file system."""
        found = os.statvfs(self._own)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def _check(self, speed: float) -> float:
        """Return for how many seconds memory lasts at this speed. If that is too short, kill the
        processes that save.
        """
        if not (rooms := [*memory_rooms()]):
            return math.inf
        left = least(rooms)
        if (lasts := (left.free - left.kept // 2) / speed) < SOON:
            self._search(lasts, left.kept // SMALL)
        if lasts < AHEAD and self._saving:
            why = f"a save did not fit into {left.what}, {written(left.limit)}"
            killed = "the process that saved was killed before the kernel would kill one"
            self._send(NoRoom(f"{why}: {killed}"))
            signal_all(self._saving, signal.SIGKILL)
            self._saving = []
        return lasts

    def _search(self, lasts: float, small: int) -> None:
        """Find the processes that save while there is time: on a busy node, that takes long."""
        began = time.monotonic()
        age, rest = began - self._found_at, REST * self._took
        if age > RECENT:
            self._saving = []
        if age > rest and (lasts > rest or not self._saving):
            below = os.walk(self._stage)
            paths = (os.path.join(folder, name) for folder, _, names in below for name in names)
            files = {path for path in paths if _is_saved(path, small)}
            self._saving = [pid for pid in all_pids() if _writes(pid, files)] if files else []
            self._found_at = time.monotonic()
            self._took = self._found_at - began


def _is_saved(path: str, small: int) -> bool:
    """Return whether a file is not so small, and was just written."""
    with contextlib.suppress(OSError):  # just deleted
        file = os.lstat(path)
        return file.st_blocks * BLOCK >= small and time.time() - file.st_mtime < RECENT
    return False


def _writes(pid: int, files: Collection[str]) -> bool:
    """Return whether another process has one of these files open for writing: its link in /proc has
    that access mode.
    """
    found = False
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for fd in os.listdir(f"/proc/{pid}/fd") if pid != os.getpid() else ():
            link = f"/proc/{pid}/fd/{fd}"
            with contextlib.suppress(OSError):  # just closed
                found |= os.readlink(link) in files and bool(os.lstat(link).st_mode & stat.S_IWUSR)
    return found
