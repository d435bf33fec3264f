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
from collections.abc import Mapping, Sequence

from hpclaunch.core.staging.choice import shown
from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import Holding

from .copying import GivenUpError
from .fetching import END, Source, fetch_ends
from .node import Inventory
from .stage_directory import VIEW, rmtree

WHOLE = 2 * END  # bytes; a skeleton of up to this size has all of its file
UNKNOWN = -1  # the inode of a file whose ends could not be fetched


class View:
    """The view in the directory HASH of a staging directory."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._beside = os.path.join(os.path.dirname(stage), VIEW)
        self.root = os.path.join(self._beside, os.path.basename(stage))
        self._new = f"{self.root}.new"
        self.remove()  # left by another stager
        os.makedirs(self.root)

    def remove(self) -> None:
        """Show nothing any more: links would keep the memory of files that the script deletes."""
        self._shown: dict[str, StagedFile] = {}  # as their owners have them, by name
        rmtree(self._beside)

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
        transfers = []
        for name, file in union.items():
            old = self._shown.get(name)
            if old == file:
                continue
            if old is not None and old.is_folder != file.is_folder:
                self._remove(name)
            if file.owner != own and file.is_file:
                transfers.append(Transfer(own, file, file.owner))
            elif self._make(file):
                self._shown[name] = file
        self._fetch(transfers, sources)
        for name, file in self._shown.items():  # files in a directory change its time
            path = os.path.join(self.root, name)
            if file.is_folder and os.stat(path).st_mtime_ns != file.time:
                os.utime(path, ns=(file.time, file.time))
        last = max(found.time for found in inventories.values())
        os.utime(self.root, ns=(last, last))

    def free(self, own: int) -> None:
        """Remove the links to files that the script has deleted or replaced on this node, since
        they keep its memory.
        """
        for name, file in list(self._shown.items()):
            if file.owner == own and file.is_file and not self._is_staged(file):
                self._remove(name)

    def _is_staged(self, file: StagedFile) -> bool:
        with contextlib.suppress(OSError):
            return os.lstat(os.path.join(self._stage, file.name)).st_ino == file.inode
        return False

    def shown(self, name: str) -> StagedFile:
        """Return the file that one in the view stands for; FileNotFoundError if it is gone."""
        try:
            return self._shown[name]
        except KeyError:
            path = os.path.join(self.root, name)
            raise FileNotFoundError(errno.ENOENT, "just deleted", path) from None

    def _remove(self, name: str) -> None:
        path = os.path.join(self.root, name)
        is_folder = self._shown.pop(name).is_folder
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path) if is_folder else os.unlink(path)

    def _make(self, file: StagedFile) -> bool:
        """Make a directory, a link, or this node's own file; of a file with an unknown inode, a
        skeleton without its ends. Return False if the own file has vanished.
        """
        path = os.path.join(self.root, file.name)
        if file.is_folder:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, file.mode & 0o777 | 0o700)
            return True
        try:
            if file.is_link:
                os.symlink(file.target, self._new)
            elif file.inode == UNKNOWN:
                with open(self._new, "xb") as new:
                    new.truncate(file.size)
            else:
                os.link(os.path.join(self._stage, file.name), self._new, follow_symlinks=False)
            if file.is_link or file.inode == UNKNOWN:
                os.utime(self._new, ns=(file.time, file.time), follow_symlinks=False)
            os.replace(self._new, path)
        except FileNotFoundError:
            return False
        finally:
            # If the file was written in place, both were links to it, and the renaming did nothing.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._new)
        return True

    def _fetch(self, transfers: Sequence[Transfer], sources: Mapping[int, Source]) -> None:
        """Make skeletons. A file that is just being written has no ends in its skeleton, so its
        checkpoint counts as incomplete until the next look. Raises OSError if a node does not
        answer; some skeletons are made then, and known.
        """
        try:
            fetch_ends(transfers, sources, self.root, self._stage)
        except (GivenUpError, FileNotFoundError):
            if len(transfers) > 1:
                half = len(transfers) // 2
                for part in (transfers[:half], transfers[half:]):
                    self._fetch(part, sources)
                return
            made = [transfers[0].file._replace(inode=UNKNOWN)]
            self._make(made[0])
        else:
            made = [each.file for each in transfers]
        self._shown |= {each.name: each for each in made}

    def _union(
        self, inventories: Mapping[int, Inventory], holdings: Sequence[Holding]
    ) -> dict[str, StagedFile]:
        """Return what to show, directories before what they contain. If nodes have equal files,
        keep the one that is shown: another one would change the inode, and with it the checkpoint's
        identity.
        """
        owners = {name: holding.node for name, holding in shown(holdings).items()}
        union: dict[str, StagedFile] = {}
        same: dict[str, StagedFile] = {}
        for node, inventory in inventories.items():
            for each in inventory.entries:
                name, file = each.name, each._replace(owner=node)
                if self._shown.get(name) == file:
                    same[name] = file
                if file.is_folder:
                    is_later = name not in union or file.time > union[name].time
                    if name not in owners and is_later:
                        union[name] = file
                elif owners.get(name) == node:
                    union[name] = file
        found: dict[str, StagedFile] = {}
        for name, file in sorted(union.items()):
            parent, old = os.path.dirname(name), same.get(name)
            if not parent or (parent in found and found[parent].is_folder):
                is_same = old is not None and old.identity == file.identity
                found[name] = old if old is not None and is_same else file
        return found
