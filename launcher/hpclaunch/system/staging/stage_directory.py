"""The staging directory: BASE/hpclaunch-stage-UID/HASH/NAME, where NAME is the name of the
directory on storage, since some frameworks' rules depend on it (Accelerate's `checkpoints`). HASH
is a checksum of the path on storage, so that the staging directory has the same path on all nodes,
and in the next launch: scripts send it to other ranks, and save it in files (`last_checkpoint` of
MMEngine). If another launch has that directory, HASH is random.

HASH contains the staging directory and the stager's own files. It is in use as long as an agent or
a stager holds a shared lock on its file `lock`. After both were killed, the next launch removes it:
`sweep`. Only its user can read it.

If only the agent was killed, its stager still drains what is newest. A later launch that uses the
same storage directory waits for it: `await_orphans`. It finds such a stager by the file `.agent`,
which contains the path of that directory, and on which an agent that lives has a lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import BinaryIO

from hpclaunch.core.protocol.crc import checksum

BASE = "/dev/shm"  # noqa: S108 - each user has a private directory in it
LOCK, AGENT, VIEW, RECORD, HELD = "lock", ".agent", "view", "record", "held"
KEPT, LENT, FETCHED, RESTORE = "kept", "lent", "fetched", "restore"
BESIDE = {LOCK, AGENT, VIEW, RECORD, HELD, KEPT, LENT, FETCHED, RESTORE}  # what HASH has, too
UNNAMED = "checkpoints"  # NAME, if the one on storage is among these, or storage is "/"


class StageDirectory:
    """A new staging directory, and the agent's locks on it. Raises OSError."""

    def __init__(self, base: str, storage: str) -> None:
        self._base, self._storage = base, os.path.abspath(storage)
        name = f"{checksum(self._storage):08x}"
        while True:
            self._own = os.path.join(_make_home(base), name)
            try:
                self._lock, self._agent = self._make()
                break
            except FileNotFoundError:  # another launch has just removed it
                continue
            except OSError as e:
                if e.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                    raise
                name = os.urandom(4).hex()

    @property
    def path(self) -> str:
        return os.path.join(self._own, _name(self._storage))

    def _make(self) -> tuple[int, int]:
        """Make the directory, with another name until it is locked: other launches may begin at the
        same time. Return the descriptors that hold the agent's locks.
        """
        draft = os.path.join(_home(self._base), os.urandom(4).hex())
        os.mkdir(draft, 0o700)
        with contextlib.ExitStack() as undo:
            undo.callback(self._delete, draft)
            undo.callback(os.close, lock := lock_shared(draft))
            undo.callback(os.close, agent := _open(draft, AGENT))
            fcntl.flock(agent, fcntl.LOCK_EX)
            os.write(agent, os.fsencode(self._storage))  # fails if only empty files fit
            os.mkdir(os.path.join(draft, _name(self._storage)))
            os.rename(draft, self._own)  # fails if another launch has that one
            undo.pop_all()
        return lock, agent

    def renew(self) -> None:
        """Make the directory again if another program has deleted it."""
        if not is_deleted(self._lock):
            return
        sweep(self._base)  # what that program has left, unless another launch has the name now
        _make_home(self._base)
        old = self._lock, self._agent
        self._lock, self._agent = self._make()
        for fd in old:
            os.close(fd)

    def remove(self) -> None:
        """Remove the directory and all that is in it. First close the client of the stager."""
        self._delete(self._own)
        os.close(self._lock)
        os.close(self._agent)

    def _delete(self, path: str) -> None:
        rmtree(path)
        with contextlib.suppress(OSError):  # another launch has one
            os.rmdir(_home(self._base))


def lock_shared(own: str) -> int:
    """Return a descriptor that holds the shared lock of a directory HASH. Raises
    FileNotFoundError if another launch has removed it.
    """
    fd = _open(own, LOCK)
    fcntl.flock(fd, fcntl.LOCK_SH)
    if is_deleted(fd):
        os.close(fd)
        raise FileNotFoundError(own)
    return fd


def is_deleted(lock: int) -> bool:
    """Return whether the directory of this lock, which is open, was deleted with it."""
    return not os.fstat(lock).st_nlink


def sweep(base: str) -> None:
    """Remove this user's directories that nobody holds. Raises OSError."""
    home = _make_home(base)
    for name in _names(home):
        own = os.path.join(home, name)
        with contextlib.suppress(OSError):  # in use, or just removed by another launch
            fd = _open(own, LOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not is_deleted(fd):  # else another launch has that name now
                    rmtree(own)
            finally:
                os.close(fd)
    with contextlib.suppress(OSError):
        os.rmdir(home)


def of_launches(storage: str) -> Iterator[str]:
    """Yield the staging directories in the memory of this node in which running launches of this
    user save for the directory `storage`. If a launch's stager here leads those of other nodes,
    yield the view of all nodes instead.
    """
    home = _home(BASE)
    try:
        _refuse_others(home)
    except OSError:  # there is none, or somebody else has made it
        return
    for own, lives in _agents(home, storage):
        if lives:
            view = os.path.join(own, VIEW, _name(storage))
            yield view if os.path.isdir(view) else os.path.join(own, _name(storage))


def _agents(home: str, storage: str) -> Iterator[tuple[str, bool]]:
    """Yield each directory HASH of a storage directory, and whether its agent lives."""
    for own in (os.path.join(home, name) for name in _names(home)):
        with contextlib.suppress(OSError), open(os.path.join(own, AGENT), "rb") as agent:
            if agent.read() == os.fsencode(os.path.abspath(storage)):
                yield own, _is_locked(agent)


def _is_locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _name(storage: str) -> str:
    name = os.path.basename(os.path.abspath(storage))
    return UNNAMED if name in {"", *BESIDE} else name


def await_orphans(own: str, storage: str) -> None:
    """Wait until the stagers of dead agents have drained what they have for this storage directory.
    `own` is the caller's directory HASH.
    """
    for other, lives in _agents(os.path.dirname(own), storage):
        if other != own and not lives:
            with contextlib.suppress(OSError):
                lock = _open(other, LOCK)
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.close(lock)


def _open(own: str, name: str) -> int:
    return os.open(os.path.join(own, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _names(home: str) -> list[str]:
    try:
        return os.listdir(home)
    except FileNotFoundError:  # another launch has just removed it
        return []


def _make_home(base: str) -> str:
    """Return the directory of this user's staging directories; make it if there is none. Raises
    PermissionError if it is another user's: anybody may create files in /dev/shm.
    """
    home = _home(base)
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(home, 0o700)
        with contextlib.suppress(FileNotFoundError):  # another launch has just removed it
            _refuse_others(home)
            return home


def _home(base: str) -> str:
    return os.path.join(base, f"hpclaunch-stage-{os.geteuid()}")


def _refuse_others(home: str) -> None:
    """Raise PermissionError if a directory is another user's, or open to others."""
    found = os.lstat(home)
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & 0o077:
        raise PermissionError(1, "it is not a private directory of this user", home)


def rmtree(root: str) -> None:
    """Remove a directory and all that is in it, as far as that is possible: a script may have made
    some of its directories read-only.
    """

    def retry(remove: Callable[[str], None], path: str, _error: object) -> None:
        if path != root and remove in (os.unlink, os.rmdir):
            with contextlib.suppress(OSError):
                os.chmod(os.path.dirname(path), 0o700)
                remove(path)

    shutil.rmtree(root, onerror=retry)
