"""The staging directory: BASE/hpclaunch-stage-UID/RANDOM/NAME, where NAME is the name of the
directory on storage, since some frameworks' rules depend on it (Accelerate's `checkpoints`).

RANDOM contains the staging directory and the stager's own files. It is in use as long as an agent
or a stager holds a shared lock on its file `lock`. After both were killed, the next launch removes
it: `sweep`. Only its user can read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat

BASE = "/dev/shm"  # noqa: S108 - each user has a private directory in it
LOCK = "lock"
UNNAMED = "checkpoints"  # the name for a storage directory without one, which is "/"


class StageDirectory:
    """A new staging directory, and the agent's lock on it. Raises OSError."""

    def __init__(self, base: str, storage: str) -> None:
        while True:
            self._home = _home(base)
            self._own = os.path.join(self._home, os.urandom(4).hex())
            try:
                os.mkdir(self._own, 0o700)
                self._lock = hold(self._own)
                break
            except (FileExistsError, FileNotFoundError):  # another launch has just removed it
                continue
        self.path = os.path.join(self._own, os.path.basename(os.path.abspath(storage)) or UNNAMED)
        os.mkdir(self.path)

    def remove(self) -> None:
        """Remove the directory and all that is in it. Close the client of the stager before."""
        shutil.rmtree(self._own, ignore_errors=True)
        os.close(self._lock)
        with contextlib.suppress(OSError):  # another launch has one
            os.rmdir(self._home)


def hold(own: str) -> int:
    """Return a descriptor that holds the shared lock of a directory RANDOM. Raises
    FileNotFoundError if another launch has removed it.
    """
    fd = os.open(os.path.join(own, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    if not os.fstat(fd).st_nlink:
        os.close(fd)
        raise FileNotFoundError(own)
    return fd


def sweep(base: str) -> None:
    """Remove this user's directories that nobody holds. Raises OSError."""
    home = _home(base)
    for name in os.listdir(home):
        own = os.path.join(home, name)
        with contextlib.suppress(OSError):  # in use, or just removed by another launch
            fd = os.open(os.path.join(own, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(own, ignore_errors=True)
            finally:
                os.close(fd)
    with contextlib.suppress(OSError):
        os.rmdir(home)


def _home(base: str) -> str:
    """Return the directory of this user's staging directories; make it if there is none. Raises
    PermissionError if it is another user's: anybody may create files in /dev/shm.
    """
    home = os.path.join(base, f"hpclaunch-stage-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(home, 0o700)
    found = os.lstat(home)
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & 0o077:
        raise PermissionError(1, "it is not a private directory of this user", home)
    return home
