"""Decide, while workers run, which generation the buddies keep, which copies they drop, and which
files to delete on all nodes because the script has deleted them on one.

The stager that leads has one `Replication`, and gives it each new look at the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

from ..protocol.values import field, value
from .choice import choice, known_generations
from .copies import Transfer, is_kept, is_safe, keeping
from .files import StagedFile
from .generations import Holding, LastRestore, Manifest

# Events


@value()
class Survey:
    """A look at all living nodes, and the checkpoints there: the complete ones, the newest first,
    and the others.
    """

    found: Sequence[Manifest]
    holdings: Sequence[Holding]
    incomplete: Sequence[Manifest] = ()


@value(frozen=True)
class KeepEnded:
    """The end of what `Keep` had ordered."""

    node: int
    is_done: bool  # False: a copy failed, or the node is lost


# Effects


@value(frozen=True)
class Keep:
    """Have a node record the manifest, and fetch these files for it. Answer with KeepEnded."""

    node: int
    manifest: Manifest
    transfers: tuple[Transfer, ...]


@value(frozen=True)
class Drop:
    """Have a node remove a generation that it keeps."""

    node: int
    generation: str


@value(frozen=True)
class DropFetched:
    """Have a node remove copies from its staging directory that came from other nodes."""

    node: int
    names: frozenset[str]


@value(frozen=True)
class Delete:
    """The script has deleted a checkpoint on one node. Delete its files on the others if they are
    unchanged, and on storage once a newer checkpoint is there.
    """

    manifest: Manifest
    left: dict[int, tuple[StagedFile, ...]]  # by node


Event: TypeAlias = Survey | KeepEnded
Effect: TypeAlias = Keep | Drop | DropFetched | Delete


@value()
class LastLook:
    """The own files of complete checkpoints that one node had at the last look."""

    restore: LastRestore
    checkpoints: dict[str, tuple[Manifest, frozenset[str]]] = field(default_factory=dict)


class Replication:
    def __init__(self, leader: int) -> None:
        """`leader` is the node of this stager."""
        self._leader = leader
        self._making_safe: Manifest | None = None  # being copied to buddies
        self._keeping: set[int] = set()  # nodes that have not answered a Keep
        self._last: dict[int, LastLook] = {}  # by node
        self._found: set[str] = set()  # the generations of the last look
        self._deleted: dict[str, Manifest] = {}  # by the script; some node still has files
        self._dropped: set[tuple[int, str]] = set()  # fetched copies, by node and name

    def handle(self, event: Event) -> list[Effect]:
        if isinstance(event, KeepEnded):
            self._keeping.discard(event.node)
            if not event.is_done:
                self._making_safe = None
            return []
        # The looks at several nodes are not simultaneous, so one may show files of two saves as one
        # checkpoint. So a checkpoint counts only once two looks in a row have shown it.
        found = [m for m in event.found if m.generation in self._found]
        holdings, self._found = event.holdings, {m.generation for m in event.found}
        self._keeping &= {h.node for h in holdings}
        # One that is older than a complete one is not just being saved.
        stale = [m for m in event.incomplete if any(f.time > m.time for f in event.found)]
        effects = self._delete(event.found, holdings, stale)
        self._making_safe = newest = self._next(found, holdings)
        if newest is not None:
            effects += self._drop(newest, found, holdings)
            effects += self._keep(newest, holdings, {e.node for e in effects if type(e) is Drop})
        return effects

    # What is kept

    def _next(self, found: Sequence[Manifest], holdings: Sequence[Holding]) -> Manifest | None:
        """Return the generation to copy to buddies. Finish the one that was begun before taking the
        newest: a script that saves often would otherwise never have a complete copy.
        """
        if self._making_safe is not None:
            begun = known_generations(found, holdings).get(self._making_safe.generation)
            if begun and not is_safe(begun, holdings) and keeping(begun, holdings):
                return begun
        return choice(found, holdings)

    def _drop(
        self, newest: Manifest, found: Sequence[Manifest], holdings: Sequence[Holding]
    ) -> list[Effect]:
        """Drop all kept generations except `newest` and, until `newest` is safe, the newest other
        one whose needed files are all kept.
        """
        retained = {newest.generation}
        effects: list[Effect] = []
        if is_safe(newest, holdings):
            effects += self._drop_fetched(newest, holdings)
        else:
            known = known_generations(found, holdings)
            kept = {name for name, m in known.items() if is_kept(m, holdings)}
            retained.add(max(kept - retained, default=""))
        effects += (
            Drop(h.node, kept.manifest.generation)
            for h in holdings
            if h.node not in self._keeping
            for kept in h.kept
            if kept.manifest.generation not in retained
        )
        return effects

    def _keep(
        self, newest: Manifest, holdings: Sequence[Holding], dropping: Collection[int]
    ) -> list[Effect]:
        """Have the buddies keep a generation. A node that has to drop another one begins to keep
        this one only after the next look.
        """
        by_node: dict[int, list[Transfer]] = {}
        for transfer in keeping(newest, holdings):
            if transfer.node not in self._keeping and transfer.node not in dropping:
                by_node.setdefault(transfer.node, []).append(transfer)
        self._keeping |= by_node.keys()
        return [Keep(node, newest, tuple(some)) for node, some in by_node.items()]

    # What is in the staging directories

    def _drop_fetched(self, newest: Manifest, holdings: Sequence[Holding]) -> list[Effect]:
        """Drop restored files once a newer checkpoint is safe, except on two nodes: the one that
        has saved the decisive file, whose script may look for them, and the leader's, whose agent
        searches for checkpoints.
        """
        users = {self._leader, newest.decisive_file.owner}
        effects: list[Effect] = []
        for h in holdings:
            names = h.fetched - {f.name for f in newest.files if h.has(f)}
            if names and h.node not in users and newest.generation > h.restore.generation:
                self._dropped |= {(h.node, name) for name in names}
                effects.append(DropFetched(h.node, names))
        return effects

    def finish(self, found: Sequence[Manifest], holdings: Sequence[Holding]) -> list[Effect]:
        """Delete what the script has deleted since the last look. Call this before a restore and at
        the end. This also forgets the earlier looks: the restore removes files, even if it fails,
        and these do not count as deleted by the script.
        """
        effects = self._delete(found, holdings)
        self._last, self._deleted, self._dropped = {}, {}, set()
        return effects

    def _delete(
        self,
        found: Sequence[Manifest],
        holdings: Sequence[Holding],
        stale: Sequence[Manifest] = (),
    ) -> list[Effect]:
        """Delete what the script has deleted."""
        for h in holdings:
            self._deleted |= self._gone(h)
            self._last[h.node] = self._seen(h, (*found, *stale))
        staying = (m for m in found if m.generation not in self._deleted)
        others = {(f.name, f.identity) for m in staying for f in m.files}
        effects: list[Effect] = []
        for name, manifest in list(self._deleted.items()):
            own = manifest.own
            files = [
                f for f in manifest.files if f.name in own and (f.name, f.identity) not in others
            ]
            left = {h.node: tuple(f for f in files if h.has(f)) for h in holdings}
            effects.append(Delete(manifest, {node: some for node, some in left.items() if some}))
            if not any(left.values()):
                del self._deleted[name]
        return effects

    def _gone(self, holding: Holding) -> dict[str, Manifest]:
        """Return the checkpoints that the script has deleted on this node: the node had the
        decisive file at the last look, has no file of the checkpoint now, and no restore was
        completed in between. Files of a lost node do not count as deleted.
        """
        last = self._last.get(holding.node, LastLook(holding.restore))
        if last.restore != holding.restore:
            self._deleted = {}  # the restore may have brought them back
            self._dropped = {each for each in self._dropped if each[0] != holding.node}
            return {}
        dropped = {name for node, name in self._dropped if node == holding.node}
        return {
            generation: manifest
            for generation, (manifest, names) in last.checkpoints.items()
            if manifest.decisive in names - dropped and not names & holding.files.keys()
        }

    def _seen(self, holding: Holding, found: Sequence[Manifest]) -> LastLook:
        """Return what to compare with at the next look. It includes checkpoints of the last look
        that are no longer complete, for example because another node was lost: the script may still
        delete them on this one.
        """
        last = self._last.get(holding.node, LastLook(holding.restore))
        seen = {}
        for manifest in (*(m for m, _ in last.checkpoints.values()), *found):
            held = frozenset(f.name for f in manifest.files if holding.has(f))
            if not holding.restore.number:
                held -= holding.fetched  # left by a restore that has failed: no worker has run here
            if names := held & manifest.own:
                seen[manifest.generation] = manifest, names
        if last.restore == holding.restore:  # else files may have been removed by the restore
            seen |= {g: c for g, c in last.checkpoints.items() if g in seen}
        return LastLook(holding.restore, seen)
