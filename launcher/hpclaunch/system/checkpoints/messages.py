"""Requests of an agent to the process that searches for checkpoints (`service.py`), and replies.

A reply has the `id` of the request that it answers.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from hpclaunch.system.shared.disk import DiskSeen
from hpclaunch.worker.messages import Kinds, Message, by_op

RoundTimes: TypeAlias = tuple[tuple[int | None, ...], ...]  # begun, ended (ns) and world size


class Search(Message):
    """Find the checkpoints, the newest first, up to the first that is complete. Answered by Begun,
    and then by Searched or Failed.
    """

    id: int
    rounds: RoundTimes
    avoid: dict[int, str]  # times of saves that are passed over, and why


class LookAt(Message):
    """Find out whether a checkpoint that another node has found is the same here, and read its
    bytes, or a share of them, for some seconds. Answered by Begun, and then by Looked.
    """

    id: int
    path: str
    size: int  # negative: this node has a file of its own, of any size
    time: int
    share: tuple[int, ...]  # (k, n): the k-th of n
    rounds: RoundTimes


class Suggest(Message):
    """Find a suggestion for --checkpoint-dir. Answered by Suggested."""

    arguments: tuple[str, ...]
    since: int


class Watch(Message):
    """Begin or stop to search from time to time, and to read new checkpoints."""

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
    unit: str | None
    rule: str  # decided its position in the order
    identity: str  # differs for every save
    time: int
    size: int
    took: float  # seconds, at least; 0 for a single file
    is_read: bool  # every byte was read, or none is to be
    world: int | None
    lacks: str | None  # why it is not to be used
    quiet: bool  # not worth a line to the user as long as there is another checkpoint


class Searched(Message):
    """The checkpoints, the newest first, up to the first that is complete."""

    id: int
    found: tuple[FoundCheckpoint, ...]
    disk: DiskSeen
    others: tuple[str, ...]  # if there is no checkpoint: the names that are there instead


class Failed(Message):
    id: int
    why: str


class Looked(Message):
    id: int
    missing: str  # why it is not here, or not the same
    damage: str  # what is wrong with its bytes


class Suggested(Message):
    where: str  # as --checkpoint-dir takes it; "" if there is no suggestion
    path: str  # what is there


Request: TypeAlias = Search | LookAt | Suggest | Watch
Reply: TypeAlias = Begun | Searched | Failed | Looked | Suggested
REQUESTS: Kinds[Request] = by_op(get_args(Request))
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
