"""The view: the union of the staging directories of all nodes, as a directory of the leading node.
The search judges checkpoints there, since their files may be on several nodes.

The leading node's own files are hard links. For a file of another node there is a skeleton: a
sparse file of the same size, mode and time, of which only the ends are real. When a file changes,
its skeleton gets another inode, so the identity of a checkpoint in the view changes with it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hpclaunch.core.staging.choice import shown
from hpclaunch.core.staging.generations import Holding

from .contents import Item
from .copying import GivenUpError
from .node import END, Entry, Inventory, Source, Wanted, fetch_ends
from .removal import rmtree
from .stage_directory import VIEW

WHOLE = 2 * END  # bytes; a skeleton of up to this size has all of its file
UNKNOWN = -1  # the inode of a file whose ends could not be fetched


class Shown(NamedTuple):
    """A file, link or directory in the view, and the node that has it."""

    node: int
    entry: Entry


class View:
    """The view in the directory RANDOM of a staging directory."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        beside = os.path.join(os.path.dirname(stage), VIEW)
        self.root = os.path.join(beside, os.path.basename(stage))
        self._new = os.path.join(beside, "new")
        self._shown: dict[str, Shown] = {}
        rmtree(beside)  # left by another stager
        os.makedirs(self.root)

    def update(
        self,
        own: int,
        inventories: Mapping[int, Inventory],
        holdings: Sequence[Holding],
        sources: Mapping[int, Source],
    ) -> None:
        """Show these inventories, which the holdings describe. `own` is the index of this node.
        Raises OSError.
        """
        union = self._union(inventories, holdings)
        for name in sorted(self._shown.keys() - union.keys(), reverse=True):
            self._remove(name)
        changed = [(name, union[name]) for name in union if self._shown.get(name) != union[name]]
        wanted = []
        for name, (node, entry) in changed:
            old = self._shown.get(name)
            if old is not None and old.entry.is_folder != entry.is_folder:
                self._remove(name)
            if node != own and entry.is_file:
                wanted.append(Wanted(entry, node))
            elif self._make(entry):
                self._shown[name] = union[name]
        for each in self._fetch(wanted, sources):
            self._shown[each.entry.name] = Shown(each.source, each.entry)
        for name, (_, entry) in self._shown.items():  # entries in a directory change its time
            path = os.path.join(self.root, name)
            if entry.is_folder and os.stat(path).st_mtime_ns != entry.time:
                os.utime(path, ns=(entry.time, entry.time))
        last = max(found.time for found in inventories.values())
        os.utime(self.root, ns=(last, last))

    def free(self, own: int) -> None:
        """Remove the links to files that the script has deleted or replaced on this node, since
        they keep its memory.
        """
        for name, (node, entry) in list(self._shown.items()):
            if node == own and entry.is_file and not self._is_staged(entry):
                self._remove(name)

    def _is_staged(self, entry: Entry) -> bool:
        with contextlib.suppress(OSError):
            return os.lstat(os.path.join(self._stage, entry.name)).st_ino == entry.inode
        return False

    def shown(self, each: Item) -> Shown:
        """Return what an item of the view stands for. Raises FileNotFoundError if it is gone."""
        try:
            return self._shown[each.name]
        except KeyError:
            path = os.path.join(self.root, each.name)
            raise FileNotFoundError(errno.ENOENT, "just deleted", path) from None

    def _remove(self, name: str) -> None:
        path = os.path.join(self.root, name)
        is_folder = self._shown.pop(name).entry.is_folder
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path) if is_folder else os.unlink(path)

    def _make(self, entry: Entry) -> bool:
        """Make a directory, a link, or this node's own file. Return False if that has vanished."""
        path = os.path.join(self.root, entry.name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._new)
        if entry.is_folder:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, entry.mode & 0o777 | 0o700)
            return True
        if entry.is_link:
            os.symlink(entry.target, self._new)
            os.utime(self._new, ns=(entry.time, entry.time), follow_symlinks=False)
        else:
            try:
                os.link(os.path.join(self._stage, entry.name), self._new, follow_symlinks=False)
            except FileNotFoundError:
                return False
            if os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(self._new)):
                return True  # written in place; renaming one link to the other would do nothing
        os.replace(self._new, path)
        return True

    def _fetch(self, wanted: Sequence[Wanted], sources: Mapping[int, Source]) -> Iterable[Wanted]:
        """Make skeletons. Return what they stand for."""
        try:
            fetch_ends(wanted, sources, self.root, self._stage)
        except (GivenUpError, FileNotFoundError):  # some of them are just being written
            if len(wanted) == 1:
                return [self._make_unknown(wanted[0])]
            half = len(wanted) // 2
            parts = wanted[:half], wanted[half:]
            return [each for part in parts for each in self._fetch(part, sources)]
        return wanted

    def _make_unknown(self, wanted: Wanted) -> Wanted:
        """Make a skeleton with nothing in it, so that its checkpoint counts as incomplete until the
        next look.
        """
        entry = wanted.entry
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._new)
        with open(self._new, "xb") as file:
            file.truncate(entry.size)
        os.utime(self._new, ns=(entry.time, entry.time))
        os.replace(self._new, os.path.join(self.root, entry.name))
        return wanted._replace(entry=entry._replace(inode=UNKNOWN))

    def _union(
        self, inventories: Mapping[int, Inventory], holdings: Sequence[Holding]
    ) -> dict[str, Shown]:
        """Return what to show, directories before what they contain. Of equal files, the one that
        is shown already stays.
        """
        files = {name: holding.node for name, holding in shown(holdings).items()}
        union: dict[str, Shown] = {}
        same: dict[str, Shown] = {}
        for node, inventory in inventories.items():
            for entry in inventory.entries:
                name, new = entry.name, Shown(node, entry)
                if self._shown.get(name) == new:
                    same[name] = new
                if entry.is_folder:
                    is_later = name not in union or entry.time > union[name].entry.time
                    if name not in files and is_later:
                        union[name] = new
                elif files.get(name) == node:
                    union[name] = new
        found: dict[str, Shown] = {}
        for name, new in sorted(union.items()):
            parent, old = os.path.dirname(name), same.get(name)
            if not parent or (parent in found and found[parent].entry.is_folder):
                is_same = old is not None and old.entry.identity == new.entry.identity
                found[name] = old if old is not None and is_same else new
        return found
