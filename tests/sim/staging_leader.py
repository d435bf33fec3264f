"""The simulated stager that leads: it looks at all nodes, and does what core/staging decides."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from staging_nodes import TRACKER, Activity, Answer, Copies, Data, LostError, Node, call, read

from hpclaunch.core.staging import choice, copies, replication
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import Holding, LastRestore, Manifest, manifest

if TYPE_CHECKING:
    from staging_cluster import Cluster

PERIOD = 1.0
FRESH = 3.0  # seconds; less than the silence after which a leader counts as lost


def complete(
    shown: dict[str, tuple[Data, int]],
) -> list[Manifest]:
    """Return the checkpoints that the search takes for complete, the newest first. It does not see
    tokens, and takes an older file of a checkpoint for one that has not changed.
    """
    return [found for found, is_complete in _checkpoints(shown) if is_complete]


def incomplete(shown: dict[str, tuple[Data, int]]) -> list[Manifest]:
    """Return the checkpoints of which the decisive file is there, but not all others."""
    return [found for found, is_complete in _checkpoints(shown) if not is_complete]


def _checkpoints(shown: dict[str, tuple[Data, int]]) -> list[tuple[Manifest, bool]]:
    """Return the checkpoints, the newest first, and whether each is complete."""
    found = []
    for name, (decisive, _) in shown.items():
        if decisive.world and decisive.is_whole:
            key = name.rpartition("/")[0] or name
            shards = [f"{key}/shard-{rank}" for rank in range(decisive.world)]
            names = [name] if key == name else [*shards, *_config(key, shown), name]
            parts = [(n, *shown[n]) for n in names if n in shown]
            is_complete = len(parts) == len(names) and all(
                data.is_whole and data.time <= decisive.time for _, data, _ in parts
            )
            essential = frozenset(n for n, *_ in parts)
            if TRACKER in shown and shown[TRACKER][0].token == decisive.token:
                parts.insert(0, (TRACKER, *shown[TRACKER]))
            files = [StagedFile(n, d.size, d.time, owner=node) for n, d, node in parts]
            made = manifest(key, files, name, essential, (key,))
            found.append((made, is_complete))
    return sorted(found, key=lambda each: each[0].time, reverse=True)


def _config(key: str, shown: dict[str, tuple[Data, int]]) -> list[str]:
    return [name] if (name := f"{key}/config") in shown else []


class Leader:
    """The leader of one term."""

    def __init__(self, cluster: Cluster, node: Node, term: int, peers: Sequence[int]) -> None:
        self.cluster, self.world, self.node, self.term = cluster, cluster.world, node, term
        self.peers = tuple(peers)  # the living nodes, as the head says
        self.number = 0  # of the last restore that it was asked for
        self.is_restoring = False
        self.replication = replication.Replication(node.index)
        self._draining: Manifest | None = None
        self._drained: set[str] = set()  # generations
        self.world.spawn(self._watch(), node)

    def _call(self, node: int, work: Activity) -> Answer:
        order = self.term, self.number
        return call(self.world, self.node, self.cluster.nodes[node], order, lambda: work)

    def _all(self, answers: Iterable[Answer]) -> Generator[Answer, None, list[Any]]:
        """Wait for all answers. Raises LostError if one order has failed."""
        answers = list(answers)
        for answer in answers:
            yield answer
        for answer in answers:
            if (error := answer.value[1]) is not None:
                raise error
        return [answer.value[0] for answer in answers]

    def look(self) -> Generator[Answer, None, tuple[list[Manifest], list[Holding]]]:
        """Return the complete checkpoints of the view, and what each node has."""
        found, holdings, _ = yield from self.look_at_all()
        return found, holdings

    def look_at_all(
        self,
    ) -> Generator[Answer, None, tuple[list[Manifest], list[Holding], list[Manifest]]]:
        """Return the same, and the incomplete checkpoints."""

        def inventory(node: Node) -> Activity:
            return node.inventory()
            yield

        peers = self.peers
        reports = yield from self._all(
            self._call(n, inventory(self.cluster.nodes[n])) for n in peers
        )
        holdings = [holding for holding, _ in reports]
        data = {holding.node: files for holding, files in reports}
        view = choice.shown(holdings)
        shown = {n: (data[h.node][n], h.node) for n, h in view.items()}
        return complete(shown), holdings, incomplete(shown)

    # While workers run

    def _watch(self) -> Activity:
        while True:
            yield PERIOD
            if self.is_restoring:
                continue
            try:
                number = self.number
                found, holdings, others = yield from self.look_at_all()
            except LostError:
                continue
            if self.is_restoring or number != self.number:
                continue
            for effect in self.replication.handle(replication.Survey(found, holdings, others)):
                self._perform(effect)
            mixed = choice.mixtures(found, holdings)
            newest = next((m for m in found if m not in mixed), None)
            if newest and self._draining is None and newest.generation not in self._drained:
                self._draining = newest
                self.world.spawn(self._drain(newest), self.node)

    def _perform(self, effect: replication.Effect) -> None:
        self.world.say(f"leader {self.node.index}: {short(effect)}")
        nodes = self.cluster.nodes
        match effect:
            case replication.Keep(node=node):
                self.world.spawn(self._keep(effect), self.node)
            case replication.Drop(node=node, generation=generation):

                def drop() -> Activity:
                    nodes[node].kept.pop(generation, None)
                    return
                    yield

                self._call(node, drop())
            case replication.DropFetched(node=node, names=names):

                def drop_fetched() -> Activity:
                    nodes[node].drop_fetched(names)
                    return
                    yield

                self._call(node, drop_fetched())
            case replication.Delete(manifest=deleted, left=left):
                self.cluster.checker.deleting(deleted)
                for node, files in left.items():
                    self._call(node, self._remove(nodes[node], files))
                self.cluster.delete_stored(deleted)

    def _remove(self, node: Node, files: Iterable[StagedFile]) -> Activity:
        node.remove(files)
        return
        yield

    def _keep(self, effect: replication.Keep) -> Activity:
        node, name = self.cluster.nodes[effect.node], effect.manifest.generation

        def keep() -> Activity:
            if name not in node.kept and len(node.kept) >= 2:
                raise LostError("two generations are kept")
            node.kept.setdefault(name, Copies(effect.manifest))
            for transfer in effect.transfers:
                data = yield from read(self.world, self.cluster.nodes, transfer)
                if name in node.kept:
                    node.kept[name].files[transfer.file.name] = data
                    self.cluster.checker.kept(effect.manifest, transfer.file.name, node)

        _, error = yield self._call(effect.node, keep())
        self.replication.handle(replication.KeepEnded(effect.node, error is None))

    def _drain(self, newest: Manifest) -> Activity:
        """Copy a generation to storage, and publish it if no file has changed meanwhile."""
        rng, nodes, number = self.world.rng, self.cluster.nodes, self.number
        draft: dict[str, Data] = {}

        def copy(node: Node, files: list[StagedFile]) -> Activity:
            for file in files:
                data = node.find(file, "")
                yield rng.uniform(0.05, 1.0)
                if node.find(file, "") != data:
                    raise LostError("changed")
                draft[file.name] = data

        try:
            owners = sorted({f.owner for f in newest.files})
            yield from self._all(
                self._call(o, copy(nodes[o], [f for f in newest.files if f.owner == o]))
                for o in owners
            )
            began = self.world.now
            found, holdings = yield from self.look()
            if self.world.now > began + FRESH:
                raise LostError("another leader may have published since")
            same = next((m for m in found if m.generation == newest.generation), None)
            if same and same not in choice.mixtures(found, holdings) and self.number == number:
                self.cluster.publish(newest, draft)
                self._drained.add(newest.generation)
        except LostError:
            pass
        finally:
            self._draining = None

    # Between rounds

    def restore(self, number: int, participants: Sequence[int], peers: Sequence[int]) -> Activity:
        """Give all nodes of the next round the newest generation. Return False if that fails."""
        self.peers, self.number, self.is_restoring = tuple(peers), number, True
        work, value = self._restore(number, participants), None
        try:
            while self.number == number:  # else another one has begun
                value = yield work.send(value)
        except LostError as e:
            self.world.say(f"leader {self.node.index}: the restore has failed: {e}")
        except StopIteration:
            self.is_restoring = False
            return True
        return False

    def _restore(self, number: int, participants: Sequence[int]) -> Activity:
        found, holdings = yield from self.look()
        mixed = choice.mixtures(found, holdings)
        for effect in self.replication.finish([m for m in found if m not in mixed], holdings):
            self._perform(effect)
        nodes, receivers = self.cluster.nodes, sorted({*participants, self.node.index})
        chosen = choice.choice(found, holdings)
        if chosen is not None and is_outdated(chosen, self.cluster.newest_stored()):
            chosen = None
        what = "none" if chosen is None else f"{chosen.key} {chosen.generation}"
        self.world.say(f"leader {self.node.index}: restore {number}: {what} of {len(found)}")
        if chosen is None and self.cluster.storage:
            chosen = yield from self._from_storage()
        outdated = choice.outdated([chosen] if chosen else [], found, holdings, receivers)
        while chosen is not None:
            _, holdings = yield from self.look()
            wave = copies.restoring(chosen, holdings, receivers)
            if not wave:
                break
            by_node: dict[int, list[copies.Transfer]] = {}
            for transfer in wave:
                by_node.setdefault(transfer.node, []).append(transfer)
            yield from self._all(
                self._call(n, self._fetch(nodes[n], some)) for n, some in by_node.items()
            )
        yield from self._all(
            self._call(n, self._fetch_small(nodes[n], found, holdings)) for n in receivers
        )
        if chosen is not None and any(
            h.node in receivers and not h.has(f) for h in holdings for f in chosen.needed
        ):
            raise LostError("a file is lost")
        restore = LastRestore(number, frozenset(receivers), chosen.generation if chosen else "")
        yield from self._all(
            self._call(n, self._record(nodes[n], restore, outdated.get(n, ()))) for n in self.peers
        )

    def _record(self, node: Node, restore: LastRestore, outdated: Collection[str]) -> Activity:
        for name in outdated:
            node.files.pop(name, None)
        node.record_restore(restore)
        return
        yield

    def _fetch(self, node: Node, transfers: Collection[copies.Transfer]) -> Activity:
        order, draft = (self.term, self.number), {}
        for transfer in transfers:
            data = yield from read(self.world, self.cluster.nodes, transfer)
            draft[transfer.file.name] = data
        node.obey(order)  # another order may have come meanwhile
        node.files |= draft
        node.fetched |= {f.file.name: f.file.identity for f in transfers}

    def _fetch_small(
        self, node: Node, found: Sequence[Manifest], holdings: Sequence[Holding]
    ) -> Activity:
        """Fetch a small file that belongs to no checkpoint, as one of an interrupted save."""
        parts = {f.name for each in found for f in each.files}
        for name, holding in choice.shown(holdings).items():
            if name.endswith("config") and name not in parts and name not in node.files:
                size, time = holding.files[name]
                file = StagedFile(name, size, time)
                transfer = copies.Transfer(node.index, file, holding.node)
                data = yield from read(self.world, self.cluster.nodes, transfer)
                node.files[name] = data
                node.fetched[name] = data.identity

    def _from_storage(self) -> Generator[float, None, Manifest]:
        """Copy the newest checkpoint of storage into the staging directory of this node, unless it
        is there.
        """
        order, node = (self.term, self.number), self.node
        newest = self.cluster.newest_of_storage()
        data = {f.name: self.cluster.storage[f.name] for f in newest.files}
        yield self.world.rng.uniform(0.1, 2.0)
        node.obey(order)
        here = complete({name: (each, node.index) for name, each in node.files.items()})
        restored = next((m for m in here if is_restored(m, newest)), None)
        if restored is None:
            node.files |= data
            restored = newest
        node.fetched |= {f.name: f.identity for f in restored.files}
        self._drained.add(newest.generation)
        return restored


def is_outdated(here: Manifest, stored: int) -> bool:
    """Return whether storage has a newer checkpoint, of the time `stored`."""
    return here.time < stored


def is_restored(here: Manifest, stored: Manifest) -> bool:
    """Return whether a complete checkpoint in memory is the one on storage."""
    return here.generation == stored.generation


def short(effect: replication.Effect) -> str:
    match effect:
        case replication.Keep(node=node, manifest=kept, transfers=transfers):
            what = ", ".join(f"{f.file.name} from {f.source}" for f in transfers)
            return f"node {node} keeps {kept.key} {kept.generation}: {what}"
        case replication.Drop(node=node, generation=generation):
            return f"node {node} drops {generation}"
        case replication.DropFetched(node=node, names=names):
            return f"node {node} drops what it has fetched: {', '.join(sorted(names))}"
        case replication.Delete(manifest=deleted, left=left):
            return f"{deleted.key} {deleted.generation} was deleted; left on {sorted(left)}"
