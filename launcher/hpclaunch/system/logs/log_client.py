"""The agent's client of the process that reads and writes its log files (`log_service.py`).

`messages.py` says what each request does.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hpclaunch.core.protocol.process_kinds import NAMES, ProcessKind
from hpclaunch.system.shared.helper import GONE_LIMIT, Helper, place_of, say_now
from hpclaunch.worker.messages import Message, decode

from . import messages

MOST = 1 << 20  # bytes that wait for the process; messages beyond that are dropped and counted
END_LIMIT = 60.0  # seconds without a sign of life at the end; a file system may stall for long
NOTED = 5.0  # seconds after which the user sees what the agent waits for


class LogServiceClient(Helper):
    """The agent's end of the log service. Only `close` waits for the process."""

    kind = ProcessKind.LOGS

    def __init__(self) -> None:
        paths = [place_of("msgspec")]  # for the facts of earlier heads
        super().__init__("hpclaunch.system.logs.log_service", paths=paths)
        self._socket.setblocking(False)
        self._waiting = bytearray()
        self._kept: dict[tuple[str, ...], messages.Keep] = {}  # by files; sent after `_waiting`
        self._is_cut = False  # whether `_waiting` begins in the middle of a request
        self._unsaid = 0  # lines that were dropped
        self.unwritten: Counter[str] = Counter()  # lines that could not be appended, by file

    def successor(self) -> LogServiceClient:
        """Return a new client with this one's unsent requests and counts of lost lines."""
        another = LogServiceClient()
        another._unsaid, another.unwritten = self._unsaid, self.unwritten
        begin = self._waiting.find(b"\n") + 1 if self._is_cut else 0
        another._waiting += self._waiting[begin:] + b"".join(map(_line, self._kept.values()))
        return another

    def send(self, request: Message) -> None:
        self._waiting += _line(request)
        self.flush()

    def replies(self) -> list[messages.Reply]:
        """Return the replies that are there. Call this when the descriptor is readable."""
        try:
            replies = [decode(messages.REPLIES, reply) for reply in self.receive()]
        except BlockingIOError:  # the descriptor was writable only
            return []
        for reply in replies:
            if isinstance(reply, messages.Lost):
                self.unwritten[reply.name] += reply.lines
        return replies

    @property
    def wanting(self) -> bool:
        """Return whether requests wait: then call `flush` when the descriptor is writable."""
        return bool(self._waiting) and not self.lost

    def flush(self) -> None:
        with contextlib.suppress(OSError):  # its buffer is full, or it is gone: see receive()
            self._send()

    def dropped(self) -> int:
        """Return the number of dropped lines, once, when all requests are sent; 0 until then."""
        if self._waiting:
            return 0
        lines, self._unsaid = self._unsaid, 0
        return lines

    def _send(self) -> None:
        while self._waiting:
            sent = self._socket.send(self._waiting)
            self._is_cut = self._waiting[sent - 1 : sent] != b"\n"
            del self._waiting[:sent]
            if self._kept and not self._waiting:
                self._waiting += _line(self._kept.pop(next(iter(self._kept))))

    def say(self, text: str) -> None:
        if len(self._waiting) > MOST:
            self._unsaid += 1
        else:
            self.send(messages.Say(text))

    def live(self, text: str) -> None:
        """Show this text below all else on the terminal; "" removes it."""
        if len(self._waiting) <= MOST:
            self.send(messages.Live(text))

    def keep(self, directory: Path, files: Mapping[str, str]) -> None:
        """Write these texts to files. While the process accepts nothing, only the newest texts of
        the same files wait.
        """
        request = messages.Keep(str(directory), dict(files))
        if self._waiting:
            self._kept[(request.directory, *files)] = request
        else:
            self.send(request)

    def append(self, directory: Path, name: str, text: str, *, is_last: bool = False) -> bool:
        """Write these lines to the end of a file there; False if they are not accepted, because the
        directory has stalled. `is_last`: accept them in any case, since `close` waits for them.
        """
        if len(self._waiting) > MOST and not is_last:
            return False
        self.send(messages.Append(str(directory), name, text))
        return True

    def finish(self) -> None:
        self.send(messages.Finish())

    def close(self) -> list[messages.Complaint]:
        """Wait until the process has shown everything and ended. Abandon it after END_LIMIT without
        a sign of life. Return what it could not write.
        """
        complaints: list[messages.Complaint] = []
        try:
            while self._waiting and self._is_alive(select.POLLIN | select.POLLOUT):
                with contextlib.suppress(BlockingIOError):
                    self._send()
                with contextlib.suppress(BlockingIOError):  # it may wait until replies are read
                    complaints += self._complaints()
            self._socket.shutdown(socket.SHUT_WR)
            while self._is_alive(select.POLLIN):  # meanwhile it sends Draining
                complaints += self._complaints()
        except EOFError:
            self.end(GONE_LIMIT)
        except OSError:  # it hangs, or was killed
            self.abandon()
        return complaints

    def _complaints(self) -> list[messages.Complaint]:
        replies = [decode(messages.REPLIES, reply) for reply in self._lines.receive()]
        return [reply for reply in replies if isinstance(reply, messages.Complaint)]

    def _is_alive(self, events: int) -> bool:
        """Wait for a sign of life. Raises TimeoutError without one."""
        if not self._is_ready(events, NOTED):
            say_now(f"waiting up to {END_LIMIT:g} s for the {NAMES[self.kind]}")
            if not self._is_ready(events, END_LIMIT - NOTED):
                raise TimeoutError
        return True


def _line(request: Message) -> bytes:
    return json.dumps(request.encoded()).encode() + b"\n"
