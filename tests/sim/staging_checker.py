"""The laws of checkpoints in memory, checked after every step of a simulated cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim_checker import BrokenLawError
from staging_leader import complete
from staging_nodes import TRACKER, Data, Node

from hpclaunch.core.staging.generations import Manifest

if TYPE_CHECKING:
    from staging_cluster import Cluster

MOST_KEPT = 2  # generations of other nodes on one node


@dataclass(frozen=True)
class Save:
    """A save that the script has finished."""

    token: int
    step: int
    time: int  # of its decisive file


class Checker:
    """The truth about saves, which the launcher cannot know."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.saves: dict[int, Save] = {}  # by token
        self._deleted: set[int] = set()  # tokens of saves of which the script has deleted a file
        self._deleted_at: dict[int, float] = {}  # when its decisive file was
        self._restored: tuple[int, float] = 0, 0.0  # the last save that was, and when
        self._guards: dict[str, dict[str, set[tuple[int, int]]]] = {}  # who has kept which file
        self._safe: Manifest | None = None  # the newest that was ever safe

    def fail(self, law: str) -> None:
        raise BrokenLawError(law)

    # What happens

    def saved(self, token: int, step: int, decisive: Data) -> None:
        self.saves[token] = Save(token, step, decisive.time)

    def script_deletes(self, data: Data) -> None:
        self._deleted.add(data.token)
        if data.world:
            self._deleted_at[data.token] = self.cluster.world.now

    def kept(self, manifest: Manifest, name: str, node: Node) -> None:
        guards = self._guards.setdefault(manifest.generation, defaultdict(set))
        guards[name].add((node.index, node.start))
        if self._is_safe(manifest):
            self._check_one(
                {n: d for c in self._kept_copies(manifest) for n, d in c.items()},
                manifest,
                "a safe generation",
            )
            if self._safe is None or manifest.generation > self._safe.generation:
                self.cluster.world.say(f"safe: {manifest.key} {manifest.generation}")
                self._safe = manifest

    def _kept_copies(self, manifest: Manifest) -> list[dict[str, Data]]:
        return [
            n.kept[manifest.generation].files
            for n in self.cluster.nodes
            if n.is_alive and manifest.generation in n.kept
        ]

    def _is_safe(self, manifest: Manifest) -> bool:
        """Return whether each needed file is kept, and is on another host as well."""
        for file in manifest.needed:
            keepers, holders = set(), set()
            for node in self.cluster.nodes:
                if node.is_alive:
                    copies = node.kept.get(manifest.generation)
                    data = node.files.get(file.name)
                    if copies and file.name in copies.files:
                        keepers.add(node.host)
                    if data and data.identity == file.identity:
                        holders.add(node.host)
            if not keepers or len(keepers | holders) < 2:
                return False
        return True

    def deleting(self, manifest: Manifest) -> None:
        """Check a deletion in staging directories."""
        tokens = {
            node.files[manifest.decisive].token
            for node in self.cluster.nodes
            if manifest.decisive in node.files
            and node.files[manifest.decisive].identity == manifest.decisive_file.identity
        }
        if tokens - self._deleted:
            self.fail(f"{manifest.key} is deleted, and the script has not deleted it")

    def deleting_stored(self, stored: Data) -> None:
        if stored.token not in self._deleted:
            self.fail(f"save {stored.token} is deleted on storage, and the script keeps it")

    def drained(self, manifest: Manifest) -> None:
        self._check_one(self.cluster.storage, manifest, "what is drained")

    def _check_one(self, files: dict[str, Data], manifest: Manifest, what: str) -> Save:
        data = [files[f.name] for f in manifest.needed if f.name in files]
        if len(data) < len(manifest.needed) or not all(d.is_whole for d in data):
            self.fail(f"{what} is torn: {manifest.key}")
        tokens = {d.token for d in data} - {0}
        if len(tokens) != 1:
            self.fail(f"{what} is a mixture of saves {sorted(tokens)}: {manifest.key}")
        return self.saves[tokens.pop()]

    # Laws

    def check(self) -> None:
        for node in self.cluster.nodes:
            if len(node.kept) > MOST_KEPT:
                self.fail(f"node {node.index} keeps {len(node.kept)} generations")

    def restored(self, members: Sequence[Node], participants: Sequence[int], head: Node) -> int:
        """Check what a round resumes from, as the head finds it. Return its step."""
        newest = self._found(head)
        least = self.cluster.newest_stored()
        if self._safe is not None:
            living = {(n.index, n.start) for n in members}
            guards = self._guards[self._safe.generation]
            if all(guards[f.name] & living for f in self._safe.needed):
                least = max(least, self._safe.time)
            else:
                self._safe = None  # the job continues without it
        if newest is None:
            if least:
                self.fail("nothing is restored, and something is safe or on storage")
            return 0
        save = self._check_one(head.files, newest, "the choice")
        if newest.time < least:
            self.fail(f"save {save.token} is restored, and a newer one is safe or on storage")
        for index in participants:
            node = self.cluster.nodes[index]
            found = self._found(node)
            if found is None or found.generation != newest.generation:
                self.fail(f"node {index} finds another checkpoint than the head")
            self._check_one(node.files, newest, f"the choice on node {index}")
        self.cluster.world.say(f"restored save {save.token}")
        self._restored = save.token, self.cluster.world.now
        return save.step

    def _found(self, node: Node) -> Manifest | None:
        found = complete({name: (data, 0) for name, data in node.files.items()})
        return found[0] if found else None

    def settled(self) -> None:
        """Check the end, when there was no fault for a while."""
        cluster = self.cluster
        if not any(node.round for node in cluster.nodes):
            self.fail("no round runs in the end")
        before = int((cluster.world.now - 25.0) * 1e9)
        times = [s.time for s in self.saves.values() if s.time < before]
        if not times or len({n.host for n in cluster.members}) < 2:
            return
        newest = max(times)
        if any(s.time >= newest and t in self._deleted for t, s in self.saves.items()):
            return  # an older one has a later step, so the script deletes the new ones
        if self._safe is None or self._safe.time < newest:
            self.fail("the newest save is not safe in the end")
        if cluster.newest_stored() < newest:
            self.fail("the newest save is not on storage in the end")
        if cluster.plan.script.is_in_place:  # a deleted file is written again
            return
        token, at = self._restored
        # What is deleted at once was not seen.
        known = {
            t
            for t, save in self.saves.items()
            if (t == token or save.time > at * 1e9)
            and self._deleted_at.get(t, 0.0) > max(at, save.time / 1e9) + 10.0
        }
        for node in cluster.members:
            for name, data in node.files.items():
                if name == TRACKER:  # the script does not delete it
                    continue
                if data.token in known and self._deleted_at[data.token] < cluster.world.now - 10.0:
                    self.fail(f"the script has deleted {name}, and node {node.index} has it")
