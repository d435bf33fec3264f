"""Other nodes, as the stager that leads sees them, and this node in the same form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from hpclaunch.core.staging.copies import Fetch
from hpclaunch.core.staging.generations import Manifest, Settled, StagedFile

from .node import Entry, Inventory, Source, StageNode, Wanted

AT_ONCE = 8  # orders to this node itself that are carried out at the same time


class Call(Protocol):
    """A copy to storage by another node: a future with its progress."""

    done_bytes: int
    is_urgent: bool  # it makes no pauses

    def add_done_callback(self, function: Callable[[Any], object], /) -> None: ...
    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def cancel(self) -> bool: ...


class Peer(Source, Protocol):
    """Another node. Its methods are those of `StageNode`, but return futures."""

    def inventory(self) -> Future[Inventory]: ...
    def copy(
        self,
        entries: Sequence[Entry],
        essential: Collection[str],
        drafted: str,
        *,
        in_memory: bool = False,
    ) -> Call: ...
    def fetch(self, wanted: Sequence[Wanted], generation: str) -> Future[None]: ...
    def keep(self, manifest: Manifest) -> Future[None]: ...
    def lend(self, entries: Sequence[Entry]) -> Future[None]: ...
    def drop(self, generation: str) -> Future[None]: ...
    def delete(self, entries: Sequence[Entry]) -> Future[None]: ...
    def settle(self, settled: Settled) -> Future[None]: ...
    def note(self, record: str) -> Future[None]: ...


class LocalNode:
    """This node, with futures as other nodes have them."""

    def __init__(self, node: StageNode, sources: Callable[[], Mapping[int, Source]]) -> None:
        self._node, self._sources = node, sources
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def inventory(self) -> Future[Inventory]:
        return self._pool.submit(self._node.inventory)

    def fetch(self, wanted: Sequence[Wanted], generation: str) -> Future[None]:
        return self._pool.submit(self._node.fetch, wanted, generation, self._sources())

    def keep(self, manifest: Manifest) -> Future[None]:
        return self._pool.submit(self._node.keep, manifest)

    def lend(self, entries: Sequence[Entry]) -> Future[None]:
        return self._pool.submit(self._node.lend, entries)

    def drop(self, generation: str) -> Future[None]:
        return self._pool.submit(self._node.drop, generation)

    def delete(self, entries: Sequence[Entry]) -> Future[None]:
        return self._pool.submit(self._node.delete, entries)

    def settle(self, settled: Settled) -> Future[None]:
        return self._pool.submit(self._node.settle, settled)


def wanted(fetches: Iterable[Fetch], manifest: Manifest) -> dict[int, list[Wanted]]:
    """Return what each node fetches, the decisive file last."""
    found: dict[int, list[Wanted]] = {}
    for each in sorted(fetches, key=lambda each: each.file.name == manifest.decisive):
        kept = manifest.generation if each.is_kept else ""
        found.setdefault(each.node, []).append(Wanted(entry_of(each.file), each.source, kept))
    return found


def entry_of(file: StagedFile) -> Entry:
    return Entry(file.name, file.mode, file.size, file.time, 0, file.target)


def is_part(name: str, moved: Collection[str]) -> bool:
    """Return whether a path belongs to a checkpoint at one of these paths."""
    return name in moved or any(str(parent) in moved for parent in Path(name).parents)
