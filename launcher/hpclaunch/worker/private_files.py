"""Directories and files for this user alone, also where others may write.

In a directory that a group shares, others can put a link, a file or a directory in the place of one
of ours. So no link is followed except the user's own to a directory, and files and directories that
exist have to belong to this user (`site/_hpclaunch_ownership.py`).

Everything here raises OSError with a reason for the user. `site/_hpclaunch_errors.py` opens a
file in its own way, since a worker can import nothing from here.
"""

from __future__ import annotations

import errno
import os
import stat

from .site._hpclaunch_ownership import is_ours

Path = str | os.PathLike[str]
MOST = 64 << 20  # bytes of a file that `read_file` reads
ANOTHERS = "it belongs to another user"


def make_directory(path: Path) -> None:
    """Make a directory with mode 0700, and likewise each missing directory above it.

    One that is there keeps its mode.
    """
    above = os.path.dirname(path)
    if above and not os.path.lexists(above):
        make_directory(above)
    try:
        os.mkdir(path, 0o700)
    except OSError:
        if not os.path.lexists(path):
            raise
        check_directory(path)


def check_directory(path: Path) -> None:
    """Raise OSError unless this is a directory of this user, or a link of this user to one."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        if not is_ours(found, os.path.dirname(path)):
            raise OSError(errno.EPERM, "it is a link of another user", path)
        found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if not is_ours(found, path):
        raise OSError(errno.EPERM, ANOTHERS, path)


def open_file(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file that has no other name; a new one gets mode 0600.

    A file that is refused stays as it is: with O_TRUNC, a file is emptied once it is accepted.
    """
    # Without O_NONBLOCK, a pipe in its place could make this wait.
    more = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags & ~os.O_TRUNC | more, 0o600)
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", path) from None
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EPERM, "it is not a regular file", path)
        if not is_ours(found, os.path.dirname(path)):
            raise OSError(errno.EPERM, ANOTHERS, path)
        if found.st_nlink > 1:
            raise OSError(errno.EPERM, "it has another name too (a hard link)", path)
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
    except OSError:
        os.close(fd)
        raise
    return fd


def read_file(path: Path, most: int = MOST) -> bytes:
    """Return the content of a file that `open_file` accepts. Raises OSError if it exceeds `most`
    bytes."""
    with open(path, "rb", opener=open_file) as f:
        size = os.fstat(f.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return f.read(size)  # a file that grows meanwhile is cut off here
