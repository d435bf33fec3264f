"""The agent's end of its journal: lines to the process that writes them (`writer.py`).

The head's is `journal.jsonl`, the other agents' `journal-agent-<label>.jsonl`: one writer per
file, since appends of several nodes to one file are not atomic on a network file system.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpclaunch.core.control import Control
from hpclaunch.core.protocol.effects import Effect
from hpclaunch.core.protocol.events import Event
from hpclaunch.core.protocol.model import HEAD

from ...shared.helper import Helper
from .recorder import Recorder
from .snapshot import NotPlainError

MOST = 16 << 20  # bytes that wait for the writer; more than that, and the journal has a gap
END_LIMIT = 3.0  # seconds for the writer to write the rest
ENDED_LIMIT = 1.0  # seconds from the end of its socket to its own


class Writer(Helper):
    does = "writes the journal"
    costs = "the journal has a gap"

    def __init__(self, path: Path) -> None:
        super().__init__("hpclaunch.system.logs.journal.writer", str(path))
        self._socket.setblocking(False)

    def send(self, data: bytearray) -> int:
        """How much of it was taken. Raises OSError once the process is gone."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def finish(self, data: bytearray, limit: float) -> int:
        """Returns the exit code. One that waits for a file system is left to it: what it holds is
        written when that comes back. Then, and for one that has to be left earlier, 0.
        """
        self._socket.settimeout(limit)
        with contextlib.suppress(OSError):  # it is gone, or takes no more
            self._socket.sendall(data)
        self._lines.close()
        has_ended = self._ends_within(limit)
        self._process.send_signal(signal.SIGCONT)  # nobody else would continue one that is stopped
        self._leave()
        return self._process.returncode if has_ended else 0


class Journal:
    """Without a directory there is none. A full disk ends the journal, never the job; a file
    system that hangs, or the end of the writer, costs some of its lines, never time.
    """

    def __init__(
        self,
        directory: Path | None,
        label: str,
        is_replaced: Callable[[Helper], bool] = lambda _: True,
    ) -> None:
        """Start the writer. `is_replaced` decides whether one that was killed gets a successor."""
        self._is_replaced = is_replaced
        self._writer: Writer | None = None
        self._waiting = bytearray()
        self._lost = False  # some of what waited
        self._complaint = ""
        self._recorder = Recorder(self._waiting.extend)
        if directory is None:
            return
        name = "journal.jsonl" if label == str(HEAD) else f"journal-agent-{label}.jsonl"
        self._path = directory / name
        self._start()

    def _start(self) -> None:
        try:
            self._writer = Writer(self._path)
        except OSError as e:
            self._give_up(e.strerror or str(e))

    def fileno(self) -> int:
        return -1 if self._writer is None else self._writer.fileno()

    @property
    def wanting(self) -> bool:
        """Call `flush` when the descriptor is writable."""
        return bool(self._waiting) and self._writer is not None

    def began(self, made: Mapping[str, Any]) -> None:
        """The core was made with these arguments."""
        if self._records:
            self._recorder.began(made, time.monotonic())

    def event(self, event: Event, now: float, control: Control) -> None:
        """Before the core handles it; `now` is the time that the core is given."""
        if not self._records:
            return
        try:
            self._recorder.event(event, now, control)
        except NotPlainError as e:
            self.close()
            self._give_up(str(e))

    def effects(self, effects: Sequence[Effect]) -> None:
        """After that."""
        if self._records:
            self._recorder.effects(effects)

    def note(self, name: str, value: Any) -> None:
        """Something that the core does not know of."""
        if self._records:
            self._recorder.note(name, time.monotonic(), value)

    def flush(self) -> None:
        """At the end of each turn: what the writer takes without a wait."""
        if self._writer is None:
            return
        if self._records:
            self._recorder.flush()
        try:
            while self._waiting and (sent := self._writer.send(self._waiting)):
                del self._waiting[:sent]
        except OSError:
            self.replace_writer()
            return
        if len(self._waiting) > MOST:
            # The rest of the line that the writer has begun to read has to come.
            del self._waiting[self._waiting.index(b"\n") + 1 :]
            self._lost = True
        elif self._lost and not self._waiting:
            self._lost = False
            self._recorder.interrupted()

    def replace_writer(self) -> None:
        """Start a successor for a writer that has ended. Lines that it had not written are lost."""
        if self._writer is None:
            return
        dead, self._writer = self._writer, None
        code = dead.finish(bytearray(), ENDED_LIMIT)
        if code > 0 or not self._is_replaced(dead):
            self._give_up(_why(code))
            return
        self._waiting.clear()
        self._lost = False
        self._recorder.interrupted()
        self._start()

    def complaint(self) -> str:
        """Why there is no journal any more: said once, "" otherwise."""
        complaint, self._complaint = self._complaint, ""
        return complaint

    def close(self) -> None:
        """Returns once all is written, or the file system hangs."""
        if self._writer is None:
            return
        self.flush()
        if self._writer is not None:
            code = self._writer.finish(self._waiting, END_LIMIT)
            self._writer = None
            self._waiting.clear()
            if code:
                self._give_up(_why(code))

    @property
    def _records(self) -> bool:
        return self._writer is not None and not self._lost

    def _give_up(self, why: str) -> None:
        self._writer = None
        self._waiting.clear()
        self._complaint = f"the journal ends here: {why}"


def _why(code: int) -> str:
    return os.strerror(code) if code > 0 else "the process that writes it was killed"
