"""The orders that follow from the decisions of `core/staging/replication.py`, for the stager that
leads several nodes: each checkpoint is copied to other nodes while it is drained, and what is not
needed any more is deleted.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import Manifest, manifest
from hpclaunch.core.staging.replication import (
    Delete,
    Drop,
    DropFetched,
    Keep,
    KeepEnded,
    Replication,
    Survey,
)

from . import orders
from .contents import HERE, Contents, is_part, names_any, notes
from .orders import Call

if TYPE_CHECKING:
    from .nodes import Nodes

AGAIN = 10.0  # seconds until a node is to keep something again, after an error there


class Loan(NamedTuple):
    """Files that a node holds because others fetch them."""

    receivers: frozenset[int] = frozenset()  # the nodes that fetch
    size: int = 0  # bytes


class Replicating:
    """The replication by one stager."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._replication: Replication | None = None
        self._ended: list[KeepEnded] = []
        self._keeping: dict[int, Call[None]] = {}  # by the node that fetches
        self._loans: dict[int, Loan] = {}  # by lender
        self._again: dict[int, float] = {}  # when a node is to keep something again
        self._full: dict[int, int] = {}  # nodes without room, and their last restore

    def note_ended(self) -> None:
        """Note which copies have ended. Call this before a look, which then shows them."""
        for node, call in list(self._keeping.items()):
            if call.done() or node not in self._nodes:
                del self._keeping[node]
                why = call.exception() if call.done() else None
                if isinstance(why, OSError) and not isinstance(why, FileNotFoundError):
                    self._again[node] = time.monotonic() + AGAIN
                self._ended.append(KeepEnded(node, call.done() and why is None))

    def cancel_keeping(self) -> None:
        """Cancel the copies that are not complete. A later look decides anew."""
        for call in self._keeping.values():
            call.cancel()

    def drop_all(self, node: int) -> None:
        """Have a node that has no room keep nothing until the next restore."""
        self._full[node] = self._nodes.inventories[node].restore.number
        if node in self._keeping:
            self._keeping[node].cancel()

    def look(self, found: Sequence[Manifest], incomplete: Sequence[Manifest]) -> None:
        """Give the orders that follow from a look that has found these checkpoints."""
        nodes = self._nodes
        if self._replication is None:
            self._delete_rest()
            self._replication = Replication(nodes.index)
            # The last leader may have left loans. An empty loan makes its node release them.
            self._loans = dict.fromkeys(nodes.inventories, Loan())
        while self._ended:
            self._replication.handle(self._ended.pop())
        # Drop first: it makes room.
        effects = self._replication.handle(Survey(found, nodes.holdings, incomplete))
        drops = [(e.node, e.generation) for e in effects if type(e) is Drop]
        full = [n for n in self._full if self._is_full(n) and n not in self._keeping]
        drops += ((n, k.manifest.generation) for n in full for k in nodes.inventories[n].kept)
        for node, generation in drops:
            if node in nodes:
                nodes.wait({node: nodes[node].ask(orders.Drop(generation))})
        keeps = [e for e in effects if type(e) is Keep and self._may_keep(e)]
        self._lend(keeps)
        failed = nodes.wait(
            {e.node: nodes[e.node].ask(orders.Keep(e.manifest)) for e in keeps if e.node in nodes}
        )
        for effect in effects:
            match effect:
                case Keep(node=node, manifest=kept, transfers=transfers):
                    if node in failed or effect not in keeps or node not in nodes:
                        self._replication.handle(KeepEnded(node, is_done=False))
                    else:
                        order = orders.Fetch(transfers, kept.generation)
                        self._keeping[node] = nodes[node].ask(order)
                case Delete():
                    self._delete(effect)
                case DropFetched(node=node, names=names):
                    self._drop(node, names)

    def _lend(self, keeps: Sequence[Keep]) -> None:
        """Have nodes hold what others fetch from them: the script may delete it. A node releases
        its files once no receiver fetches any longer, or when the next save needs the room.
        """
        nodes, entries = self._nodes, defaultdict[int, list[StagedFile]](list)
        before, self._loans = self._loans, {}
        for keep in keeps:
            for each in keep.transfers:
                if not each.kept:
                    entries[each.source].append(each.file)
                    loan = self._loans.get(each.source, Loan())
                    size = loan.size + each.file.size
                    self._loans[each.source] = Loan(loan.receivers | {keep.node}, size)
        for node in (before.keys() & nodes.inventories.keys()) - entries.keys():
            loan, free = before[node], nodes.inventories[node].free
            if loan.receivers & self._keeping.keys() and not free.lack(loan.size, 1):
                self._loans[node] = loan
            else:
                entries[node] = []
        lends = {n: orders.Lend(tuple(some)) for n, some in entries.items()}
        nodes.wait({n: nodes[n].ask(order) for n, order in lends.items() if n in nodes})

    def _may_keep(self, keep: Keep) -> bool:
        """Return whether a node may begin to keep this, and has room for its part of the next save
        then.
        """
        node, found = keep.node, self._nodes.inventories[keep.node]
        size = sum(each.file.size for each in keep.transfers)
        size += sum(file.size for file in keep.manifest.files if file.owner == node)
        is_late = time.monotonic() >= self._again.get(node, 0.0)
        may_begin = is_late and not self._nodes.is_quiet
        return may_begin and not self._is_full(node) and not found.free.lack(size, 1)

    def _is_full(self, node: int) -> bool:
        found = self._nodes.inventories.get(node)
        return found is not None and self._full.get(node) == found.restore.number

    def finish(self, found: Sequence[Manifest]) -> bool:
        """Delete what the script has deleted before this look, which has found these checkpoints.
        Return whether anything was left of it.
        """
        if self._replication is None:
            return self._delete_rest()
        effects = self._replication.finish(found, self._nodes.holdings)
        deletions = [effect for effect in effects if isinstance(effect, Delete)]
        for effect in deletions:
            self._delete(effect)
        return any(effect.left for effect in deletions)

    def _delete(self, effect: Delete) -> None:
        deleted = effect.manifest
        # Share it first: if this stager is lost, the next leader deletes what is left. Record it
        # even if storage does not have it yet.
        self._nodes.launch.record.add_deleted(deleted.key, deleted.time)
        self._nodes.share()
        self._nodes.delete_at(effect.left, set(deleted.moved) - {HERE})

    def _delete_rest(self) -> bool:
        """Delete what the last leader has not deleted on all nodes, although the script has deleted
        it on one. Later files of the same names are of another save. Return whether there was any.
        """
        nodes, record = self._nodes, self._nodes.launch.record
        left: dict[int, list[StagedFile]] = defaultdict(list)
        moved: set[str] = set()
        for key, saved in record.deleted.items():
            paths = set(record.moved.get(key, ())) if key != HERE else set()
            moved |= paths
            for node, found in nodes.inventories.items():
                entries = (e for e in found.entries if is_part(e.name, paths))
                left[node] += (e for e in entries if not e.is_folder and e.time <= saved)
        nodes.delete_at(left, moved)
        return any(left.values())

    def _drop(self, node: int, fetched: Collection[str]) -> None:
        """Drop fetched files, but only those of checkpoints: the script may append to others."""
        restored = self._nodes.restored
        found = (e for e in self._nodes.inventories[node].entries if e.name in fetched)
        self._nodes.delete_at({node: [e for e in found if is_part(e.name, restored)]}, restored)

    def manifest(self, contents: Contents) -> Manifest:
        """Return the manifest of a checkpoint, with the trackers and links that name it. Raises
        OSError and GivenUpError.
        """
        root, candidate = self._nodes.launch.root, contents.found.candidate
        is_root = contents.key == HERE
        items = [i for i in contents.items if not i.is_folder]
        items = [i for i in items if not is_root or i.name in contents.essential]
        names = {each.name for each in items}
        items += (
            each
            for each in notes(root, contents.key, candidate.beside, ())
            if each.name not in names
            and (each.is_link or names_any(os.path.join(root, each.name), [candidate]))
        )
        files = [self._nodes.staged(each) for each in items]
        return manifest(contents.key, files, contents.decisive, contents.essential, contents.moved)
