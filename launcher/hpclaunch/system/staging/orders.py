"""The orders that the leading stager sends to all nodes, its own among them, how a node carries
them out, and the messages with which they reach other nodes (`mesh.py`).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias, TypeVar

from hpclaunch.core.protocol.values import field, value, variant
from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import LastRestore, Manifest
from hpclaunch.system.shared import packing

from .copying import THREADS, Between, GivenUpError
from .fetching import Source
from .node import Inventory, StageNode
from .pieces import Failure, PiecesPlace
from .publishing import DRAFT

LIMIT = 64 << 20  # bytes of a message
T = TypeVar("T")
Address: TypeAlias = tuple[str, int]  # with the port


@variant(frozen=True)
class Look:
    """Return the inventory."""


@variant(frozen=True)
class Copy:
    """Copy files into a draft on storage."""

    entries: tuple[StagedFile, ...]
    essential: frozenset[str]
    drafted: str  # the name of the draft
    in_memory: bool


@variant(frozen=True)
class Fetch:
    """Fetch files of other nodes."""

    transfers: tuple[Transfer, ...]
    generation: str = ""  # for which this node keeps them; "": in its staging directory


@variant(frozen=True)
class Keep:
    """Keep a generation."""

    manifest: Manifest


@variant(frozen=True)
class Lend:
    """Hold files of the staging directory until other nodes have fetched them."""

    entries: tuple[StagedFile, ...]


@variant(frozen=True)
class Drop:
    """Keep a generation no longer."""

    generation: str


@variant(frozen=True)
class Delete:
    """Delete files of the staging directory."""

    entries: tuple[StagedFile, ...]


@variant(frozen=True)
class RecordRestore:
    """Record that a restore is complete."""

    restore: LastRestore


@variant(frozen=True)
class Note:
    """Keep the record of the leader, for the next leader."""

    record: str


Order: TypeAlias = Look | Copy | Fetch | Keep | Lend | Drop | Delete | RecordRestore | Note


@variant(frozen=True)
class AskPieces:
    """Return where this node serves pieces of files, and what a connection needs there. Unlike an
    order, it may come from any node.
    """


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
    what: Order | AskPieces | Hurry | Cancel
    index: int = -1  # of the node that is asked
    places: dict[int, Address] = field(default_factory=dict)  # of nodes from which it fetches


@value(frozen=True)
class Reply:
    """The state of a request: sent once a second, and when it has been served."""

    is_last: bool
    done: int = 0  # bytes
    inventory: Inventory | None = None
    pieces: PiecesPlace | None = None
    failure: Failure | None = None


def packed(message: Request | Reply) -> bytes:
    """Return the bytes of a message. Raises OSError if it has too many files."""
    if len(data := packing.pack(message)) > LIMIT:
        raise OSError(errno.EMSGSIZE, "too many files for one message")
    return data


def perform(
    order: Order, node: StageNode, sources: Mapping[int, Source], between: Between
) -> Inventory | None:
    """Carry out an order on this node. Raises OSError, GivenUpError, and what `between` raises."""
    match order:
        case Look():
            return node.inventory()
        case Copy(entries=entries, essential=essential, drafted=name, in_memory=in_memory):
            if os.sep in name or not name.startswith(DRAFT):
                raise PermissionError(errno.EPERM, "not the name of a draft", name)
            drafted = os.path.join(node.storage, name)
            node.copy(entries, essential, drafted, between, in_memory=in_memory)
        case Fetch(transfers=transfers, generation=generation):
            node.fetch(transfers, generation, sources, between)
        case Keep(manifest=manifest):
            node.keep(manifest)
        case Lend(entries=entries):
            node.lend(entries)
        case Drop(generation=generation):
            node.drop(generation)
        case Delete(entries=entries):
            node.delete(entries)
        case RecordRestore(restore=restore):
            node.record_restore(restore)
        case Note(record=record):
            node.note(record)
    return None


class Job:
    """The progress of an order that is carried out. Any thread may call its methods."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self.is_cancelled = False
        self._hurry = threading.Event()

    @property
    def is_urgent(self) -> bool:
        return self._hurry.is_set()

    def hurry(self, *, on: bool) -> None:
        """Copy without pauses, or with pauses again."""
        (self._hurry.set if on else self._hurry.clear)()

    def cancel(self) -> bool:
        """Have the order given up, as far as it is not done."""
        self.is_cancelled = True
        self._hurry.set()
        return True

    def between(self, done: int, took: float) -> int:
        """Pause between two pieces of a copy: this is a `Between`."""
        is_urgent = self._hurry.wait(took)
        self.done_bytes = done
        if self.is_cancelled:
            raise GivenUpError("it was cancelled")
        return THREADS if is_urgent else 1


class Call(Job, Future[T]):
    """The result of an order. It raises what the node raises; OSError if the node is silent or
    lost; GivenUpError once the node has given up the order, for example after `cancel`.
    """

    def __init__(self) -> None:
        Future.__init__(self)
        Job.__init__(self)

    def start(self, work: Callable[[], T]) -> None:
        """Have a thread work for the result."""

        def run() -> None:
            try:
                self.set_result(work())
            except BaseException as e:  # somebody waits for it
                self.set_exception(e)

        threading.Thread(target=run, daemon=True).start()


class Node(Source, Protocol):
    """A node that takes orders, and from which files are fetched."""

    def ask(self, order: Order) -> Call[Any]: ...


class LocalNode:
    """The leader's own node, which takes orders as others do."""

    def __init__(self, node: StageNode, sources: Callable[[], Mapping[int, Source]]) -> None:
        self._node, self._sources = node, sources
        self.read = node.read

    def ask(self, order: Order) -> Call[Any]:
        call = Call[Any]()
        call.start(lambda: perform(order, self._node, self._sources(), call.between))
        return call
