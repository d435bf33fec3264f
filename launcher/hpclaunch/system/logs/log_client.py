"""The agent's client of the process that reads and writes its log files (`log_service.py`)."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpclaunch.system.shared.helper import GONE_LIMIT, Helper, say_now

MOST = 1 << 20  # bytes that wait for the process; what is said beyond that is dropped, and counted
END_LIMIT = 60.0  # seconds without a sign of life at the end; a file system may stall for long
NOTED = 5.0  # seconds after which the user learns what is waited for


@dataclass(frozen=True, slots=True)
class TapTo:
    """Where the lines of a file are copied to: a console, 1 or 2, or a file for duplicates."""

    to: int | str
    prefix: str
    needles: Sequence[str] = ()
    at_once: bool = False  # also lines without an end


@dataclass(frozen=True, slots=True)
class StreamFile:
    path: str
    taps: list[TapTo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Of an agent's output in a round (`output_index.py`)."""

    path: str
    launch: str
    host: str


class LogServiceClient(Helper):
    """Requests out, replies in. Nothing here waits for the process, until the end."""

    does = "shows the workers' output"
    costs = "lines may be missing here, and are in the files; the journal may have a gap"

    def __init__(self) -> None:
        found = find_spec("msgspec")  # for the facts of earlier heads
        assert found is not None, "hpclaunch depends on it"
        assert found.origin is not None
        paths = [str(Path(found.origin).parents[1])]
        super().__init__("hpclaunch.system.logs.log_service", paths=paths)
        self._socket.setblocking(False)
        self._waiting = bytearray()
        self._is_cut = False  # whether `_waiting` begins in the middle of a request
        self._unsaid = 0  # lines that were dropped

    def successor(self) -> LogServiceClient:
        """Return a new client, which sends the requests that this one could not."""
        another = LogServiceClient()
        begin = self._waiting.find(b"\n") + 1 if self._is_cut else 0
        another._waiting += self._waiting[begin:]
        return another

    def ask(self, **request: Any) -> None:
        self._waiting += json.dumps(request).encode() + b"\n"
        self.flush()

    def receive(self) -> list[dict[str, Any]]:
        try:
            return super().receive()
        except BlockingIOError:  # the descriptor was writable only
            return []

    @property
    def wanting(self) -> bool:
        """Call `flush` when the descriptor is writable."""
        return bool(self._waiting) and not self.lost

    def flush(self) -> None:
        try:
            self._send()
        except OSError:  # it takes nothing for now, or is gone, as receive() will notice
            return
        if self._unsaid:
            lines, self._unsaid = self._unsaid, 0
            self.say(f"{lines} lines that were to be here are lost: the log directory has stalled")

    def _send(self) -> None:
        while self._waiting:
            sent = self._socket.send(self._waiting)
            self._is_cut = self._waiting[sent - 1 : sent] != b"\n"
            del self._waiting[:sent]

    def prepare(
        self,
        number: int,
        directory: Path,
        streams: Sequence[StreamFile],
        *,
        duplicates: Sequence[str],
        errors: Sequence[str],
        store: Path,
        index: IndexFile,
    ) -> None:
        """Make a round's directory, files and duplicates, show what is written there, and note
        when it came. `errors` are removed. Answered by "prepared" or "refused".
        """
        self.ask(
            op="prepare",
            id=number,
            directory=str(directory),
            streams=[asdict(stream) for stream in streams],
            duplicates=list(duplicates),
            errors=list(errors),
            store=str(store),
            index=asdict(index),
        )

    def tail(self, number: int, files: Sequence[Path]) -> None:
        """The last lines of the first file that has any since the round began: "tail"."""
        self.ask(op="tail", id=number, files=[str(file) for file in files])

    def look(self, number: int, directory: Path) -> None:
        """How much room there is: "disk"."""
        self.ask(op="look", id=number, directory=str(directory))

    def say(self, text: str) -> None:
        if len(self._waiting) > MOST:
            self._unsaid += 1
        else:
            self.ask(op="say", text=text)

    def live(self, text: str) -> None:
        """Show this below all else on the terminal, until a worker writes something; "" for nothing
        any more.
        """
        if len(self._waiting) <= MOST:
            self.ask(op="live", text=text)

    def keep(self, directory: Path, files: Mapping[str, str]) -> None:
        """Write these texts to files there."""
        self.ask(op="keep", directory=str(directory), files=files)

    def append(self, directory: Path, name: str, text: str, *, is_last: bool = False) -> bool:
        """Write these lines to the end of a file there; False if they are not accepted, because the
        directory has stalled. `is_last`: accept them in any case, since `close` waits for them.
        """
        if len(self._waiting) > MOST and not is_last:
            return False
        self.ask(op="append", directory=str(directory), name=name, text=text)
        return True

    def read_facts(self, directory: Path, launch: str, kinds: Sequence[str]) -> None:
        """Read the facts of these kinds that were recorded in a launch: "facts", if they can be
        read.
        """
        self.ask(op="read_facts", directory=str(directory), launch=launch, kinds=kinds)

    def remove(self, file: Path) -> None:
        self.ask(op="remove", file=str(file))

    def finish(self) -> None:
        self.ask(op="finish")

    def close(self) -> None:
        """Returns once everything is shown, or nobody reads, or the file system hangs."""
        try:
            while self._waiting and self._is_alive(select.POLLOUT):
                with contextlib.suppress(BlockingIOError):
                    self._send()
            self._socket.shutdown(socket.SHUT_WR)
            while self._is_alive(select.POLLIN) and self._socket.recv(1 << 16):
                pass  # it shows what is left, and says so
        except OSError:  # it hangs, or was killed
            self.abandon()
        else:
            self.end(GONE_LIMIT)

    def _is_alive(self, event: int) -> bool:
        """Wait for a sign of life. Raises TimeoutError without one."""
        if not self._is_ready(event, NOTED):
            say_now(f"waiting up to {END_LIMIT:g} s for the process that {self.does}")
            if not self._is_ready(event, END_LIMIT - NOTED):
                raise TimeoutError
        return True
