"""The stagers' requests to each other, and the replies (`mesh.py`)."""

from __future__ import annotations

from typing import TypeAlias

from hpclaunch.core.protocol.values import value, variant
from hpclaunch.core.staging.generations import Identity, Manifest, Settled

from .node import Entry, Inventory, Wanted

Address: TypeAlias = tuple[str, int]  # with the port


@variant(frozen=True)
class Look:
    """Return the inventory."""


@variant(frozen=True)
class Read:
    """Return bytes of a file. Unlike the others, it may come from any node."""

    name: str
    kept: str
    identity: Identity
    offset: int
    length: int


@variant(frozen=True)
class Copy:
    """Copy files into a draft on storage."""

    entries: tuple[Entry, ...]
    essential: tuple[str, ...]
    drafted: str  # the name of the draft
    in_memory: bool


@variant(frozen=True)
class Fetch:
    """Fetch files of other nodes."""

    wanted: tuple[Wanted, ...]
    generation: str
    me: int  # the index of the node that fetches
    places: dict[int, Address]  # of the others


@variant(frozen=True)
class Keep:
    """Keep a generation."""

    manifest: Manifest


@variant(frozen=True)
class Lend:
    """Hold files of the staging directory until other nodes have fetched them."""

    entries: tuple[Entry, ...]


@variant(frozen=True)
class Drop:
    """Keep a generation no longer."""

    generation: str


@variant(frozen=True)
class Delete:
    """Delete files of the staging directory."""

    entries: tuple[Entry, ...]


@variant(frozen=True)
class Settle:
    """Record that a restore is complete."""

    settled: Settled


@variant(frozen=True)
class Note:
    """Keep the record of the leader, for the next leader."""

    record: str


@variant(frozen=True)
class Hurry:
    """Serve the request of this connection without pauses, or with pauses again."""

    on: bool


@variant(frozen=True)
class Cancel:
    """Give up the request of this connection. That is answered all the same."""


Request: TypeAlias = (
    Look | Read | Copy | Fetch | Keep | Lend | Drop | Delete | Settle | Note | Hurry | Cancel
)


@value(frozen=True)
class Order:
    """A request, with the term of the leader that sends it."""

    term: int
    request: Request


@value(frozen=True)
class Failure:
    """Why a request has failed."""

    why: str
    number: int | None  # errno; None if it was given up
    name: str = ""  # of a file


@value(frozen=True)
class Reply:
    """The state of a request: sent once a second, and when it has been served. Bytes of a file
    follow in a frame of their own.
    """

    is_last: bool
    done: int = 0  # bytes
    inventory: Inventory | None = None
    failure: Failure | None = None
