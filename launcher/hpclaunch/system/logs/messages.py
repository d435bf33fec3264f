"""Requests of an agent to its log service (`log_service.py`), and the replies.

The reply to a request with an `id` has the same `id`.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from hpclaunch.core.health.host_rules import Disk
from hpclaunch.worker.messages import Kinds, Message, by_op


class TapTo(Message):
    """The target to which lines are copied: a console, 1 or 2, or a file of duplicates."""

    to: int | str
    prefix: str
    needles: tuple[str, ...] = ()
    at_once: bool = False  # do not wait for the end of a line


class StreamFile(Message):
    path: str
    taps: tuple[TapTo, ...] = ()


class Prepare(Message):
    """Make a round's directory, files and duplicates, show what is written to them, and record
    when. Answered by Prepared or Refused.
    """

    directory: str
    streams: tuple[StreamFile, ...]
    duplicates: tuple[str, ...]
    errors: tuple[str, ...]  # error files of an earlier launch, to be removed
    store: str
    index: str  # the file for the index of the output (`output_index.py`)
    launch: str  # its first line has the launch and the host
    host: str
    id: int = 0


class ReadTail(Message):
    """Read the last lines of the first file that has any in this round. Answered by Tail."""

    files: tuple[str, ...]
    id: int = 0


class LookAtDisk(Message):
    """Find the free space for a directory. Answered by DiskFound."""

    directory: str
    id: int = 0


class Keep(Message):
    """Write texts to files: the evidence of a hang, a snapshot, the ledger."""

    directory: str
    files: dict[str, str]  # by name


class Append(Message):
    """Write lines to the end of a file: the history, the journal, the facts."""

    directory: str
    name: str
    text: str


class ReadFacts(Message):
    """Read a launch's facts of these kinds. Answered by Facts, if they can be read."""

    directory: str
    launch: str
    kinds: tuple[str, ...]


class HandOnError(Message):
    """Copy the first of these error files of workers that can be read (`error_file.py`)."""

    files: dict[str, int]  # with the exit codes
    wanted: str


class Say(Message):
    """Show a line to the user, after all that the workers have written so far."""

    text: str


class Live(Message):
    """Show a live line on a terminal, until a worker writes something."""

    text: str


class Remove(Message):
    file: str


class Finish(Message):
    """Show the rest of the round's output: its workers have exited."""


class Prepared(Message):
    id: int


class Refused(Message):
    """A round's files cannot be made."""

    id: int
    why: str
    file: str
    full: bool  # the file system is full, read-only or broken


class Tail(Message):
    id: int
    text: str


class DiskFound(Message):
    id: int
    disk: Disk


class Facts(Message):
    lines: str


class Complaint(Message):
    """A failed write, which answers no request: the fields of a LogTrouble
    (`core/protocol/node_facts.py`).
    """

    kind: str
    what: str
    why: str = ""


class Lost(Message):
    """Lines for this file could not be written. It can be written again."""

    name: str
    lines: int


class Draining(Message):
    """Sign of life at the end, while there is more to show."""


Request: TypeAlias = (
    Prepare
    | ReadTail
    | LookAtDisk
    | Keep
    | Append
    | ReadFacts
    | HandOnError
    | Say
    | Live
    | Remove
    | Finish
)
Reply: TypeAlias = Prepared | Refused | Tail | DiskFound | Facts | Complaint | Lost | Draining
REQUESTS: Kinds[Request] = by_op(get_args(Request))
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
