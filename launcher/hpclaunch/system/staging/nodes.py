"""The nodes of a launch, for the stager that leads them: what they have, and orders to them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hpclaunch.core.staging.copies import Fetch, buddies
from hpclaunch.core.staging.generations import Holding, Manifest, Settled, StagedFile

from .contents import HERE, Contents, Item
from .copying import Between, GivenUpError, RewrittenError, at_once, copy, hold
from .launch import Launch
from .node import Entry, Inventory, Source, StageNode, Wanted
from .requests import Requests
from .view import UNKNOWN, WHOLE, View

TICK = 0.1  # seconds between two looks at the copies of other nodes
AT_ONCE = 2  # orders to this node itself that are carried out at the same time
T = TypeVar("T")


class Call(Protocol):
    """A copy to storage by another node: a future with its progress."""

    done_bytes: int
    is_urgent: bool  # it makes no pauses

    def add_done_callback(self, function: Callable[[Any], object], /) -> None: ...
    def done(self) -> bool: ...
    def result(self) -> None: ...
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
    def drop(self, generation: str) -> Future[None]: ...
    def delete(self, entries: Sequence[Entry]) -> Future[None]: ...
    def settle(self, settled: Settled) -> Future[None]: ...
    def note(self, record: str) -> Future[None]: ...


class LocalNode:
    """This node, with futures as other nodes have them."""

    def __init__(self, node: StageNode, sources: Callable[[], Mapping[int, Source]]) -> None:
        self._node, self._sources = node, sources
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self.read = node.read

    def inventory(self) -> Future[Inventory]:
        return self._pool.submit(self._node.inventory)

    def fetch(self, wanted: Sequence[Wanted], generation: str) -> Future[None]:
        return self._pool.submit(self._node.fetch, wanted, generation, self._sources())

    def keep(self, manifest: Manifest) -> Future[None]:
        return self._pool.submit(self._node.keep, manifest)

    def drop(self, generation: str) -> Future[None]:
        return self._pool.submit(self._node.drop, generation)

    def delete(self, entries: Sequence[Entry]) -> Future[None]:
        return self._pool.submit(self._node.delete, entries)

    def settle(self, settled: Settled) -> Future[None]:
        return self._pool.submit(self._node.settle, settled)


class Nodes:
    """The nodes that this stager leads, by index, itself among them. `holdings` and the view are
    as of the last `refresh`. A launch on one node has neither.
    """

    def __init__(self, launch: Launch, requests: Requests) -> None:
        self._launch, self._requests = launch, requests
        self.leads = not launch.has_several_nodes
        self.index = 0
        self.hosts: dict[int, str] = {}
        self.peers: Mapping[int, Peer] = {}  # without itself
        self.holdings: list[Holding] = []
        self.inventories: dict[int, Inventory] = {}
        self.own = StageNode(launch.stage, launch.storage)
        self._local = LocalNode(self.own, self.sources)
        self._noted = ""  # the record that other nodes have
        self._view: View | None = None

    @property
    def are_several(self) -> bool:
        """Return whether there is a view."""
        return self._view is not None

    def lead(self, index: int, peers: Mapping[int, Peer], hosts: Mapping[int, str]) -> None:
        """Lead these nodes; `index` is that of this one. `hosts` has those of the others."""
        self.leads, self.index, self.peers = True, index, dict(peers)
        self.hosts, self._noted = {**hosts, index: os.uname().nodename}, ""
        if self._view is None:
            self._view = View(self._launch.stage)
            self._launch.look_into(self._view.root)

    def follow(self) -> None:
        self.leads, self.peers = False, {}

    def sources(self) -> dict[int, Source]:
        return {**self.peers, self.index: self.own}

    def __getitem__(self, index: int) -> Peer | LocalNode:
        return self._local if index == self.index else self.peers[index]

    def __contains__(self, index: int) -> bool:
        return index == self.index or index in self.peers

    # What they have

    def refresh(self) -> None:
        """Have all nodes say what they have. Those that do not answer count as lost. Raises OSError
        and GivenUpError.
        """
        if self._view is None:
            return
        calls = {n: self[n].inventory() for n in sorted({self.index, *self.peers})}
        failed = self.wait(calls)
        if self.index in failed:
            raise failed[self.index]
        self.inventories = {n: c.result() for n, c in calls.items() if n not in failed}
        self.holdings = [
            Holding(
                node,
                self.hosts.get(node, ""),
                {e.name: e.identity for e in found.entries if not e.is_folder},
                found.old,
                found.fetched & found.old,
                found.kept,
                found.settled,
            )
            for node, found in self.inventories.items()
        ]
        self._view.update(self.index, self.inventories, self.holdings, self.sources())

    def wait(self, calls: Mapping[int, Future[T]]) -> dict[int, OSError | GivenUpError]:
        """Wait for one call of each node, and serve requests meanwhile. Return the failures."""
        for call in calls.values():
            call.add_done_callback(lambda _: self._requests.wake())
        while any(not call.done() and node in self for node, call in calls.items()):
            self._requests.serve(TICK)
        return {n: why for n, call in calls.items() if (why := self._failure(call)) is not None}

    def _failure(self, call: Future[Any]) -> OSError | GivenUpError | None:
        if not call.done():
            return GivenUpError("the node is lost")
        why = call.exception()
        if why is None or isinstance(why, OSError | GivenUpError):
            return why
        raise why

    def staged(self, each: Item) -> StagedFile:
        """Return an item of the view for a manifest. Raises OSError, and GivenUpError if it is just
        being written.
        """
        assert self._view is not None, "there are several nodes"
        node, entry = self._view.shown(each)
        if entry.inode == UNKNOWN:
            raise GivenUpError("it is being written")
        return StagedFile(entry.name, entry.size, entry.time, entry.mode, node, entry.target)

    def is_here(self, each: Item) -> bool:
        """Return whether this node has an item of the view."""
        return self._owner(each) == self.index

    def lack(self, contents: Contents, older: Sequence[Contents] = ()) -> tuple[str, str]:
        """Return why another checkpoint like this does not fit, and on which host; ("", "") if it
        does. Each node needs room for its own files and for those of its buddy. `older` may make
        room.
        """
        buddy = buddies({n: self.hosts.get(n, "") for n in self.inventories})
        needed, freed = (defaultdict[int, int](int) for _ in range(2))
        for each, sizes in ((contents, needed), *((c, freed) for c in older)):
            for file in (i for i in each.items if i.is_file):
                sizes[owner := self._owner(file)] += file.stat.st_size
                if sizes is needed and owner in buddy:
                    needed[buddy[owner]] += file.stat.st_size
        for node, size in needed.items():
            if node in self.inventories:
                left = self.inventories[node].free
                if why := left._replace(free=left.free + freed[node]).lack(size, 1):
                    return why, self.hosts.get(node, "")
        return "", ""

    def _owner(self, each: Item) -> int:
        with contextlib.suppress(FileNotFoundError):  # deleted by the script
            return self.index if self._view is None else self._view.shown(each).node
        return self.index

    # Orders

    def copy(
        self,
        items: Sequence[Item],
        source: str,
        drafted: str,
        between: Between,
        *,
        essential: Collection[str] = frozenset(),
        in_memory: bool = False,
    ) -> None:
        """Copy items into a draft on storage: each node its own, this one those below `source`.
        Raises OSError, GivenUpError, and what `between` raises.
        """
        elsewhere = self._elsewhere(items)
        if not elsewhere:
            copy(items, source, drafted, self._launch.root, between)
            return
        names = {entry.name for entries in elsewhere.values() for entry in entries}
        mine = sum(i.stat.st_size for i in items if i.is_file and i.name not in names)
        calls = {
            node: self.peers[node].copy(entries, essential, drafted, in_memory=in_memory)
            for node, entries in elsewhere.items()
            if node in self.peers
        }
        try:
            here = [each for each in items if each.name not in names and not each.is_folder]
            copy(here, source, drafted, self._launch.root, self._with(calls, between))
            self._await(calls, drafted, mine, between)
        finally:
            for call in calls.values():
                call.cancel()
        if calls.keys() != elsewhere.keys():
            raise GivenUpError("a node is lost")
        folders = [each for each in items if each.is_folder]
        copy(folders, source, drafted, self._launch.root, at_once)

    def _elsewhere(self, items: Iterable[Item]) -> dict[int, list[Entry]]:
        """Return the files that other nodes have to copy. A small one is whole in the view."""
        found: dict[int, list[Entry]] = {}
        view = self._view
        if view is None:
            return found
        for each in items:
            node, entry = view.shown(each)
            is_whole = each.stat.st_size <= WHOLE and entry.inode != UNKNOWN
            if each.is_file and node != self.index and not is_whole:
                found.setdefault(node, []).append(entry)
        return found

    def hold(self, contents: Contents, held: str, *, in_memory: bool) -> None:
        """Keep what this node copies by hard links in `held`, or its own files by copies."""
        own = [each for each in contents.items if in_memory and self.is_here(each)]
        copy(own, self._launch.root, held, self._launch.root, at_once)
        names = {each.name for each in own}
        hold([i for i in contents.items if i.name not in names], self._launch.root, held)

    def _with(self, calls: Mapping[int, Call], between: Between) -> Between:
        """Return what to do between two pieces while others copy, too."""

        def both(done: int, took: float) -> int:
            threads = between(done + sum(call.done_bytes for call in calls.values()), took)
            for call in calls.values():
                call.is_urgent = threads > 1
            return threads

        return both

    def _await(self, calls: Mapping[int, Call], drafted: str, mine: int, between: Between) -> None:
        both = self._with(calls, between)
        for call in calls.values():
            call.add_done_callback(lambda _: self._requests.wake())
        while any(not call.done() for call in calls.values()):
            if any(node not in self.peers for node in calls):
                raise GivenUpError("a node is lost")
            os.utime(drafted)  # else another launch would take it for abandoned
            both(mine, TICK)
            self._requests.serve(TICK)
        for call in calls.values():
            try:
                call.result()
            except FileNotFoundError as e:
                raise GivenUpError("the script has deleted it") from e
            except GivenUpError as e:
                raise RewrittenError(str(e)) from e

    def fetch(
        self, wanted: Mapping[int, Sequence[Wanted]], generation: str = ""
    ) -> dict[int, OSError | GivenUpError]:
        """Have nodes fetch files, as in `StageNode.fetch`, and wait. Return the failures."""
        living = {n: some for n, some in wanted.items() if n in self}
        return self.wait({n: self[n].fetch(some, generation) for n, some in living.items()})

    def delete(self, entries: Mapping[int, Iterable[Entry]]) -> None:
        """Have nodes delete files, and directories that are empty then."""
        self.wait(
            {n: self[n].delete(with_folders(some)) for n, some in entries.items() if n in self}
        )

    def note(self, record: str) -> None:
        """Have the other nodes keep the record, in case one of them leads next."""
        if record != self._noted:
            self._noted = record
            self.wait({node: peer.note(record) for node, peer in self.peers.items()})

    def delete_all(self, contents: Contents) -> None:
        """Have all nodes delete their files of a checkpoint."""
        assert self._view is not None, "there are several nodes"
        shown = (self._view.shown(each).entry for each in contents.items if not each.is_folder)
        identities = {entry.name: entry.identity for entry in shown}
        self.delete(
            {
                node: [e for e in found.entries if identities.get(e.name) == e.identity]
                for node, found in self.inventories.items()
            }
        )


def wanted(fetches: Iterable[Fetch], manifest: Manifest) -> dict[int, list[Wanted]]:
    """Return what each node fetches, the decisive file last."""
    found: dict[int, list[Wanted]] = {}
    for each in sorted(fetches, key=lambda each: each.file.name == manifest.decisive):
        kept = manifest.generation if each.is_kept else ""
        found.setdefault(each.node, []).append(Wanted(entry_of(each.file), each.source, kept))
    return found


def entry_of(file: StagedFile) -> Entry:
    return Entry(file.name, file.mode, file.size, file.time, 0, file.target)


def with_folders(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries and the directories above them."""
    found = {each.name: each for each in entries}
    parents = {str(parent) for name in found for parent in Path(name).parents} - {HERE}
    return [*found.values(), *(Entry(name, stat.S_IFDIR, 0, 0, 0) for name in parents)]
