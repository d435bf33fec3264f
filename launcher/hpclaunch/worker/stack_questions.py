"""How the processes of a worker are asked for the stacks of their threads without harm.

A thread of the worker, the hearer, answers requests with Python's lock
(`site/_hpclaunch_progress.py`). All other processes tell their stacks on SIGNAL, whose handler
reads them without the lock. If another thread runs Python meanwhile, what the handler reads is gone
the next moment, and the process dies of that. So only those get SIGNAL whose other threads have
done nothing for a while, and those whose hearer waits for the lock while native code has it.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from .processes import catches, ran, stat, status_of, threads_of
from .site import _hpclaunch_progress as page

PATIENCE = 0.3  # seconds until a request is answered, unless something holds Python's lock
LONGEST = 2.0  # seconds for a hearer that may be kept from running by others
APART = 0.02  # seconds between two looks at the threads of a process
# A hearer that waits for the lock asks for it every 5 ms, and does nothing else.
ASKED_FOR = 10  # times
IDLES = 0.1  # of the time: it runs less than that
YIELDS = 0.02  # seconds of running Python in which a thread has given up the lock for certain
TGKILL = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine)

_HEARD = re.compile(rb"%b([^%b]*)%b" % (page.BEGUN, page.BEGUN + page.WRITTEN, page.WRITTEN))
_CUT_OFF = re.compile(
    rb"^[^%b]*%b|%b[^%b]*$" % (page.BEGUN, page.WRITTEN, page.BEGUN, page.WRITTEN)
)
_libc = ctypes.CDLL(None)


class Thread(NamedTuple):
    state: bytes
    switches: int  # how often it has stopped running


class Questioned:
    """A process that is to tell its stacks. `hearer` is 0 if it has none."""

    def __init__(self, pid: int, hearer: int) -> None:
        self.pid = pid
        self.hearer = hearer if hearer and stat(f"{pid}/task/{hearer}") else 0
        self._seen_at = 0.0
        self._seen: dict[int, Thread] = {}
        self._ran: dict[int, float] = {}

    def signal(self, stacks: str) -> bool:
        """Send SIGNAL, if that does no harm now and makes it write its stacks to this file; whether
        it was sent. Call it again and again, for a hearer once PATIENCE is over."""
        now = time.monotonic()
        if not self._seen:
            self._look(now)
            return False
        if now < self._seen_at + APART:
            return False
        if not (self._lacks_lock(now) if self.hearer else self._is_idle(now)):
            return False
        # It may have come to its end since it was listed, where the signal would kill it.
        return prints(self.pid, stacks) and self._send()

    def _look(self, now: float) -> None:
        self._seen, self._seen_at = seen_of(self.pid), now
        if self.hearer:
            self._ran = {thread: ran(f"{self.pid}/task/{thread}") for thread in self._seen}

    def _is_idle(self, now: float) -> bool:
        """Whether no thread has run since the last look but the main one, which the handler
        interrupts. In state D it would take SIGNAL when nobody waits for it any more."""
        before = self._seen
        self._look(now)
        others = dict(self._seen)
        main = others.pop(self.pid, None)
        if main is None or main.state not in b"RS":
            return False
        return all(t.state in b"SD" and t == before.get(each) for each, t in others.items())

    def _lacks_lock(self, now: float) -> bool:
        """Whether the hearer has asked for the lock all the time since the first look, and no
        thread has kept it only because others have kept that one from running."""
        threads = seen_of(self.pid)
        mine, before = threads.pop(self.hearer, None), self._seen.get(self.hearer)
        if mine is None:
            self.hearer = 0
        if mine is None or before is None or mine.state != b"S":
            return False
        lasted, did = now - self._seen_at, self._has_run(self.hearer)
        if mine.switches < before.switches + ASKED_FOR or did > IDLES * lasted:
            return False
        return all(
            thread.state in b"SD" or (thread.state == b"R" and self._has_run(each) >= YIELDS)
            for each, thread in threads.items()
        )

    def _has_run(self, thread: int) -> float:
        """Seconds since the first look."""
        if thread not in self._ran:
            return 0.0
        return ran(f"{self.pid}/task/{thread}") - self._ran[thread]

    def _send(self) -> bool:
        try:
            if TGKILL:  # else the kernel may choose another thread
                return not _libc.syscall(TGKILL, self.pid, self.hearer or self.pid, page.SIGNAL)
            os.kill(self.pid, page.SIGNAL)
        except OSError:
            return False  # it has ended, or is another user's
        return True


def is_answering(pid: int) -> bool:
    """Whether SIGNAL waits for a thread, or one is in the handler for it. That runs with the signal
    blocked. A thread that never gets any signal has others blocked as well.
    """
    ours = 1 << (page.SIGNAL - 1)
    names = (b"SigPnd", b"ShdPnd", b"SigBlk")
    for _, status in _statuses(pid):
        own, shared, blocked = (int(status.get(name, b"0"), 16) for name in names)
        if (own | shared) & ours or blocked & (ours | ours << 1) == ours:
            return True
    return False


def seen_of(pid: int) -> dict[int, Thread]:
    """{tid: Thread}"""
    found: dict[int, Thread] = {}
    for thread, status in _statuses(pid):
        switches = int(status.get(b"voluntary_ctxt_switches", b"0"))
        switches += int(status.get(b"nonvoluntary_ctxt_switches", b"0"))
        found[thread] = Thread(status[b"State"][:1], switches)
    return found


def _statuses(pid: int) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """Yields (tid, its /proc/PID/task/TID/status) for each thread; none if it has ended."""
    for thread in threads_of(pid):
        if status := status_of(f"{pid}/task/{thread}"):
            yield int(thread), status


def prints(pid: int, stacks: str) -> bool:
    """Return whether a process has a handler of SIGNAL, and this file under a descriptor for
    stacks: for any other program the signal could be the end. A handler of the script's own cannot
    be distinguished, so it gets the signal.
    """
    return catches(pid, page.SIGNAL) and any(_is_same(pid, fd, stacks) for fd in page.HIGH)


def _is_same(pid: int, fd: int, file: str) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/fd/{fd}", file)
    except OSError:
        return False  # it has no such descriptor, or has ended


def heard(text: bytes) -> str | None:
    """What the hearer has written last, of a file for stacks or a part of it; None without it."""
    answers = _HEARD.findall(text)
    return answers[-1].decode(errors="replace") if answers else None


def unheard(text: bytes) -> str:
    """What handlers of SIGNAL have written."""
    return _CUT_OFF.sub(b"", _HEARD.sub(b"", text)).decode(errors="replace")
