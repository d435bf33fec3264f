"""The files of one node: its staging directory, and the copies that it keeps for other nodes.

Beside the staging directory lie, in the directory HASH (`stage_directory.py`):
- `kept/GENERATION/manifest` and `kept/GENERATION/files`: files of one complete checkpoint in one
  state, of this node or of others;
- `lent`: hard links to files that other nodes are fetching, since the script may delete them;
- `fetched`: which files a restore has copied into the staging directory;
- `restore`: the last restore, and which files the staging directory had then.

Other nodes ask for files by name, so names that leave the directory are refused.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import Identity, StagedFile
from hpclaunch.core.staging.generations import Kept, LastRestore, Manifest
from hpclaunch.system.shared import packing

from . import copying
from .contents import HERE, file_at, tree
from .copying import Between, GivenUpError, at_once, hold
from .fetching import (
    PIECE,
    Data,
    Source,
    Sums,
    checksum,
    pieces,
    place_all,
    receive,
    refuse_links,
    safe,
)
from .publishing import draft_beside, place, remove
from .room import Room, room
from .stage_directory import FETCHED, KEPT, LENT, RECORD, RESTORE

MANIFEST, FILES = "manifest", "files"
MOST_KEPT = 2  # generations
DAMAGED = errno.EILSEQ  # in errors: bytes have changed in memory
Marks: TypeAlias = dict[str, Identity]  # of files, by name
T = TypeVar("T")


class Inventory(NamedTuple):
    """All that a node has."""

    entries: tuple[StagedFile, ...]  # of the staging directory; a directory before its files
    fetched: frozenset[str]  # names of files that a restore has copied here
    kept: tuple[Kept, ...]
    free: Room
    restore: LastRestore = LastRestore()
    old: frozenset[str] = frozenset()  # names of files that are unchanged since that restore
    time: int = 0  # of the staging directory itself


class StageNode:
    """The files of this node. Every method may be called by any thread, and raises OSError."""

    def __init__(self, stage: str, storage: str) -> None:
        self.stage, self.storage = stage, storage
        self._own = os.path.dirname(stage)
        self._kept = os.path.join(self._own, KEPT)
        self._lent = os.path.join(self._own, LENT)
        self._marks = os.path.join(self._own, FETCHED)
        self._restore = os.path.join(self._own, RESTORE)
        self.noted = ""  # the record of the stager that leads, also if memory has no room for it
        self._sums: dict[str, Sums] = {}  # of what this process has fetched, by generation
        self._damaged = set[tuple[str, str]]()  # generations and names of files that have changed

    def inventory(self) -> Inventory:
        """List all that this node has."""
        time, entries = os.stat(self.stage).st_mtime_ns, tuple(self._entries())
        marks = self._load(self._marks, Marks) or {}
        restore, had = self._load(self._restore, tuple[LastRestore, Marks]) or (LastRestore(), {})
        fetched, old = (
            frozenset(e.name for e in entries if known.get(e.name) == e.identity)
            for known in (marks, had)
        )
        kept = tuple(self._generations())
        return Inventory(entries, fetched, kept, room(self.stage), restore, old, time)

    def _entries(self) -> Iterator[StagedFile]:
        for each in tree(self.stage, HERE):
            if each.name != HERE and (each.is_file or each.is_folder or each.is_link):
                yield each

    def _generations(self) -> Iterator[Kept]:
        for name in sorted(os.listdir(self._kept)) if os.path.isdir(self._kept) else ():
            root = self._root(name)
            with contextlib.suppress(FileNotFoundError):  # just dropped
                with open(os.path.join(self._kept, name, MANIFEST), "rb") as file:
                    manifest = packing.unpack(file.read(), Manifest)
                names = (f.name for f in manifest.files if _has(root, f.name, f.identity))
                yield Kept(manifest, frozenset(n for n in names if (name, n) not in self._damaged))

    def read(self, name: str, kept: str, identity: Identity, offset: int, length: int) -> Data:
        """Return bytes of a file: of a generation, or of the staging directory if `kept` is "".
        Raises GivenUpError if it has another identity. Raises OSError (DAMAGED) if bytes of a
        copy have changed since it arrived; then this node does not have it any more.
        """
        is_lent = not kept and _has(self._lent, name, identity)
        refuse_links(root := self._lent if is_lent else self._root(kept), name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(os.path.join(root, name), flags)
        try:
            data = os.pread(fd, min(length, PIECE), offset)
            found = os.fstat(fd)
        finally:
            os.close(fd)
        is_same = (found.st_size, found.st_mtime_ns) == identity and stat.S_ISREG(found.st_mode)
        if not is_same or len(data) != length:
            raise GivenUpError("it is being written again")
        known = self._sums.get(kept, {}).get((name, (offset, length)))
        if known is not None and checksum(data) != known:
            self._damaged.add((kept, name))
        if (kept, name) in self._damaged:
            raise OSError(DAMAGED, "its bytes have changed", name)
        return data

    def copy(
        self,
        entries: Sequence[StagedFile],
        essential: Collection[str],
        drafted: str,
        between: Between,
        *,
        in_memory: bool = False,
    ) -> None:
        """Copy entries of the staging directory into a draft on storage, and make sure that the
        `essential` files do not change meanwhile. The script may delete files: they are held by
        hard links. It may also write them again if they are copied `in_memory` before. Raises
        GivenUpError if an essential file has changed.

        Leave directories to the leader, which copies them last: a file that is added changes a
        directory's time.
        """
        for each in entries:
            refuse_links(self.stage, each.name)
        items = [file_at(self.stage, each.name) for each in entries]
        checked = [each for each in entries if each.is_file and each.name in essential]
        with draft_beside(self.stage) as held:
            if in_memory:
                copying.copy(items, self.stage, held, at_once)
            else:
                hold(items, self.stage, held)
            _check(checked, self.stage if in_memory else held)
            os.stat(drafted)  # else `copy` would make it again after its owner has given it up
            copying.copy(items, held, drafted, between)
            if not in_memory:
                _check(checked, held)

    def fetch(
        self,
        transfers: Sequence[Transfer],
        generation: str,
        sources: Mapping[int, Source],
        between: Between = at_once,
    ) -> None:
        """Fetch files of other nodes: into a generation that is kept, or into the staging directory
        if `generation` is "". They are placed in their order once all are there. `sources` may have
        this node itself, under its index. Raises GivenUpError, and what `between` raises.
        """
        sums = Sums() if generation else None
        with draft_beside(self.stage) as drafted:
            receive(transfers, sources, drafted, between, pieces, sums)
            if not generation:
                self.mark(each.file for each in transfers)
            place_all([each.file for each in transfers], drafted, self._root(generation))
            if sums is not None:
                self._sums.setdefault(generation, {}).update(sums)
                self._damaged.difference_update((generation, t.file.name) for t in transfers)

    def keep(self, manifest: Manifest) -> None:
        """Keep a generation from now on. Its files are added by `fetch`. A third one is refused: an
        order that arrives late could otherwise fill the memory.
        """
        folder = self._folder(manifest.generation)
        others = {each.manifest.generation for each in self._generations()}
        if len(others - {manifest.generation}) >= MOST_KEPT:
            raise OSError(errno.EDQUOT, "other generations are kept")
        os.makedirs(os.path.join(folder, FILES), exist_ok=True)
        _write(os.path.join(folder, MANIFEST), packing.pack(manifest))

    def lend(self, entries: Sequence[StagedFile]) -> None:
        """Hold files of the staging directory by hard links, so that the script may delete them
        while others read them. What was lent before is let go.
        """
        for each in entries:
            refuse_links(self.stage, each.name)
        with draft_beside(self.stage) as drafted:
            held = os.path.join(drafted, LENT)
            os.mkdir(held)
            for each in entries:
                with contextlib.suppress(FileNotFoundError):  # just deleted
                    hold([file_at(self.stage, each.name)], self.stage, held)
            if entries:
                place(held, self._lent)
            elif os.path.isdir(self._lent):
                os.rename(self._lent, os.path.join(held, "old"))

    def drop(self, generation: str) -> None:
        """Keep a generation no longer."""
        self._sums.pop(generation, None)
        with contextlib.suppress(FileNotFoundError):
            remove(self._folder(generation), self._own, os.path.basename(self._own))

    def delete(self, entries: Sequence[StagedFile]) -> None:
        """Delete files of the staging directory that are still the same, links, and directories
        that are empty then. Other directories keep their times: a format compares these with the
        times of files (formats/accelerate.py).
        """
        parents = {os.path.dirname(os.path.join(self.stage, each.name)) for each in entries}
        times = {path: os.stat(path) for path in parents if os.path.isdir(path)}
        for each in sorted(entries, key=lambda each: each.name, reverse=True):
            refuse_links(self.stage, each.name)
            path = os.path.join(self.stage, each.name)
            with contextlib.suppress(FileNotFoundError):
                if each.is_folder:
                    with contextlib.suppress(OSError):  # not empty
                        os.rmdir(path)
                elif each.is_link or _has(self.stage, each.name, each.identity):
                    os.unlink(path)
        for path, before in times.items():
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def record_restore(self, restore: LastRestore) -> None:
        """Record that a restore is complete on all nodes, and which files there are now."""
        files = {each.name: each.identity for each in self._entries() if not each.is_folder}
        _write(self._restore, packing.pack((restore, files)))

    def note(self, record: str) -> None:
        """Keep the record of the stager that leads (`record.py`)."""
        self.noted = record
        _write(os.path.join(self._own, RECORD), record.encode(errors="surrogateescape"))

    def _folder(self, generation: str) -> str:
        """Return the directory of a generation that is kept."""
        if os.sep in safe(generation):
            raise PermissionError(errno.EPERM, "not the name of a generation", generation)
        return os.path.join(self._kept, generation)

    def _root(self, generation: str) -> str:
        """Return the directory with its files; for "", the staging directory."""
        return os.path.join(self._folder(generation), FILES) if generation else self.stage

    def _load(self, path: str, kind: type[T]) -> T | None:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            return packing.unpack(file.read(), kind)
        return None

    def mark(self, fetched: Iterable[StagedFile]) -> None:
        """Record that a restore has copied these files into the staging directory."""
        marks = self._load(self._marks, Marks) or {}
        old = {n: known for n, known in marks.items() if _has(self.stage, n, known)}
        new = {each.name: each.identity for each in fetched if each.is_file}
        _write(self._marks, packing.pack(old | new))


def _has(root: str, name: str, identity: Identity) -> bool:
    """Return whether there is this file."""
    try:
        return file_at(root, safe(name)).identity == identity
    except OSError:
        return False


def _check(files: Iterable[StagedFile], root: str) -> None:
    """Raise GivenUpError if one of the files has changed, and OSError if it is deleted."""
    for each in files:
        if file_at(root, each.name).version != each.version:
            raise GivenUpError("it is being written again")


def _write(path: str, data: bytes) -> None:
    with open(new := f"{path}.new", "wb") as file:
        file.write(data)
    os.replace(new, path)
