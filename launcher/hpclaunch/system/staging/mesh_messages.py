"""The messages of the stagers to each other (`mesh.py`)."""

from __future__ import annotations

import errno
from typing import TypeAlias

from hpclaunch.core.protocol.values import field, value, variant
from hpclaunch.core.staging.files import Identity
from hpclaunch.system.shared import packing

from .node import Inventory
from .orders import Order

LIMIT = 64 << 20  # bytes of a message
Address: TypeAlias = tuple[str, int]  # with the port


@variant(frozen=True)
class Read:
    """Return bytes of a file. Unlike an order, it may come from any node."""

    name: str
    kept: str
    identity: Identity
    offset: int
    length: int


@variant(frozen=True)
class Hurry:
    """Carry out the order of this connection without pauses, or with pauses again."""

    on: bool


@variant(frozen=True)
class Cancel:
    """Give up the order of this connection. The order is still answered."""


@value(frozen=True)
class Request:
    """An order, or something else that is asked of a node."""

    term: int  # of the leader that asks
    what: Order | Read | Hurry | Cancel
    index: int = -1  # of the node that is asked
    places: dict[int, Address] = field(default_factory=dict)  # of nodes from which it fetches


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


def packed(message: Request | Reply) -> bytes:
    """Return the bytes of a message. Raises OSError if it has too many files."""
    if len(data := packing.pack(message)) > LIMIT:
        raise OSError(errno.EMSGSIZE, "too many files for one message")
    return data
