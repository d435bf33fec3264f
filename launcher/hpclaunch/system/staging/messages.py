"""Requests of an agent to the stager (`service.py`), and its replies.

Every path in a reply is the one on storage, which users know. The paths of the staging directory
differ from it only in their beginning.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, get_args

from hpclaunch.system.checkpoints.messages import FoundCheckpoint, RoundTimes
from hpclaunch.worker.messages import Kinds, Message, by_op


class Settings(NamedTuple):
    """The directories of a stager, and the settings of its searches."""

    storage: str  # --checkpoint-dir; of a pattern, its beginning without wildcards
    stage: str  # the staging directory that stands for it (`stage_directory.py`)
    launch: str  # the name of the launch, which no other one on this storage has
    pattern: str = ""  # the rest of --checkpoint-dir
    exclude: tuple[str, ...] = ()
    complete: str = ""
    verify: str = "auto"
    has_several_nodes: bool = False


class PeerPlace(Message):
    """Another node's stager: where it listens (see Listening)."""

    index: int  # of its agent
    host: str
    address: str  # at which other nodes reach it
    port: int
    leader: str  # the address at which it reaches the leader


class Secret(Message):
    """The key of the stagers of this launch, by which they know each other; the first request if
    the launch has several nodes. Answered by Listening.

    Until it gets Lead, this stager only serves the one that leads.
    """

    key: str  # 32 bytes in hexadecimal


class Lead(Message):
    """Lead the other stagers: what is in memory on any node is now drained by this one. Sent again
    whenever the peers change. A stager obeys the leader of the highest term.
    """

    term: int
    index: int  # of this agent
    host: str  # of this agent
    lease: float  # seconds for which workers of other nodes may run on without this agent
    peers: tuple[PeerPlace, ...]  # the others that live


class Follow(Message):
    """Lead no longer: the agent is not the head any more."""


class Restore(Message):
    """Copy the newest complete checkpoint from storage into the staging directory. Answered by
    Restored or Refused.

    With several nodes, it goes to the leader before each round: choose the newest checkpoint that
    is in memory, else on storage, and let all `nodes` have it in their staging directories.

    Send it again between two rounds if the search finds no complete checkpoint there, as after a
    kill of a script that saves to one name: storage still has what was drained before. Send it with
    `avoid` if the job has failed twice with some of them.
    """

    id: int
    avoid: tuple[str, ...] = ()  # paths on storage
    nodes: tuple[int, ...] = ()  # with several: the agents of the next round, by index


class Search(Message):
    """Find the newest complete checkpoint in the memory of all nodes, as it is now. Answered by
    Searched. Sent only to the leader of several, between two restores: no node has all files then.
    """

    id: int


class Rounds(Message):
    """The rounds of this job, by which the search judges checkpoints."""

    rounds: RoundTimes
    hurry: bool  # copy without pauses: the workers have ended, or will soon


class Flush(Message):
    """Copy everything that is left in the staging directory. Answered by Flushed. Send it once no
    worker runs. It may be sent again, and then copies what is missing.
    """

    id: int


class Listening(Message):
    """This stager listens for others at this port, on all addresses of its node."""

    port: int


class Restored(Message):
    id: int
    path: str  # of the one from storage; "": storage has none, or it was in memory
    size: int
    seconds: float
    skipped: tuple[str, ...] = ()  # newer ones that cannot be used, each as "name: why"
    fetched: int = 0  # bytes that nodes have fetched from each other
    by_name: tuple[str, ...] = ()  # older ones that were copied too: scripts look for their names


class Searched(Message):
    """The checkpoints in memory, the newest first, up to the first that is complete. Their paths
    are those on storage.
    """

    id: int
    found: tuple[FoundCheckpoint, ...]
    why: str = ""  # why the search has failed


class Refused(Message):
    """Nothing could be restored: the staging directory cannot be used."""

    id: int
    why: str
    host: str = ""  # the node that is the cause; "": this one


class NoRoom(Message):
    """A lack of room for another save, or for the present one, whose process is killed next
    (`guard.py`). The next round should save to storage. Flush the staging directory before. The
    round that runs cannot change its directory.
    """

    why: str
    host: str = ""  # the node without room; "": this one


class DirectSave(Message):
    """The script has saved a checkpoint to storage itself, and none in memory, where searches would
    not find it. The next round should save to storage.
    """

    name: str


class UnknownSave(Message):
    """The script saves in memory in no known format, so nothing is copied before the round ends.
    The next round should save to storage. Flush the staging directory before.
    """

    name: str


class DirectoryDeleted(Message):
    """Another program has deleted the staging directory. The stager ends; make the directory again
    for the next one.
    """


class DrainProgress(Message):
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
    """A checkpoint could not be copied, and the stager tries again later; or storage is silent, and
    the copy continues once it answers.
    """

    path: str
    why: str


class OtherFailed(Message):
    """A file that belongs to no checkpoint could not be copied; sent once for each reason. The
    stager tries again after the next checkpoint, and at the end. Or storage is silent while no
    checkpoint is copied; then the path is that of the whole directory.
    """

    path: str
    why: str


class Flushed(Message):
    """Everything has reached storage, except what is `missing` or `unusable`.

    A job with something missing should fail, whatever its workers say: without staging, the script
    itself could not have written these files, and would have failed.
    """

    id: int
    missing: tuple[str, ...]  # paths, the newest checkpoint first
    why: str  # the first error; "" if everything has reached storage
    checkpoint: str = ""  # the newest complete checkpoint, if it is among the missing
    # Newer ones that are not whole: a kill may leave files of several saves, and a copy of what a
    # lost node has saved may have changed in memory.
    unusable: tuple[str, ...] = ()


Request: TypeAlias = Secret | Lead | Follow | Restore | Search | Rounds | Flush
Reply: TypeAlias = (
    Listening
    | Restored
    | Searched
    | Refused
    | NoRoom
    | DirectSave
    | UnknownSave
    | DirectoryDeleted
    | DrainProgress
    | Drained
    | DrainFailed
    | OtherFailed
    | Flushed
)
REQUESTS: Kinds[Request] = by_op(get_args(Request))
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
