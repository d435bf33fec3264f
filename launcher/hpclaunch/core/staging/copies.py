"""The copies of files between nodes: which node fetches which file from which other one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from ..protocol.values import value
from .files import StagedFile
from .generations import Holding, Manifest

GIVES = 2  # times the size of the generation: the most that a node sends in one wave


@value(frozen=True)
class Transfer:
    """The copy of a file from one node to another. If a node is its own source, it copies what it
    keeps to its staging directory, or the other way round. A hard link will not do: the script may
    write to the file.
    """

    node: int  # which node fetches
    file: StagedFile
    source: int  # from which node
    kept: str = ""  # in which generation the source keeps it; "": it is in its staging directory


def buddies(hosts: Mapping[int, str]) -> dict[int, int]:
    """Return the buddy of each node: the next one in the ring of indices on another host. A node
    without one is left out. `hosts` has the living nodes.
    """
    ring = sorted(hosts)
    found = {}
    for at, node in enumerate(ring):
        others = (n for n in (*ring[at + 1 :], *ring[:at]) if hosts[n] != hosts[node])
        if (buddy := next(others, None)) is not None:
            found[node] = buddy
    return found


def restoring(
    manifest: Manifest, holdings: Sequence[Holding], nodes: Collection[int]
) -> list[Transfer]:
    """Return the next wave of the copies that bring the generation into the staging directories of
    `nodes`, the decisive file last. Call it again with new holdings until it returns []; then all
    nodes have every file that some node has.

    A node gives away only so much in one wave. The rest is fetched in the next wave, from all that
    have it by then.
    """
    lacking = {
        f: [h.node for h in holdings if h.node in nodes and not h.has(f)] for f in manifest.files
    }
    most = GIVES * sum(f.size for f in manifest.files)
    sources = _Sources(manifest, holdings)
    transfers = []
    ordered = sorted(manifest.files, key=lambda f: (-f.size, f.name))
    for turn in range(len(nodes)):  # each file goes to one node before any goes to a second one
        for at, file in enumerate(ordered):
            waiting = lacking[file]
            if turn < len(waiting):
                node = waiting[(at + turn) % len(waiting)]
                if (transfer := sources.transfer(file, node, most)) is not None:
                    transfers.append(transfer)
    return sorted(transfers, key=lambda t: t.file.name == manifest.decisive)


def keeping(manifest: Manifest, holdings: Sequence[Holding]) -> list[Transfer]:
    """Return the copies that are still missing on buddies, the decisive file last.

    Each file is to be kept by its owner's buddy, unless some node on another host already keeps it.
    If the owner is lost, another holder counts as the owner.
    """
    buddy_of = buddies({h.node: h.host for h in holdings})
    sources = _Sources(manifest, holdings)
    transfers = []
    for file in sorted(manifest.files, key=lambda f: (-f.size, f.name)):
        if not sources.keep_safe(file):
            buddy = buddy_of.get(sources.owner(file))
            if buddy is not None and (transfer := sources.transfer(file, buddy)) is not None:
                transfers.append(transfer)
    return sorted(transfers, key=lambda t: t.file.name == manifest.decisive)


def is_available(manifest: Manifest, holdings: Sequence[Holding]) -> bool:
    """Return whether each needed file has a living holder."""
    return all(map(_Sources(manifest, holdings).holders, manifest.needed))


def is_safe(manifest: Manifest, holdings: Sequence[Holding]) -> bool:
    """Return whether nodes on other hosts than the owners' keep all needed files."""
    sources = _Sources(manifest, holdings)
    return all(sources.keep_safe(file) for file in manifest.needed)


def is_kept(manifest: Manifest, holdings: Sequence[Holding]) -> bool:
    """Return whether each needed file is kept by some node, whatever becomes of the staging
    directories.
    """
    names = frozenset[str]().union(*(h.keeps(manifest) for h in holdings))
    return manifest.essential <= names


class _Sources:
    """The holders of a generation, and how many bytes each is to give away."""

    def __init__(self, manifest: Manifest, holdings: Sequence[Holding]) -> None:
        self._generation = manifest.generation
        self._holdings = [(h, h.keeps(manifest)) for h in holdings]
        self._hosts = {h.node: h.host for h in holdings}
        self._given: dict[int, int] = defaultdict(int)

    def holders(self, file: StagedFile) -> dict[int, str]:
        """Return the nodes that have the file, and from where they give it (`Transfer.kept`)."""
        return {
            h.node: "" if h.has(file) else self._generation
            for h, names in self._holdings
            if file.name in names or h.has(file)
        }

    def owner(self, file: StagedFile) -> int:
        """Return the owner of the file, or if that is lost, another holder."""
        if file.owner in self._hosts:
            return file.owner
        return min(self.holders(file), default=file.owner)

    def keep_safe(self, file: StagedFile) -> bool:
        """Return whether a node on another host than the owner's keeps the file."""
        host = self._hosts.get(file.owner)
        return any(file.name in names and h.host != host for h, names in self._holdings)

    def transfer(self, file: StagedFile, node: int, most: float = math.inf) -> Transfer | None:
        """Return the copy from the holder that gives away least; None if there is none that may
        give away this file. A node that has the file already copies its own.
        """
        holders = self.holders(file)
        if node in holders:
            return Transfer(node, file, node, holders[node])
        source = min(holders, key=lambda n: (self._given[n], n), default=None)
        if source is None or self._given[source] + file.size > most:
            return None
        self._given[source] += file.size
        return Transfer(node, file, source, holders[source])
