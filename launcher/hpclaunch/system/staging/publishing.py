"""Changes on storage: a finished draft gets its final name, and a deleted checkpoint vanishes, each
in one step. So whenever this process is killed, storage has whole checkpoints only, and what is
left unfinished is a draft, which has a hidden name, and which `sweep` removes. Other launches may
save in the same directory, so a draft's name contains that of its launch, and the draft's time
shows whether that launch still writes to it.

Two cases need more than one step. Meanwhile, a complete checkpoint has another name, which the
search sees, too:
- A directory replaces another one of its name, on a file system without RENAME_EXCHANGE.
- The checkpoint lies directly in the root, so that its files are replaced one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from hpclaunch.core.staging.files import StagedFile
from hpclaunch.system.checkpoints.listing import OWN

from .contents import HERE, Contents, file_at, tree
from .copying import sync
from .stage_directory import rmtree

T = TypeVar("T")

DRAFT = f"{OWN}draft-"
OLD = "-before-hpclaunch"  # the end of the name of a directory that is just being replaced
NEWEST = "newest-by-hpclaunch-"  # the prefix of a checkpoint that is to replace one in the root
EXCHANGE = 2  # RENAME_EXCHANGE
AT_CWD = -100
ABANDONED = 600.0  # seconds since the last write until another launch's draft is removed
NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


def _in_this_thread(work: Callable[..., T], *args: object) -> T:
    return work(*args)


@contextlib.contextmanager
def draft(root: str, launch: str, run: Callable[..., Any] = _in_this_thread) -> Iterator[str]:
    """Return a directory for what is not finished, on the same file system as `root`. In the end it
    is removed, with what is in it. The draft's name contains `launch`, the name of this launch.
    `run` calls a function, such as that of a StorageThread.
    """
    path = run(_new_draft, root, launch)
    try:
        yield path
    finally:
        run(_remove_draft, path)


def _remove_draft(path: str) -> None:
    """Remove a draft, if it was not moved to its final name. Rename it first: another node that has
    not yet given up its copy makes no further file in it.
    """
    old = f"{path}.old"
    with contextlib.suppress(OSError):  # moved, or storage has no room for a longer name
        os.rename(path, old)
    rmtree(old)
    rmtree(path)


def _new_draft(root: str, launch: str) -> str:
    os.makedirs(root, exist_ok=True)
    return tempfile.mkdtemp(prefix=_prefix(launch), dir=root)


def draft_beside(stage: str) -> contextlib.AbstractContextManager[str]:
    """Return a draft in the directory HASH of a staging directory."""
    own = os.path.dirname(stage)
    return draft(own, os.path.basename(own))


def _prefix(launch: str) -> str:
    return f"{DRAFT}{launch}-"


def publish(
    contents: Contents | None, notes: Iterable[StagedFile], drafted: str, root: str, launch: str
) -> None:
    """Give a finished draft its final names. `contents` is None if only the notes are new. Raises
    OSError.
    """
    if contents is not None and contents.key == HERE:
        place(drafted, newest := os.path.join(root, NEWEST + os.path.basename(root)))
        _replace_in_root(newest, root, contents.decisive, launch)
    elif contents is not None:
        for name in contents.moved:
            place(os.path.join(drafted, name), os.path.join(root, name))
    for each in notes:
        place(os.path.join(drafted, each.name), os.path.join(root, each.name))


def place(drafted: str, final: str) -> None:
    """Move a file or directory to its final name, in place of what is there. A directory that was
    there, or a file that a directory replaces, is in the draft afterwards. Raises OSError.
    """
    os.makedirs(os.path.dirname(final), exist_ok=True)
    are_files = not os.path.isdir(drafted) or os.path.islink(drafted)
    if are_files and not (os.path.isdir(final) and not os.path.islink(final)):
        os.replace(drafted, final)
    else:
        with _writable(drafted, final):
            if not os.path.lexists(final):
                os.rename(drafted, final)
            else:
                _exchange(drafted, final)
    sync(os.path.dirname(final))


@contextlib.contextmanager
def _writable(path: str, moved: str) -> Iterator[None]:
    """Make a read-only directory writable until it is at `moved`: a move changes its ".."."""
    mode = os.lstat(path).st_mode
    is_read_only = stat.S_ISDIR(mode) and not mode & stat.S_IWUSR
    if is_read_only:
        os.chmod(path, stat.S_IMODE(mode) | stat.S_IRWXU)
    yield
    if is_read_only:
        os.chmod(moved, stat.S_IMODE(mode))


def _exchange(drafted: str, final: str) -> None:
    with _writable(final, drafted):
        try:
            _rename_exchange(drafted, final)
        except OSError as e:
            if e.errno not in NO_EXCHANGE:
                raise
            os.rename(final, final + OLD)
            os.rename(drafted, final)
            os.rename(final + OLD, drafted)


def _rename_exchange(one: str, other: str) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, "no renameat2")
    if rename(AT_CWD, os.fsencode(one), AT_CWD, os.fsencode(other), EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), other)


def _replace_in_root(newest: str, root: str, decisive: str, launch: str) -> None:
    """Replace the files of a checkpoint that lies in the root by those of `newest`, which is whole.
    The decisive file is removed first and comes back last, so that a mixture is not complete.
    """
    sync(newest)
    sync(root)  # `newest` is on the disk before the old checkpoint loses its decisive file
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, decisive))
    items = [each for each in tree(newest, HERE) if each.name != HERE]
    with draft(root, launch) as drafted:
        for each in sorted(items, key=lambda each: each.name == decisive):
            path, final = os.path.join(newest, each.name), os.path.join(root, each.name)
            if each.is_folder:
                os.makedirs(final, exist_ok=True)
            else:
                new = os.path.join(drafted, each.name)
                os.makedirs(os.path.dirname(new), exist_ok=True)
                _link_or_copy(path, new)
                place(new, final)
    remove(newest, root, launch)


def _link_or_copy(path: str, new: str) -> None:
    try:
        os.link(path, new, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(path, new, follow_symlinks=False)
        if not os.path.islink(new):
            sync(new)


def remove(path: str, root: str, launch: str) -> None:
    """Delete a file or directory: first its name, in one step. Raises OSError."""
    with draft(root, launch) as drafted:
        with _writable(path, old := os.path.join(drafted, "old")):
            os.rename(path, old)
        sync(os.path.dirname(path))


def sweep(places: Iterable[str], decisive_of: Callable[[str], str], launch: str) -> bool:
    """Remove drafts that a killed stager has left in these directories, and finish what needed
    more than one step. `decisive_of` returns the decisive file of a complete checkpoint, or "".
    Return False if there are drafts that other launches may still need.
    """
    is_swept = True
    for place_ in places:
        for name in os.listdir(place_) if os.path.isdir(place_) else ():
            path = os.path.join(place_, name)
            if name.startswith(_prefix(launch)):
                with contextlib.suppress(FileNotFoundError):
                    remove(path, place_, launch)
            elif name.startswith(DRAFT):
                is_swept &= _remove_abandoned(path, place_, launch)
            elif name.endswith(OLD):
                if os.path.lexists(final := path.removesuffix(OLD)):
                    remove(path, place_, launch)
                else:
                    os.rename(path, final)
            elif name.startswith(NEWEST) and (decisive := decisive_of(path)):
                _replace_in_root(path, place_, decisive, launch)
    return is_swept


def _remove_abandoned(path: str, root: str, launch: str) -> bool:
    """Remove another launch's draft if nobody writes to it any more. Return whether it is gone. Its
    time is compared with that of a new draft, since the clock of storage may differ.
    """
    with contextlib.suppress(OSError):  # just removed, or another user's
        with draft(root, launch) as new:
            idle = os.stat(new).st_mtime - os.stat(path).st_mtime
        if idle > ABANDONED:
            remove(path, root, launch)
    return not os.path.lexists(path)


def later(each: StagedFile, root: str) -> StagedFile | None:
    """Return the file of this name below `root` if it was written later. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        there = file_at(root, each.name)
        return there if there.time > each.time else None
    return None
