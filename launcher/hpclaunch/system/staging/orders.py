"""The orders that the leading stager sends to all nodes, its own among them, and how a node carries
them out.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from hpclaunch.core.protocol.values import variant
from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import LastRestore, Manifest

from .copying import THREADS, Between, GivenUpError
from .fetching import Source
from .node import Inventory, StageNode
from .publishing import DRAFT

T = TypeVar("T")


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

    @overload
    def ask(self, order: Look) -> Call[Inventory]: ...
    @overload
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
