"""Requests of an agent to the process that searches for checkpoints (`service.py`), and replies.

A reply to a search or a look has the `id` of that request.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from hpclaunch.core.health.host_rules import Disk
from hpclaunch.worker.messages import Kinds, Message, by_op

RoundTimes: TypeAlias = tuple[tuple[int | None, ...], ...]  # start and end (ns), world size


class Search(Message):
    """Find the checkpoints, the newest first, up to the first that is complete. Answered by Begun,
    and then by Searched or Failed.
    """

    id: int
    rounds: RoundTimes
    avoid: dict[int, str]  # why not to choose a checkpoint, by the checksum of its `identity`


class LookAt(Message):
    """Check that this node sees the checkpoint that the head has chosen, and read its bytes, or a
    share of them. Answered by Begun, and then by Looked.
    """

    id: int
    path: str
    size: int  # negative: any, since this node has a file of its own
    time: int
    share: tuple[int, ...]  # (k, n): read the k-th of n shares; n = 0: none
    rounds: RoundTimes


class Suggest(Message):
    """Find a suggestion for --checkpoint-dir. Answered by Suggested."""

    arguments: tuple[str, ...]
    since: int  # ns; older checkpoints do not count


class Watch(Message):
    """Start or stop searching periodically and reading new checkpoints."""

    on: bool
    rounds: RoundTimes


class Begun(Message):
    """The search or look has begun, and may take long."""

    id: int


class FoundCheckpoint(Message):
    """A checkpoint, complete or not."""

    path: str
    name: str
    format: str
    step: int | None
    scale: str | None  # only steps of the same scale can be compared
    rule: str  # what decided its place in the order
    identity: str  # its mark, which differs for every save
    time: int
    size: int
    took: float  # seconds that the save took at least; 0 for a single file
    is_read: bool  # every byte was read, or --verify reads none
    lacks: str | None  # why it cannot be used; None if it is complete
    quiet: bool  # not worth a line to the user as long as there is another checkpoint
    later: str = ""  # the name of the newest of a lower step that was saved later, and when
    later_time: int = 0


class Searched(Message):
    """The checkpoints, the newest first, up to the first that is complete."""

    id: int
    found: tuple[FoundCheckpoint, ...]
    disk: Disk
    others: tuple[str, ...]  # the names of other files, if there is no checkpoint


class Failed(Message):
    id: int
    why: str


class Looked(Message):
    id: int
    missing: str  # why this node does not see it, or sees another one; "" if it sees it
    damage: str  # what is wrong with its bytes; "" if nothing is


class Suggested(Message):
    where: str  # as --checkpoint-dir takes it; "" if there is no suggestion
    path: str  # the checkpoint that was found there


Request: TypeAlias = Search | LookAt | Suggest | Watch
Reply: TypeAlias = Begun | Searched | Failed | Looked | Suggested
REQUESTS: Kinds[Request] = by_op(get_args(Request))
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
