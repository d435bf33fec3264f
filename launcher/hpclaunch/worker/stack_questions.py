"""Ways to ask the processes of a worker for the stacks of their threads without harm.

A thread of the worker, the responder, answers requests while it holds the GIL
(`site/_hpclaunch_responder.py`). All other processes write their stacks on SIGNAL, whose handler
reads them without the GIL. If another thread runs Python meanwhile, the handler may read memory
that has been freed, and the process dies. So SIGNAL is only sent to processes whose other threads
have done nothing for a while, and to those whose responder waits for the GIL while native code
holds it.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from .processes import catches, ran, stat, status_of, threads_of
from .site import _hpclaunch_layout as layout

PATIENCE = 0.3  # seconds until a request is answered, unless something holds the GIL
LONGEST = 2.0  # seconds for a responder that others may keep from running
TRYING = 0.5  # seconds to find a moment in which a process without a responder can be asked
APART = 0.02  # seconds between two looks at the threads of a process
# A responder that waits for the GIL asks for it every 5 ms, and does nothing else.
ASKED_FOR = 10  # times at least
IDLES = 0.1  # share of the time for which it runs, at most
YIELDS = 0.02  # seconds of running after which a thread in Python has certainly released the GIL
TGKILL = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine)

_BY_RESPONDER = re.compile(
    rb"%b([^%b]*)%b" % (layout.BEGUN, layout.BEGUN + layout.WRITTEN, layout.WRITTEN)
)
_CUT_OFF = re.compile(
    rb"^[^%b]*%b|%b[^%b]*$" % (layout.BEGUN, layout.WRITTEN, layout.BEGUN, layout.WRITTEN)
)
_libc = ctypes.CDLL(None)


class Thread(NamedTuple):
    state: bytes
    switches: int  # how often it has stopped running


class Questioned:
    """A process that is to write its stacks. `responder` is the id of its responder, or 0."""

    def __init__(self, pid: int, responder: int) -> None:
        self.pid = pid
        self.responder = responder if responder and stat(f"{pid}/task/{responder}") else 0
        self.has_responded = False
        self._seen_at = 0.0
        self._seen: dict[int, Thread] = {}
        self._ran: dict[int, float] = {}

    def signal(self, stacks: str) -> bool:
        """Send SIGNAL, if that does no harm now and makes the process write its stacks to this
        file. Return whether it was sent. Call this repeatedly; with a responder, after PATIENCE."""
        now = time.monotonic()
        if not self._seen:
            self._look(now)
            return False
        if now < self._seen_at + APART:
            return False
        if not (self._lacks_lock(now) if self.responder else self._is_idle(now)):
            return False
        # Check this last: once a process that ends has no handler any longer, SIGNAL would kill it.
        return prints(self.pid, stacks) and self._send()

    def _look(self, now: float) -> None:
        self._seen, self._seen_at = threads_seen(self.pid), now
        if self.responder:
            self._ran = {thread: ran(f"{self.pid}/task/{thread}") for thread in self._seen}

    def _is_idle(self, now: float) -> bool:
        """Return whether no thread has run since the last look except the main one, which the
        handler interrupts. A main thread in state D would take SIGNAL too late."""
        before = self._seen
        self._look(now)
        others = dict(self._seen)
        main = others.pop(self.pid, None)
        if main is None or main.state not in b"RS":
            return False
        return all(t.state in b"SD" and t == before.get(each) for each, t in others.items())

    def _lacks_lock(self, now: float) -> bool:
        """Return whether the responder has asked for the GIL ever since the first look, and no
        thread keeps the GIL only because it gets no CPU."""
        threads = threads_seen(self.pid)
        mine, before = threads.pop(self.responder, None), self._seen.get(self.responder)
        if mine is None:
            self.responder = 0
        if mine is None or before is None or mine.state != b"S":
            return False
        lasted, did = now - self._seen_at, self._has_run(self.responder)
        if mine.switches < before.switches + ASKED_FOR or did > IDLES * lasted:
            return False
        return all(
            thread.state in b"SD" or (thread.state == b"R" and self._has_run(each) >= YIELDS)
            for each, thread in threads.items()
        )

    def _has_run(self, thread: int) -> float:
        """Return for how many seconds a thread has run since the first look."""
        if thread not in self._ran:
            return 0.0
        return ran(f"{self.pid}/task/{thread}") - self._ran[thread]

    def _send(self) -> bool:
        try:
            if TGKILL:  # else the kernel may choose another thread
                return not _libc.syscall(
                    TGKILL, self.pid, self.responder or self.pid, layout.SIGNAL
                )
            os.kill(self.pid, layout.SIGNAL)
        except OSError:
            return False  # it has ended, or is another user's
        return True


def ask(
    process: Questioned, fd: int, request: Callable[[], None], trying: float = TRYING
) -> Generator[None, None, str]:
    """Ask a process for its stacks, which it appends to the file `fd`; `request` is for its
    responder. Return them; "" if it ends, or cannot be asked without harm.

    Yield whenever there is nothing to do but wait for a moment. The caller limits the time: a
    process that has got SIGNAL may never answer.
    """
    pid = process.pid
    while is_answering(pid):  # an earlier question
        yield
    begin = os.fstat(fd).st_size
    if begin > layout.MOST:
        os.ftruncate(fd, begin := 0)
    late = time.monotonic()
    limit = late + trying
    if process.responder:
        request()
        late, limit = late + PATIENCE, late + LONGEST
    text, is_signalled = b"", False
    while not (is_signalled and by_handlers(text)):
        if process.responder and (found := by_responder(text)) is not None:
            process.has_responded = True
            return found
        now = time.monotonic()
        if not is_signalled and now >= late and layout.BEGUN not in text:
            is_signalled = process.signal(f"/proc/self/fd/{fd}")
            if not is_signalled and now >= limit:
                return ""
        yield
        while is_signalled and is_answering(pid):
            yield
        if not os.path.exists(f"/proc/{pid}"):
            return ""
        if os.fstat(fd).st_size < begin:
            begin = 0  # somebody else has emptied the file, to ask for itself
        text = os.pread(fd, layout.MOST, begin)
    return by_handlers(text)


def is_answering(pid: int) -> bool:
    """Return whether SIGNAL is pending for a thread, or a thread is in its handler, which blocks
    SIGNAL. A thread that also blocks the next signal does so for other reasons.
    """
    ours = 1 << (layout.SIGNAL - 1)
    names = (b"SigPnd", b"ShdPnd", b"SigBlk")
    for _, status in _statuses(pid):
        own, shared, blocked = (int(status.get(name, b"0"), 16) for name in names)
        if (own | shared) & ours or blocked & (ours | ours << 1) == ours:
            return True
    return False


def threads_seen(pid: int) -> dict[int, Thread]:
    """Return the threads of a process by their ids."""
    found: dict[int, Thread] = {}
    for thread, status in _statuses(pid):
        switches = int(status.get(b"voluntary_ctxt_switches", b"0"))
        switches += int(status.get(b"nonvoluntary_ctxt_switches", b"0"))
        found[thread] = Thread(status[b"State"][:1], switches)
    return found


def _statuses(pid: int) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """Yield (tid, its /proc/PID/task/TID/status) for each thread; none if it has ended."""
    for thread in threads_of(pid):
        if status := status_of(f"{pid}/task/{thread}"):
            yield int(thread), status


def prints(pid: int, stacks: str) -> bool:
    """Return whether a process has a handler of SIGNAL, and this file as its descriptor for stacks:
    the signal could end any other program. A handler of the script's own cannot be distinguished,
    so it gets the signal.
    """
    return catches(pid, layout.SIGNAL) and any(_is_same(pid, fd, stacks) for fd in layout.HIGH)


def _is_same(pid: int, fd: int, file: str) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/fd/{fd}", file)
    except OSError:
        return False  # it has no such descriptor, or has ended


def by_responder(text: bytes) -> str | None:
    """Return what the responder has written last, from a file for stacks or a part of it; None
    without it."""
    answers = _BY_RESPONDER.findall(text)
    return answers[-1].decode(errors="replace") if answers else None


def by_handlers(text: bytes) -> str:
    """Return what handlers of SIGNAL have written."""
    return _CUT_OFF.sub(b"", _BY_RESPONDER.sub(b"", text)).decode(errors="replace")
