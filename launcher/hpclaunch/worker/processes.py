"""Processes: how the fork server and the MPS keeper start and end them, and what /proc shows of
them.

/proc is read as bytes: the name of a process may be no valid text, and is cut after 15 bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import TypeAlias

from .private_files import open_file

NS = 1e9
TICKS = os.sysconf("SC_CLK_TCK")  # in a second
MACHINE = os.uname().machine
# Fields of /proc/PID/stat after the name. CPU_TIMES is in ticks, STARTED in ticks since the boot.
STATE, PARENT, GROUP, SESSION, STARTED, VIRTUAL_MEMORY, LAST_CPU = 0, 1, 2, 3, 19, 20, 36
CPU_TIMES = slice(11, 13)
# Bytes of a file of /proc: of most files, and of the arguments and the environment of a process,
# for which Linux allows 6 MiB together where the stack may be large
SMALL, LARGE = 1 << 16, 6 << 20
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_LIMIT = 5.0  # seconds; what happens after that is up to the agent
SPARED = (  # signals that Slurm or a terminal sends to every process; only the agent acts on them
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,  # or nobody could end the workers of a stopped agent
    signal.SIGUSR1,
    signal.SIGUSR2,
)

Handlers: TypeAlias = Mapping[
    int, Callable[[int, FrameType | None], object] | int | signal.Handlers | None
]
# Found now: a child that has just been forked may take no lock.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def user_name(uid: int) -> str:
    """Return the name of a user, or the number where this node does not know the account."""
    import pwd  # for messages only

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def prctl(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def children(of: int | None = None) -> list[int]:
    """Return the pids of a process's children, also adopted ones; by default of this process."""
    parent = of or os.getpid()
    try:
        with open(f"/proc/{parent}/task/{parent}/children", "rb") as f:
            return [int(pid) for pid in f.read().split()]
    except OSError:  # it has ended, or the kernel was built without CONFIG_PROC_CHILDREN
        stats = ((pid, stat(pid)) for pid in all_pids())
        return [pid for pid, fields in stats if fields and int(fields[PARENT]) == parent]


def foreground(worker: int, signum: int = 0) -> list[int]:
    """Return the processes to signal for a worker: itself, and its children in its process group
    while it only waits for them, as a shell does that runs a program. With `signum`, leave out the
    children of a process that has a handler for it: forks of it would run this handler, too."""
    found = [worker]
    for each in found:
        if signum and catches(each, signum, ignored=False):
            continue
        if read_proc(f"{each}/wchan") == b"do_wait":
            found += [pid for pid in children(each) if group_of(pid) == worker]
    return found


def group_of(pid: int) -> int:
    """Return the process group of a process; 0 if it has ended."""
    fields = stat(pid)
    return int(fields[GROUP]) if fields else 0


def read_proc(file: str, most: int = SMALL) -> bytes:
    """Return the content of a file of /proc; b"" if it cannot be read. This takes the fewest system
    calls: workers that make no progress are read again and again."""
    try:
        fd = os.open(f"/proc/{file}", os.O_RDONLY)
        try:
            return os.read(fd, most)
        finally:
            os.close(fd)
    except OSError:
        return b""


def file_of(pid: int, fd: str) -> bytes:
    """Return the file of a descriptor of a process, as /proc names it; b"" if it is not open."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}".encode())
    except OSError:
        return b""


def command_line(pid: int) -> list[str]:
    return [os.fsdecode(word) for word in read_proc(f"{pid}/cmdline", LARGE).split(b"\0")[:-1]]


def program(pid: int | str) -> str:
    """Return the name of a process, as ps and top show it; "" if it has ended."""
    return read_proc(f"{pid}/comm").decode(errors="replace").removesuffix("\n")


def variable(pid: int, name: str) -> str | None:
    """Return a variable from the environment with which a process was started; None if not set."""
    start = os.fsencode(f"{name}=")
    words = read_proc(f"{pid}/environ", LARGE).split(b"\0")
    found = (os.fsdecode(word[len(start) :]) for word in words if word.startswith(start))
    return next(found, None)


def descendants(spared: Iterable[int], of: int | None = None) -> set[int]:
    """Return the pids of all descendants of a process, by default of this one, except the `spared`
    ones and theirs."""
    top = of or os.getpid()
    parents = {pid: int(fields[PARENT]) for pid in all_pids() if (fields := stat(pid))}
    found, spared = {top}, {*spared}
    while more := {p for p, parent in parents.items() if parent in found} - found - spared:
        found |= more
    return found - {top}


def all_pids() -> Iterable[int]:
    return map(int, filter(str.isdecimal, os.listdir("/proc")))


def threads_of(pid: int) -> list[str]:
    """Return the ids of a process's threads, as text; [] if it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def stat(process: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, of PID or PID/task/TID; [] without it."""
    return read_proc(f"{process}/stat").rpartition(b")")[2].split()


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal, such as SIGSTOP."""
    fields = stat(pid)
    return bool(fields) and fields[STATE] == b"T"


def status_of(process: int | str) -> dict[bytes, bytes]:
    """Return the lines of /proc/PID/status by name, for PID or PID/task/TID; {} without it."""
    parts = (line.partition(b":\t") for line in read_proc(f"{process}/status").splitlines())
    return {name: value for name, mark, value in parts if mark}


def ran(process: int | str) -> float:
    """Return the seconds for which a thread has run; 0.0 if it has ended, or this kernel does not
    count them. `process` is PID/task/TID, or PID for the main thread."""
    return _scheduled(process, 0) or 0.0


def queued(process: int | str) -> float | None:
    """Return the seconds for which a thread could have run but had no CPU; None if it has ended, or
    this kernel does not count them. `process` is as for `ran`."""
    return _scheduled(process, 1)


def _scheduled(process: int | str, field: int) -> float | None:
    try:
        return int(read_proc(f"{process}/schedstat").split()[field]) / NS
    except (ValueError, IndexError):
        return None


def io_of(pid: int) -> dict[bytes, int]:
    """Return the counters of /proc/PID/io, by name; {} if they may not be read."""
    lines = read_proc(f"{pid}/io").splitlines()
    return {name: int(number) for name, number in (line.split(b": ") for line in lines)}


def catches(pid: int, signum: int, *, ignored: bool = True) -> bool:
    """Return whether a process has a handler for a signal, or with `ignored` ignores it."""
    status, wanted = status_of(pid), (b"SigCgt", b"SigIgn") if ignored else (b"SigCgt",)
    return any(int(status.get(name, b"0"), 16) >> (signum - 1) & 1 for name in wanted)


def take_pending(signums: Iterable[int]) -> dict[int, int]:
    """Take the blocked signals that are pending. Return {signal: pid of its sender, 0 for the
    kernel}."""
    found = {}
    while (info := signal.sigtimedwait(signums, 0)) is not None:
        found[info.si_signo] = info.si_pid
    return found


def ancestry(pid: int) -> list[int]:
    """Return this pid, that of the parent, of its parent, and so on."""
    found = [pid]
    while fields := stat(found[-1]):
        found.append(int(fields[PARENT]))
    return found


def numbers(text: str) -> set[int]:
    return {int(number) for number in text.split(",") if number}


def to_group(pid: int, signum: int) -> None:
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:  # so young that it has no group of its own yet
        signal_all([pid], signum)
    except PermissionError:  # all of them run as other users by now
        pass


def exists(group: int) -> bool:
    """Return whether a process group has a process that can be sent a signal."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # all of them run as other users by now
        return False
    return True


def oldest_first(pids: Iterable[int]) -> list[int]:
    """Sort processes by the time at which they were started, so that each is before its children.
    Those that have ended are first."""

    def started(pid: int) -> tuple[int, int]:
        fields = stat(pid)
        # The time is in steps of 10 ms. Within one, a child's pid is higher, unless pids wrap.
        return (int(fields[STARTED]) if fields else 0, pid)

    return sorted(pids, key=started)


def signal_all(pids: Iterable[int], signum: int) -> None:
    """Send a signal to those processes that still exist and belong to this user, to each before its
    children: a shell whose program has ended would start the next one."""
    for pid in oldest_first(pids):
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            pass


def sweep(spared: Callable[[], set[int]], wait: Callable[[], None]) -> None:
    """Send SIGKILL until only the `spared` children are left, for SWEEP_LIMIT at most. `wait` waits
    for a moment, and then reaps the children that have ended.

    Grandchildren become children on the way. A process in a hung system call cannot be killed; if
    it ends after all, there is a SIGCHLD as for any other.
    """
    limit = time.monotonic() + SWEEP_LIMIT
    while time.monotonic() < limit and (living := set(children()) - spared()):
        signal_all(living, signal.SIGKILL)
        wait()


def kill_all(spared: set[int]) -> None:
    """Kill all descendants until no new ones are found: no worker does anything from then on."""
    killed: set[int] = set()
    while living := descendants(spared) - killed:
        signal_all(living, signal.SIGKILL)
        killed |= living


def exit_code(status: int) -> tuple[int, int]:
    """Return (exit code as a shell gives it, signal or 0) of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return (code, 0) if code >= 0 else (128 - code, -code)


def append_to(path: str | int) -> int:
    """Open a stream of a worker for appending: a file, a terminal (but not as its controlling one),
    or a pipe, which is given as a descriptor."""
    if isinstance(path, int):
        return os.dup(path)
    if path.startswith("/dev/pts/"):
        return os.open(path, os.O_RDWR | os.O_NOCTTY)
    return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def complain(path: str | int, why: str) -> None:
    """Write to a stream of a worker why it was not started, if that is possible."""
    with (
        contextlib.suppress(OSError),
        open(append_to(path), "w", encoding="utf-8", errors="surrogateescape") as f,
    ):
        f.write(f"hpclaunch: {why}\n")


class Wakeup:
    """A descriptor that becomes readable when a child ends. It is open until this process ends."""

    def __init__(self) -> None:
        self._socket, self._other = socket.socketpair()
        for end in (self._socket, self._other):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._other.fileno(), warn_on_full_buffer=False)
        atexit.register(self.close)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._socket.close()
        self._other.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> None:
        try:
            while self._socket.recv(512):
                pass
        except BlockingIOError:
            pass


class Spawner:
    """Starts programs with the signal handlers and mask that the agent was started with."""

    def __init__(self, handlers: Handlers, blocked: Iterable[int]) -> None:
        self.handlers = handlers
        self.blocked = blocked

    def spawn(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        out: str | int,
        err: str | int,
        *,
        stdin: str = "",
        cpus: Iterable[int] = (),
        blocked: Iterable[int] = (),
    ) -> int:
        """Start a program and return its pid. `out` and `err` are descriptors or paths, to append
        to; `stdin` is a path, or "" for that of this process.

        A program that cannot be started ends with a shell's exit code, 126 or 127. `blocked` are
        signals to block beside those that the user has blocked.
        """
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            if stdin:
                os.dup2(os.open(stdin, os.O_RDONLY), 0)
            os.dup2(append_to(out), 1)
            os.dup2(append_to(err), 2)
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            for s, handler in self.handlers.items():
                signal.signal(s, handler)
            for s in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
                signal.signal(s, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, {*self.blocked, *blocked})
            if cpus:
                try:
                    os.sched_setaffinity(0, cpus)
                except OSError:
                    pass  # the cgroup has shrunk meanwhile: the CPUs that it has are good enough
            os.execvpe(argv[0], [*argv], environ)
        except OSError as e:
            why = f"hpclaunch: cannot start {argv[0]}: {e.strerror}: {e.filename}\n"
            os.write(2, why.encode("utf-8", "surrogateescape"))
            os._exit(127 if e.errno == errno.ENOENT else 126)
        finally:
            os._exit(126)
