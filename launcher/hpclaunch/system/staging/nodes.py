"""The memory of a launch on several nodes, for the stager that leads: what the nodes have, and
orders to them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hpclaunch.core.staging.choice import mixtures
from hpclaunch.core.staging.copies import Transfer, buddies
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import Holding, Manifest

from .contents import Contents, is_part
from .copying import Between, GivenUpError, LostError, RewrittenError, copy, reason
from .fetching import Source
from .launch import Launch
from .memory import Memory
from .messages import Follow, Lead, Listening, Secret
from .node import Inventory, StageNode
from .orders import Call, Copy, Delete, Fetch, LocalNode, Look, Node, Note
from .replicating import Replicating
from .requests import Requests
from .view import UNKNOWN, WHOLE, View

if TYPE_CHECKING:
    from .mesh import Mesh

PATIENCE = 60.0  # seconds for which `refresh_soon` waits for nodes that do not answer
TICK = 0.1  # seconds between two looks at the copies of other nodes
PERIOD = 1.0  # seconds between two looks at the other nodes, once the agent is dead
T = TypeVar("T")
NOTHING: Mapping[int, Collection[int]] = {}
Failures = dict[int, OSError | GivenUpError]  # by node


class Nodes(Memory):
    """The nodes that this stager leads, by index, itself among them. `holdings` and the view are
    as of the last `refresh`.
    """

    def __init__(self, launch: Launch, requests: Requests) -> None:
        super().__init__(launch)
        self.leads = False
        self._requests = requests
        self._view: View | None = None  # once it has led
        self.index = 0
        self.hosts: dict[int, str] = {}
        self._lease = 0.0  # of the workers of other nodes: see Lead
        self.peers: Mapping[int, Node] = {}  # without itself
        self.holdings: list[Holding] = []
        self.inventories: dict[int, Inventory] = {}
        self.own = StageNode(launch.stage, launch.storage)
        self._local = LocalNode(self.own, self.sources)
        self._noted = ""  # the record that other nodes have
        self.restored: set[str] = set()  # the paths of checkpoints that were restored
        self._last: dict[str, Manifest] = {}  # the checkpoints of the last look, by their keys
        self._mesh: Mesh | None = None
        requests.on_peers = self.on_request
        self._replicating = Replicating(self)

    def on_request(self, request: Secret | Lead | Follow) -> None:
        """Do what the agent asks about the other nodes."""
        match request:
            case Secret(key=key):
                from .mesh import Mesh  # tests lead nodes without it

                self._mesh = Mesh(bytes.fromhex(key), self.own)
                self._requests.send(Listening(self._mesh.port))
            case Lead(index=index) if self._mesh is not None:
                self._mesh.lead(request.term, index, request.peers)
                hosts = {each.index: each.host for each in request.peers} | {index: request.host}
                self.lead(index, self._mesh.peers, hosts, request.term, request.lease)
            case Follow() if self._mesh is not None:
                self._mesh.follow()
                self._follow()

    def lead(
        self,
        index: int,
        peers: Mapping[int, Node],
        hosts: dict[int, str],
        term: int = 0,
        lease: float = 0.0,
    ) -> None:
        """Lead these nodes. `index` is that of this one, which is not among the `peers`."""
        if not self.leads:
            self.led_since = time.time_ns()
            self.launch.record.load(self.own.noted)  # as the last leader has left it
            self.own.noted = ""
            self._replicating = Replicating(self)
            self._view = View(self.launch.stage)
            self.launch.look_into(self._view.root)
        self.leads, self.index, self.peers, self.term = True, index, dict(peers), term
        self.hosts, self._lease, self._noted = hosts, lease, ""

    def _follow(self) -> None:
        self.leads, self.peers = False, {}
        if self._view is not None:
            self._view.remove()

    def sources(self) -> dict[int, Source]:
        return {**self.peers, self.index: self._local}

    def __getitem__(self, index: int) -> Node:
        return self._local if index == self.index else self.peers[index]

    def __contains__(self, index: int) -> bool:
        return index == self.index or index in self.peers

    # What they have

    def refresh(self) -> None:
        if self._view is None:
            return
        if self._mesh is not None and self._mesh.term > self.term:
            self._follow()
        if not self.leads:
            raise GivenUpError("another stager leads")
        self._replicating.note_ended()
        self._view.free(self.index)
        calls = {n: self[n].ask(Look()) for n in sorted({self.index, *self.peers})}
        failed = self.wait(calls)
        if not self.leads:  # since a moment
            raise GivenUpError("another stager leads")
        for node, why in failed.items():
            # The agent reports lost nodes. If it is dead, a node whose stager has ended is lost.
            has_ended = self._requests.is_gone and isinstance(why, ConnectionResetError)
            if node in self and not has_ended:
                if self._requests.is_gone and isinstance(why, ConnectionRefusedError):
                    self._follow()  # no agent is there to make this stager lead again
                # Do not continue without it: another stager may lead by now, and have drained
                # something newer.
                raise why
        self.inventories = {n: c.result() for n, c in calls.items() if n not in failed}
        self.holdings = [
            Holding(
                node,
                self.hosts.get(node, ""),
                {e.name: e.identity for e in found.entries if not e.is_folder},
                found.old,
                found.fetched,
                found.kept,
                found.restore,
            )
            for node, found in self.inventories.items()
        ]
        self._view.update(self.index, self.inventories, self.holdings, self.sources())

    def refresh_soon(self) -> None:
        """Refresh once all nodes answer; the agent removes those that are lost. Give way to a
        flush, since the agent waits for nothing else then.
        """
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.refresh()
                return
            except (OSError, GivenUpError):
                if time.monotonic() >= until or not self.leads or self._requests.has_flush:
                    raise
                self._pause()

    def await_workers(self) -> None:
        until = time.monotonic() + self._lease
        while self.leads and time.monotonic() < until:
            with contextlib.suppress(OSError, GivenUpError):
                self.refresh()
                if len(self.inventories) == 1:  # the others have ended with their agents
                    return
            time.sleep(PERIOD)

    def wait(
        self,
        calls: Mapping[int, Call[T]],
        needed: Mapping[int, Collection[int]] = NOTHING,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Failures:
        """Wait for one call of each node. Until then, serve requests and call `meanwhile`, again
        and again. Return the failures. A call fails at once if its node is lost, or one of those
        that are `needed` for it.
        """

        def is_pending(node: int, call: Call[T]) -> bool:
            return not call.done() and all(n in self for n in (node, *needed.get(node, ())))

        for call in calls.values():
            call.add_done_callback(lambda _: self._requests.wake())
        while any(is_pending(node, call) for node, call in calls.items()):
            meanwhile()
            self._pause()
        for call in calls.values():
            call.cancel()
        return {n: why for n, call in calls.items() if (why := self._failure(call)) is not None}

    def _pause(self) -> None:
        """Serve requests for a moment; less if a call ends."""
        if self._requests.is_gone:
            time.sleep(TICK)
        self._requests.serve(TICK)

    def _failure(self, call: Call[Any]) -> OSError | GivenUpError | None:
        """Return why a call has failed; None if it has not."""
        if not call.done():
            return LostError("a node is lost")
        why = call.exception()
        if why is None or isinstance(why, OSError | GivenUpError):
            return why
        raise why

    def staged(self, each: StagedFile) -> StagedFile:
        """Return the file that an item of the view stands for. Raises OSError, and GivenUpError if
        it is just being written.
        """
        assert self._view is not None, "there are several nodes"
        file = self._view.shown(each.name)
        if file.inode == UNKNOWN:
            raise GivenUpError("it is being written")
        return file

    def is_here(self, each: StagedFile) -> bool:
        return self._owner(each) == self.index

    def is_old(self, each: StagedFile) -> bool:
        found = self.inventories.get(self._owner(each))
        return found is not None and each.name in found.old

    def manifests(self, complete: Iterable[Contents]) -> tuple[list[Manifest], list[Manifest]]:
        """Return the manifests of complete checkpoints: first of those that are whole, then of
        fragments, which lack a file that was there before. Some formats do not show that.
        """
        every = list(self._with_manifests(complete))
        return [m for _, m, ok in every if ok], [m for _, m, ok in every if not ok]

    def whole(self, complete: Iterable[Contents]) -> list[Contents]:
        every = [(each, found) for each, found, ok in self._with_manifests(complete) if ok]
        mixed = mixtures([found for _, found in every], self.holdings)
        return [each for each, found in every if found not in mixed]

    def _with_manifests(
        self, complete: Iterable[Contents]
    ) -> Iterator[tuple[Contents, Manifest, bool]]:
        """Yield each checkpoint with its manifest, and whether it has all files that it had."""
        kept = [k.manifest for holding in self.holdings for k in holding.kept]
        before = [(m, _state(m)) for m in (*kept, *self._last.values())]
        self._last = {}
        for each in complete:
            with contextlib.suppress(OSError, GivenUpError):  # just being written or deleted
                found = self._replicating.manifest(each)
                state = _state(found)
                fuller = next((m for m, known in before if state < known), None)
                self._last[found.key] = fuller or found
                yield each, found, fuller is None

    def replicate(self, complete: Sequence[Contents], incomplete: Iterable[Contents] = ()) -> None:
        others = []
        for each in incomplete:
            with contextlib.suppress(OSError, GivenUpError):  # just being written or deleted
                others.append(self._replicating.manifest(each))
        self._replicating.look([self._last[each.key] for each in complete], others)

    def cancel_keeping(self) -> None:
        """Cancel the copies to buddies: what has to be fetched now would take longer."""
        self._replicating.cancel_keeping()

    def drop_kept(self, host: str) -> None:
        for node in self.inventories:
            if self.hosts.get(node) == host:
                self._replicating.drop_all(node)

    def delete_rest(self, complete: Sequence[Contents]) -> None:
        if self._replicating.finish([self._last[each.key] for each in complete]):
            with contextlib.suppress(OSError, GivenUpError):
                self.refresh()

    def deleted(self, vanished: set[str]) -> set[str]:
        record = self.launch.record
        record.forget_deleted(record.deleted.keys() - vanished)
        return set(record.deleted)

    def lack(self, newest: Contents, older: Sequence[Contents] = ()) -> tuple[str, str]:
        """Return what `Memory.lack` does. Each node needs room for its own files of the next
        checkpoint, and for those of the node whose buddy it is: for a while, it keeps two
        generations of these. This one also needs room for the skeletons of others (`view.py`).
        """
        buddy = buddies({n: self.hosts.get(n, "") for n in self.inventories})
        needed, freed = (defaultdict[int, int](int) for _ in range(2))
        for each, sizes in ((newest, needed), *((c, freed) for c in older)):
            for file in (i for i in each.items if i.is_file):
                sizes[owner := self._owner(file)] += file.size
                if owner != self.index:
                    sizes[self.index] += min(file.size, WHOLE)
                if sizes is needed and (other := buddy.get(owner)) is not None:
                    number = 1 if self.inventories[other].kept else 2
                    needed[other] += number * file.size
        for node, size in needed.items():
            if node in self.inventories:
                left = self.inventories[node].free
                if why := left._replace(free=left.free + freed[node]).lack(size, 1):
                    return why, self.hosts.get(node, "")
        return "", ""

    def _owner(self, each: StagedFile) -> int:
        with contextlib.suppress(FileNotFoundError):  # deleted by the script
            return self.index if self._view is None else self._view.shown(each.name).owner
        return self.index

    # Orders

    def hold(self, contents: Contents, held: str, *, in_memory: bool) -> None:
        super().hold(contents, held, in_memory=in_memory)
        if len({self._owner(each) for each in contents.items if each.is_file}) > 1:
            # The look was not simultaneous. If a second one shows the same files (`Looking.check`),
            # they are of one save.
            try:
                self.refresh()
            except OSError as e:  # no trouble with storage
                raise LostError(reason(e)) from e

    def copy(
        self,
        items: Sequence[StagedFile],
        source: str,
        drafted: str,
        between: Between,
        *,
        essential: frozenset[str] = frozenset(),
        in_memory: bool = False,
    ) -> None:
        elsewhere: dict[int, list[StagedFile]] = {}
        for each in items:
            assert self._view is not None, "it was found in the view"
            file = self._view.shown(each.name)
            is_whole = each.size <= WHOLE and file.inode != UNKNOWN  # in the view
            if each.is_file and file.owner != self.index and not is_whole:
                elsewhere.setdefault(file.owner, []).append(file)
        if lost := elsewhere.keys() - self.peers.keys():
            raise LostError(f"{self.hosts.get(min(lost), 'a node')} is lost")
        others = {file.name for files in elsewhere.values() for file in files}
        folders = [each for each in items if each.is_folder]
        here = [each for each in items if each.name not in others and not each.is_folder]
        name = os.path.basename(drafted)
        calls = {
            node: self.peers[node].ask(Copy(tuple(some), essential, name, in_memory))
            for node, some in elsewhere.items()
        }
        both = _with(calls, between)
        try:
            copy(here, source, drafted, both)
            done = sum(each.size for each in here if each.is_file)
            self._await(calls, drafted, partial(both, done, TICK))
        finally:
            for call in calls.values():
                call.cancel()
        copy(folders, source, drafted, self.launch.storage_thread.meanwhile)

    def _await(
        self, calls: Mapping[int, Call[None]], drafted: str, between: Callable[[], int]
    ) -> None:
        """Wait for nodes that copy into a draft. Raises what has failed."""

        def meanwhile() -> None:
            # Another launch removes drafts that have not changed for long.
            self.launch.storage_thread.run(os.utime, drafted)
            between()

        failed = self.wait(calls, {node: calls.keys() for node in calls}, meanwhile)
        # A node that is lost explains the failures of others, and is no trouble with storage.
        for node in sorted(failed, key=lambda node: not isinstance(failed[node], LostError)):
            why = failed[node]
            if isinstance(why, FileNotFoundError):
                if os.path.basename(str(why.filename)) == os.path.basename(drafted):
                    unseen = f"{self.hosts.get(node, 'a node')} does not see this directory"
                    raise OSError(errno.ENOENT, unseen, drafted) from why
                raise LostError("the script has deleted it") from why
            if isinstance(why, ConnectionError):  # the agent has not reported the loss yet
                raise LostError(reason(why)) from why
            if isinstance(why, GivenUpError) and not isinstance(why, LostError):
                raise RewrittenError(str(why)) from why
            raise why

    def fetch(self, transfers: Iterable[Transfer]) -> Failures:
        """Have nodes fetch files into their staging directories, and wait. Return the failures."""
        by_node: dict[int, list[Transfer]] = {}
        for each in transfers:
            if each.node in self:
                by_node.setdefault(each.node, []).append(each)
        calls = {n: self[n].ask(Fetch(tuple(some))) for n, some in by_node.items()}
        return self.wait(calls, {n: {each.source for each in by_node[n]} for n in calls})

    def delete_at(
        self, entries: Mapping[int, Iterable[StagedFile]], moved: Collection[str] = ()
    ) -> None:
        """Have nodes delete files, and directories of the checkpoints at the paths `moved` that are
        empty then.
        """
        every = {n: _with_folders(some, moved) for n, some in entries.items() if n in self}
        self.wait({n: self[n].ask(Delete(some)) for n, some in every.items() if some})

    def delete(self, contents: Contents) -> None:
        assert self._view is not None, "it was found in the view"
        shown = [self._view.shown(each.name) for each in contents.items if not each.is_folder]
        identities = {file.name: file.identity for file in shown}
        for node, found in self.inventories.items():
            entries = [e for e in found.entries if identities.get(e.name) == e.identity]
            self.delete_at({node: entries}, contents.moved)
            free = found.free.free + sum(each.size for each in entries)  # an estimate
            self.inventories[node] = found._replace(free=found.free._replace(free=free))

    def share(self) -> None:
        if (record := self.launch.record.text) != self._noted:
            self._noted = record
            if self.wait({node: peer.ask(Note(record)) for node, peer in self.peers.items()}):
                self._noted = ""  # one may not have it


def _state(manifest: Manifest) -> set[tuple[str, tuple[int, int]]]:
    return {(file.name, file.identity) for file in manifest.needed}


def _with(calls: Mapping[int, Call[None]], between: Between) -> Between:
    """Return what to do between two pieces while others copy, too."""

    def both(done: int, took: float) -> int:
        threads = between(done + sum(call.done_bytes for call in calls.values()), took)
        for call in calls.values():
            call.hurry(on=threads > 1)
        return threads

    return both


def _with_folders(entries: Iterable[StagedFile], moved: Collection[str]) -> tuple[StagedFile, ...]:
    """Return entries, and the directories above them as far as they belong to checkpoints."""
    found = {each.name: each for each in entries}
    parents = {str(parent) for name in found for parent in Path(name).parents}
    own = (parent for parent in parents if is_part(parent, moved))
    return (*found.values(), *(StagedFile(name, 0, 0, stat.S_IFDIR) for name in own))
