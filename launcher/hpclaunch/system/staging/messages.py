"""Requests of an agent to the stager (`service.py`), and its replies.

Every path in a reply is the one on storage, which users know. The paths of the staging directory
differ from it only in their beginning.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from hpclaunch.system.checkpoints.messages import RoundTimes
from hpclaunch.worker.messages import Kinds, Message, by_op


class Restore(Message):
    """Copy the newest complete checkpoint from storage into the staging directory. Answered by
    Restored or Refused.

    Send it again between two rounds if the search finds no complete checkpoint there, as after a
    kill of a script that saves to one name: storage still has what was drained before. Send it with
    `avoid` if the job has failed twice with some of them.
    """

    id: int
    avoid: tuple[str, ...] = ()  # paths on storage


class Rounds(Message):
    """The rounds of this job, by which the search judges checkpoints."""

    rounds: RoundTimes


class Hurry(Message):
    """Copy without pauses, or with pauses again."""

    on: bool


class Flush(Message):
    """Copy everything that is left in the staging directory. Answered by Flushed. Send it once no
    worker runs. It may be sent again, and then copies what is missing.
    """

    id: int


class Restored(Message):
    id: int
    path: str  # "" if storage has no complete checkpoint
    size: int
    seconds: float
    skipped: tuple[str, ...] = ()  # newer ones that cannot be used, each as "name: why"


class Refused(Message):
    """The staging directory cannot be used. With `id` 0, this is no reply: there is no room for
    another save, so the next round should save to storage. Flush the staging directory before. The
    round that runs cannot change its directory.
    """

    id: int
    why: str


class Draining(Message):
    """A checkpoint is being copied to storage. Sent at most once a second."""

    path: str
    done: int  # bytes
    size: int


class Drained(Message):
    """A complete checkpoint has reached storage."""

    path: str
    step: int | None
    size: int
    seconds: float  # without the pauses


class DrainFailed(Message):
    """A checkpoint could not be copied. The stager tries again later."""

    path: str
    why: str


class Deleted(Message):
    """A checkpoint was deleted on storage, since the script has deleted it and storage has a newer
    complete one.
    """

    path: str


class Flushed(Message):
    """Everything has reached storage, except what is `missing`.

    A job with something missing should fail, whatever its workers say: without staging, the script
    itself could not have written these files, and would have failed.
    """

    id: int
    missing: tuple[str, ...]  # paths, the newest checkpoint first
    why: str  # the first error; "" if nothing is missing
    checkpoint: str = ""  # the newest complete checkpoint, if it is among the missing


Request: TypeAlias = Restore | Rounds | Hurry | Flush
Reply: TypeAlias = Restored | Refused | Draining | Drained | DrainFailed | Deleted | Flushed
REQUESTS: Kinds[Request] = by_op(get_args(Request))
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
