"""The contents of a directory, listed once and then used many times.

The size and time of a file are read only when they are needed: on a parallel file system, each
`stat` is a round trip to a server.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from .archives import DamagedError

SLOW = 1e-4  # seconds; if a stat takes longer, several run at once
PROBE = 32  # calls that are timed first
AT_ONCE = 16  # threads
OWN = ".hpclaunch-"  # the beginning of names of this launcher beside checkpoints
# Errors of a file system that has trouble, unlike those for other users' files and deleted ones.
TROUBLE = {
    errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN,
}  # fmt: skip
SAVED = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".safetensors", ".distcp")  # look saved
MOST_ENTRIES = 1 << 20  # entries of a directory
MOST_FOLDERS, DEEPEST = 20_000, 32  # directories of a tree, and levels of them

Identity = tuple[int, ...]
T = TypeVar("T")
R = TypeVar("R")


class Entry(NamedTuple):
    """A file or directory as it was read; for a link, its target."""

    name: str
    path: str
    stat: os.stat_result
    is_link: bool

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def time(self) -> int:
        """Return the time of the last write, in nanoseconds."""
        return self.stat.st_mtime_ns

    @property
    def size(self) -> int:
        return self.stat.st_size

    @property
    def identity(self) -> Identity:
        """Return a key that changes when the file is rewritten, even if its mtime is set back."""
        s = self.stat
        return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def is_folder(path: str, *, refusals: Collection[int] = TROUBLE) -> bool:
    """Return whether there is a directory, or a link to one. Raises OSError if that is not known:
    the file system has trouble, or another error that is one of the `refusals`.
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as e:
        if e.errno in refusals:
            raise
        return False


def entry_at(path: str) -> Entry:
    """Return the entry of a path. Raises OSError."""
    return Entry(os.path.basename(path), path, os.stat(path), os.path.islink(path))


class Entries(Mapping[str, Entry]):
    """Entries by name. Getting one that has vanished since the listing raises OSError."""

    def __init__(self, listed: Iterable[os.DirEntry[str]]) -> None:
        self._listed = {entry.name: entry for entry in listed}
        self._seen: dict[str, Entry] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __contains__(self, name: object) -> bool:
        return name in self._listed

    def __getitem__(self, name: str) -> Entry:
        if name not in self._seen:
            self._seen[name] = _look(self._listed[name])
        return self._seen[name]

    def look(self) -> Mapping[str, Entry]:
        """Return the entries that can be read, in threads if the file system is slow. Forget those
        that have vanished. Getting any other one raises OSError. Raises OSError if the file system
        has trouble, so that none is overlooked.
        """
        todo = [entry for name, entry in self._listed.items() if name not in self._seen]
        for _ in of_each(self._try, todo, SLOW):
            pass
        return self._seen

    def _try(self, entry: os.DirEntry[str]) -> None:
        try:
            self._seen[entry.name] = _look(entry)
        except FileNotFoundError:
            del self._listed[entry.name]
        except OSError as e:
            if e.errno in TROUBLE:
                raise


class Folder:
    """A directory. Listing it may raise OSError.

    It has no `cached_property`: before Python 3.12, all instances share that one's lock, and a
    directory that hangs would hold up other threads.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._folders: dict[str, Folder] = {}
        self._found: list[os.DirEntry[str]] | None = None
        self._files_found: Entries | None = None
        self._folders_found: Entries | None = None

    @property
    def _listed(self) -> list[os.DirEntry[str]]:
        if self._found is None:
            with os.scandir(self.path) as found:
                listed = list(islice(found, MOST_ENTRIES + 1))
            if len(listed) > MOST_ENTRIES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_ENTRIES} files", self.path)
            self._found = listed
        return self._found

    @property
    def files(self) -> Entries:
        if self._files_found is None:
            self._files_found = Entries(e for e in self._listed if is_kind(e, e.is_file))
        return self._files_found

    @property
    def folders(self) -> Entries:
        if self._folders_found is None:
            self._folders_found = Entries(e for e in self._listed if is_kind(e, e.is_dir))
        return self._folders_found

    def folder(self, name: str) -> Folder:
        if name not in self._folders:
            self._folders[name] = Folder(os.path.join(self.path, name))
        return self._folders[name]

    def tree(self) -> Iterator[tuple[str, Folder]]:
        """Yield (relative path, directory): "" for this directory, "a/b/" for one below it.

        Links are not followed, and a draft of a stager (`system/staging/`) is left out. Raises
        OSError, and DamagedError if there are too many directories.
        """
        todo = [("", self)]
        seen = 0
        while todo:
            prefix, folder = todo.pop()
            yield prefix, folder
            for entry in folder._listed:
                is_own = entry.name.startswith(OWN)
                if not is_own and entry.is_dir(follow_symlinks=False):
                    todo.append((f"{prefix}{entry.name}/", folder.folder(entry.name)))
                    seen += 1
            if seen > MOST_FOLDERS or prefix.count("/") > DEEPEST:
                most = f"{MOST_FOLDERS} directories, or {DEEPEST} levels of them"
                raise DamagedError(f"it has more than {most}")


def saved_in(folder: Folder) -> list[str]:
    """Return the names of the files that look saved."""
    return [name for name in folder.files if name.endswith(SAVED) and not name.startswith(".")]


def is_kind(entry: os.DirEntry[str], ask: Callable[[], bool]) -> bool:
    """Return the result of `ask`; False for a link that cannot be followed, such as a circular
    one. Raises OSError for any other entry.
    """
    try:
        return ask()
    except OSError:
        if entry.is_symlink():
            return False
        raise


def of_each(work: Callable[[T], R], items: Sequence[T], slow: float) -> Iterator[R]:
    """Yield the results of `work` in the order of the items. Threads run it if the median of the
    first items takes over `slow` seconds: a single one may only have waited for a CPU.
    """
    took = []
    for item in items[:PROBE]:
        began = time.monotonic()
        result = work(item)
        took.append(time.monotonic() - began)
        yield result
    rest = items[PROBE:]
    if rest and sorted(took)[PROBE // 2] > slow:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(work, rest)
    else:
        yield from map(work, rest)


def _look(entry: os.DirEntry[str]) -> Entry:
    return Entry(entry.name, entry.path, entry.stat(), entry.is_symlink())
