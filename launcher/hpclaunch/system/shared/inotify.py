"""inotify(7): a descriptor that is readable when files have grown.

Standard library only, and no search for the C library, which would start a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Callable

MODIFY = 0x2
ONESHOT = 0x80000000
_HEAD = struct.Struct("iIII")  # watch, what has happened, cookie, length of the name that follows
_ROOM = 1 << 16  # bytes that are read at once; the kernel splits no event


class Inotify:
    """Watches by number. Without inotify, `fileno` is -1, and `add_watch` raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = _call(self._libc.inotify_init1, os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._fd

    def add_watch(self, path: str | os.PathLike[str], mask: int) -> int:
        """Watch a file, and return the number of its watch: the same again if it has one. Raises
        OSError if the kernel grants no more watches.
        """
        add = self._libc.inotify_add_watch
        return _call(add, self._fd, os.fsencode(path), ctypes.c_uint32(mask))

    def rm_watch(self, watch: int) -> None:
        _call(self._libc.inotify_rm_watch, self._fd, watch)

    def read(self) -> list[int]:
        """Return the watches of the events so far, one for each; -1 if the kernel has lost some,
        because they were not read for long.
        """
        found: list[int] = []
        data = b"?" * _ROOM if self._fd >= 0 else b""
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _call(function: Callable[..., int], *args: object) -> int:
    while (result := function(*args)) < 0:
        if (error := ctypes.get_errno()) != errno.EINTR:
            raise OSError(error, os.strerror(error))
    return result
