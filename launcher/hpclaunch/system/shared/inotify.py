"""inotify(7): a descriptor that is readable when files have grown.

Standard library only, and no search for the C library, which would start a program.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable

MODIFY = 0x2
ONESHOT = 0x80000000
_HEAD = struct.Struct("iIII")  # watch, what has happened, cookie, length of the name behind it
_ROOM = 1 << 16  # bytes that are read at once; the kernel cuts no event in two


class Inotify:
    """Watches, each with its number. Raises OSError where the kernel grants none."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _call(self._libc.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def add_watch(self, path: str | os.PathLike[str], mask: int) -> int:
        """Return the number of the watch, which is the one from before if the file has one."""
        add = self._libc.inotify_add_watch
        return _call(add, self._fd, os.fsencode(path), ctypes.c_uint32(mask))

    def rm_watch(self, watch: int) -> None:
        _call(self._libc.inotify_rm_watch, self._fd, watch)

    def read(self) -> list[int]:
        """Return the watches of what has happened so far, one for each event; -1 if some of it was
        lost because nobody has read for long.
        """
        found: list[int] = []
        data = b"?" * _ROOM
        while len(data) == _ROOM:  # there may be more
            try:
                data = os.read(self._fd, _ROOM)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                watch, _, _, length = _HEAD.unpack_from(data, at)
                found.append(watch)
                at += _HEAD.size + length
        return found

    def close(self) -> None:
        os.close(self._fd)


def _call(function: Callable[..., int], *args: object) -> int:
    while (result := function(*args)) < 0:
        if (error := ctypes.get_errno()) != errno.EINTR:
            raise OSError(error, os.strerror(error))
    return result
