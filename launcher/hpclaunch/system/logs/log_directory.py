"""The log directory: every worker's output in files of its own.

    DIR/round-0/rank-3.out    .err    .error.json

Workers write to their files themselves: a dead agent loses no line, and a stalled console stops no
worker. Only the user can read the files. A file that another user has put there is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.worker import private_files

LOCK = "launch.lock"
STATUS = "status.json"  # a snapshot of the job, which its head writes now and then
FIRST = "first-agent"  # exists while the first agent of a launch lives, or if it was killed
LONGEST = 1 << 16  # bytes read of FIRST, or of a lock
MOST = 100  # launches at once in one directory
TAIL_BYTES = 4096
TAIL_LINES = 12
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH
_ROUND = re.compile(r"round-(\d{1,6})")
EVIDENCE = "evidence"  # of a hang, in the directory of a round
# The end of a launch's name: the --rdzv-id, which may differ in each run, and the run's number.
_NUMBERED = re.compile(r"(_\w+)?(\.r\d+)?(-\d+)?$")
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_held: list[int] = []  # descriptors of locks, kept until this process ends


INDEXES = re.compile(r"index-agent-[\w.-]+\.txt")  # in the directory of a round
HISTORIES = re.compile(r"history-[\w.-]+\.jsonl")


def index_of(label: str) -> str:
    """Return the name of an agent's index."""
    return f"index-agent-{label}.txt"


def history_of(label: str, began: float) -> str:
    """Return the name of the history of an agent that began at this time."""
    return f"history-{label}-{time.strftime('%Y%m%dT%H%M%S', time.localtime(began))}.jsonl"


def matching(directory: Path, names: re.Pattern[str]) -> list[Path]:
    """Return the files in a directory whose names match, in order. Raises OSError."""
    return [directory / name for name in sorted(os.listdir(directory)) if names.fullmatch(name)]


class LogDirectory:
    """A log directory, created private to the user. Earlier output in it is never overwritten."""

    def __init__(self, path: Path, launch: str, again: str = "") -> None:
        """`again` is the name of the `launch` if it continues an earlier run, else ""."""
        self.path, self.launch = path.absolute(), launch
        self._substitute: Path | None = None
        self.first_round = _next_round(self.path, again) if again else 0
        with _refused(path):
            # A directory that exists keeps its mode; new files in it are private.
            private_files.make_directory(self.path)
            if not again:
                private_files.make_directory(self.round(0))
            usable = os.access(self.path, os.R_OK | os.W_OK | os.X_OK)
        if not usable:
            raise UsageError(f"cannot write to the log directory {path}: permission denied")

    def round(self, number: int) -> Path:
        """Return the directory for the files of a round."""
        return self.path / f"round-{number}"

    def was_begun(self, launch: str) -> bool:
        """Record that the first agent of this launch runs. Return whether it was killed before."""
        before, said = b"", os.fsencode(launch)
        with contextlib.suppress(OSError):
            fd = private_files.open_file(self.first, os.O_RDWR | os.O_CREAT)
            with open(fd, "r+b") as f:
                before = f.read(LONGEST)
                f.seek(0)
                f.truncate()
                f.write(said)
        return before == said

    @property
    def first(self) -> Path:
        return self.path / FIRST

    def make_substitute(self, number: int) -> Path:
        """Return a directory in the temporary directory of this host, for the files of a round that
        the log directory cannot take. Raises OSError.
        """
        if self._substitute is None:
            self._substitute = make_temporary("hpclaunch-logs-")
        return self._substitute / f"round-{number}"


def make_temporary(prefix: str) -> Path:
    """Make a directory with an unguessable name in the temporary directory of this host.

    Raises OSError if another user could rename a part of its path, and put something else there.
    """
    import tempfile  # slow to import, and seldom needed

    above = Path(tempfile.gettempdir()).resolve()
    for directory in (*reversed(above.parents), above):
        found = directory.stat()
        # In the user namespace of a container, root's files belong to the owner of /proc.
        if found.st_uid != os.stat("/proc").st_uid:
            private_files.check_directory(directory)
        if not found.st_mode & OTHERS_ENTER:
            break
        if found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise OSError(errno.EPERM, "others can rename its contents", str(directory))
    return Path(tempfile.mkdtemp(prefix=prefix, dir=above))


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        where = f" ({e.filename})" if e.filename and Path(e.filename) != path.absolute() else ""
        raise UsageError(f"cannot write to the log directory {path}: {e.strerror}{where}") from e


def default(name: str, *, alone: bool) -> Path:
    """Return the log directory of the launch `name`, which has no --log-dir.

    With `alone`, several launches may have the same name, and each gets its own directory.
    """
    above = of_all_launches()
    path = above / name
    with _refused(path):
        private_files.make_directory(above.absolute())
        for number in range(2, MOST) if alone else ():
            try:
                path.mkdir(mode=0o700)
                break
            except FileExistsError:
                path = above / f"{name}-{number}"
    return path


def of_all_launches() -> Path:
    """Return the directory above the log directories of launches without --log-dir.

    It is in the working directory. If the usual name there belongs to another user, even as a link
    to a directory of this user, the name gets this user's id.
    """
    usual = Path("hpclaunch-logs")
    try:
        is_own = usual.lstat().st_uid in (0, os.geteuid())  # of the link, if it is one
    except OSError:  # whoever uses it finds out why, and another agent may make it at this moment
        return usual
    with contextlib.suppress(OSError):
        if is_own and usual.stat().st_uid == os.geteuid():
            return usual
    return Path(f"{usual}-{os.geteuid()}")


def _next_round(path: Path, launch: str) -> int:
    """Return the number after the highest round of earlier runs. These used `path` itself, or
    directories beside it whose names differ only in the end (`_NUMBERED`).
    """
    alike = re.compile(re.escape(_NUMBERED.sub("", launch)) + _NUMBERED.pattern)
    found = []
    with contextlib.suppress(OSError):
        found = [beside for beside in path.parent.iterdir() if alike.fullmatch(beside.name)]
    if path in found:  # this run's: another agent of it may have begun a round there
        found.remove(path)
    else:
        found.append(path)
    return 1 + max(map(_last_round, found), default=-1)


def _last_round(directory: Path) -> int:
    with contextlib.suppress(OSError):
        return max(rounds(directory), default=-1)
    return -1


def rounds(directory: Path) -> dict[int, Path]:
    """Return the directories of rounds by their numbers. Raises OSError."""
    found = filter(None, map(_ROUND.fullmatch, os.listdir(directory)))
    return {int(match[1]): directory / match[0] for match in found}


def unused(path: Path, name: str, launch: str) -> tuple[Path, str]:
    """Return a directory that no other launch uses: `path`, or one in it called `name`. Return also
    the `name` that the first agent has passed: without Slurm, each agent passes a different one.

    The directory is in use as long as one of the launch's agents lives. All have the same `launch`.
    """
    found = path
    for number in range(1, MOST):
        with _refused(found):
            private_files.make_directory(found.absolute())
        writable = os.access(found, os.W_OK | os.X_OK)  # if not, LogDirectory complains
        called = _lock(found / LOCK, launch, name) if writable else name
        if called is not None:
            return found, called
        found = path / (name if number == 1 else f"{name}-{number}")
    raise UsageError(f"too many launches use the log directory {path}: give each one its own")


def _lock(path: Path, launch: str, name: str) -> str | None:
    """Lock a directory for this launch. Return the `name` of its first agent; None if another
    launch holds the lock. On a file system without locks, return `name`.
    """
    try:
        fd = private_files.open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError:
        return None  # such as another user's
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:  # no running launch holds it
            os.ftruncate(fd, 0)
            os.pwrite(fd, os.fsencode(f"{name}\n{launch}"), 0)
        # Wait for an agent that is just writing. The file shows whether another launch was faster.
        fcntl.flock(fd, fcntl.LOCK_SH)
        called, _, has_it = os.fsdecode(os.pread(fd, LONGEST, 0)).partition("\n")
        if has_it != launch:
            os.close(fd)
            return None
        name = called
    except OSError:
        pass
    _held.append(fd)
    return name


def is_locked(directory: Path) -> bool:
    """Return whether a launch uses a directory, as far as locks show it: a file system may have
    none, or only within one node.
    """
    try:
        fd = private_files.open_file(directory / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def close_written(fd: int) -> None:
    """Close a file that was written. NFS may report here that an earlier write has failed."""
    with contextlib.suppress(OSError):
        os.close(fd)


def size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path, begin: int) -> str:
    """Return the last lines of a file, without colours. `begin` is its size at the start of the
    round: earlier bytes are from another launch.
    """
    text = without_colours(_end(path, begin).decode(errors="replace")).strip("\n")
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def without_colours(text: str) -> str:
    """Return a text without its colours and all other CSI escape sequences."""
    return _COLOURS.sub("", text)


def _end(path: Path, begin: int) -> bytes:
    try:
        with open(path, "rb", opener=private_files.open_file) as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(begin, f.tell() - TAIL_BYTES))
            return f.read()
    except OSError:
        return b""
