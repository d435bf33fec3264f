"""Holdings of a few nodes, in few words."""

from __future__ import annotations

from hpclaunch.core.protocol.values import replace
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import Holding, Kept, LastRestore, Manifest, manifest


def a_save(time: int, *owners: int, key: str = "last", size: int = 10) -> Manifest:
    """Return a checkpoint with one shard for each owner, of which the first has the metadata."""
    files = [
        StagedFile(f"{key}/{rank}", size, time, owner=owner) for rank, owner in enumerate(owners)
    ]
    files.append(StagedFile(f"{key}/meta", 1, time + 1, owner=owners[0]))
    return manifest(key, files, f"{key}/meta", frozenset(f.name for f in files), (key,))


def nodes(
    *saves: Manifest, hosts: str = "abc", restore: LastRestore | None = None, old: bool = False
) -> list[Holding]:
    """Return nodes that have what they own of these saves."""
    restore = restore or LastRestore(1, frozenset(range(len(hosts))), "before")
    holdings = []
    for node, host in enumerate(hosts):
        files = {f.name: f.identity for s in saves for f in s.files if f.owner == node}
        names = frozenset(files) if old else frozenset[str]()
        holdings.append(Holding(node, host, files, names, restore=restore))
    return holdings


def keep(holding: Holding, kept: Manifest, *names: str) -> Holding:
    """Return the node with files that it keeps; without names, with all of its neighbours'."""
    some = names or [f.name for f in kept.files if f.owner != holding.node]
    return replace(holding, kept=(*holding.kept, Kept(kept, frozenset(some))))


def have(holding: Holding, save: Manifest, *, old: bool = False) -> Holding:
    """Return the node with all files of a save."""
    files = holding.files | {f.name: f.identity for f in save.files}
    names = {f.name for f in save.files}
    return replace(holding, files=files, old=holding.old | names if old else holding.old - names)
