"""The surroundings of all tests: the same in any shell, job or terminal.

Tests start real programs, and a program inherits ignored signals (`nohup make test &`), the umask,
limits, the locale, and variables of a cluster job from its parent. Only tests that set these on
purpose must depend on them. So every process that runs tests begins with `make_known`:

signals      none is ignored or blocked, except those that Python itself ignores
umask        022
limits       1024 open files, as after a login, or fewer if only fewer are allowed; no core files,
             since some tests abort on purpose
environment  the variables in KEPT, and a UTF-8 locale; no virtual environment is active, and
             `python3` in PATH is a program, not pyenv's shell script, which is three times slower
bytecode     Python keeps compiled files, also those of the tests

Limits on time, memory and the size of files are kept, since they are meant for the tests too.

`pytest --surroundings umask,home` sets unusual ones on purpose, for the programs that tests start:
see SURROUNDINGS, and `make test-surroundings`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

KEPT = (
    *("PATH", "LD_LIBRARY_PATH"),  # needed to find and run programs
    *("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"),
)
# Variables for the tests themselves: what they must not skip, a seed, a program to compare with
CONTROLS = (
    *("HPCLAUNCH_SLURM_REQUIRED", "HPCLAUNCH_GPU_REQUIRED", "HPCLAUNCH_GPU_LIMIT"),
    *("HPCLAUNCH_SOAK_SEED", "HPCLAUNCH_REAL_MPS_CONTROL"),
)
PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)  # ignored by every Python, but not by its children

SURROUNDINGS = {
    "umask": "umask 077: new files are readable by their owner only",
    "locale": "LC_ALL=C, without Python's coercion to UTF-8",
    "descriptors": "ulimit -n 256: no process can have more open files",
    "home": "HOME cannot be written, not even by root",
    "tmpdir": "TMPDIR is longer than the path of a socket may be, and has a space and an umlaut",
    "stranger": "another user's process has a name that ends within a character",
}
PORTS = range(10000, 20000)  # for servers of tests: neither the kernel's own choice, nor a launch's
SHORT = "/tmp"  # the directory for sockets, whose paths must be short
STRANGER = Path(__file__).parent / "stand_ins" / "stranger.py"
STAND_INS = str(STRANGER.parent)
# The first line of a script that checks whether its template has imported a module.
PRELOADED = (
    "import sys; preloaded = lambda name: "
    "name in sys.modules or any(name in getattr(f, 'modules', ()) for f in sys.meta_path)\n"
)
LIGHT_TORCH = str(STRANGER.with_name("light_torch"))  # for PYTHONPATH, where torch is not tested
LIGHT_SKLEARN = str(STRANGER.with_name("light_sklearn"))  # likewise, for scripts that need digits
entered: set[str] = set()  # the names of the unusual surroundings that are set
variables: dict[str, str] = {}  # their variables, for the programs that tests start
_strangers: list[subprocess.Popen[bytes]] = []  # they run as long as this process


def make_known() -> None:
    """Set the known surroundings of this process, and so of its child processes."""
    if sys.getfilesystemencoding() != "utf-8":
        raise RuntimeError("the tests' own Python needs UTF-8: LC_ALL=C.UTF-8 make test")
    # A signal with a handler here has its default action in a child process.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: _ignore_hangup}
    for signum in signal.valid_signals():
        if signum not in PYTHONS and signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, usual.get(signum, signal.SIG_DFL))
    if "PYTEST_XDIST_WORKER" in os.environ:  # this process ends with its parent anyway
        signal.signal(signal.SIGHUP, _ignore_hangup)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 1024 if hard == resource.RLIM_INFINITY else min(1024, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    for name in list(os.environ):
        if name not in (*KEPT, *CONTROLS) and not name.startswith("PYTEST_"):
            del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    if sys.prefix != sys.base_prefix:
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        path = [directory for directory in path if directory != f"{sys.prefix}/bin"]
        if (base := f"{sys.base_prefix}/bin") not in path:
            path.insert(0, base)
        os.environ["PATH"] = os.pathsep.join(path)
    sys.dont_write_bytecode = False


def _ignore_hangup(*_: object) -> None:
    """Do nothing: tests that were started with nohup survive their terminal."""


def environment(**changes: object) -> dict[str, str]:
    """Return the environment for a program that a test starts, with these changes."""
    known = {name: value for name, value in os.environ.items() if name not in CONTROLS}
    return known | {name: str(value) for name, value in changes.items()}


def enter(name: str) -> None:
    """Set unusual surroundings for the programs of tests; `export_variables` must follow."""
    entered.add(name)
    match name:
        case "umask":
            os.umask(0o077)
        case "locale":
            # By default, Python uses UTF-8 in the C locale.
            variables.update(LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
        case "descriptors":
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        case "home":
            variables.update(HOME="/sys/kernel")
        case "tmpdir":
            _move_temporary_files()
        case "stranger":
            _strangers.append(start_stranger())


def export_variables() -> None:
    """Export `variables` to child processes from now on.

    The processes that run tests must have been started before, since they need a UTF-8 locale.
    """
    os.environ.update(variables)


def _move_temporary_files() -> None:
    """Move the directory of temporary files, including pytest's own."""
    name = f"a temporary directory für {os.geteuid()}"
    if name not in tempfile.gettempdir():
        path = Path(tempfile.gettempdir(), name, *["that is far below the root"] * 3)
        path.mkdir(parents=True, exist_ok=True)
        for directory in (path, *path.parents):
            directory.chmod(0o1777)
            if directory.name == name:
                break
        tempfile.tempdir = str(path)
    variables["TMPDIR"] = tempfile.gettempdir()


@contextmanager
def full_disk() -> Iterator[None]:
    """Prevent all files that this process writes from growing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def start_stranger(name: bytes = b"mod\xc3") -> subprocess.Popen[bytes]:
    """Start a process with this name; it ends with this process."""
    command = [sys.executable, str(STRANGER), name.hex()]
    stranger = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert stranger.stdout is not None, "stdout is a pipe"
    with stranger.stdout as closed:
        closed.read()
    return stranger


def free_port() -> int:
    """Return a port that nobody listens at. No program gets it without asking for it, so it stays
    free until it is used.
    """
    while True:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def free_ports(number: int) -> list[int]:
    """Return so many different ports that nobody listens at."""
    ports: set[int] = set()
    while len(ports) < number:
        ports.add(free_port())
    return sorted(ports)


def is_asked_by_test(end: socket.socket) -> bool:
    """Return whether this process, or one below it, has made a connection to an agent's socket. The
    commands of other tests ask all agents on this machine.
    """
    pid, *_ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with contextlib.suppress(psutil.Error):
        return os.getpid() in (pid, *(parent.pid for parent in psutil.Process(pid).parents()))
    return False


@contextmanager
def talker(words: bytes, port: int = 0) -> Iterator[int]:
    """Run a program that sends these words on each connection to a port; yield the port."""
    command = [sys.executable, str(STRANGER.with_name("talker.py")), str(port), words.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None, "stdout is a pipe"
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def names_like_those_of_agents(number: int) -> list[bytes]:
    return [f"\0hpclaunch/{os.geteuid()}/{i:016}".encode() for i in range(number)]


@contextmanager
def impostor(
    names: Sequence[bytes], answer: str = "silence", kind: int = socket.SOCK_DGRAM
) -> Iterator[None]:
    """Run a program that has sockets with these names, as another user if we are root.

    For `answer`, see stand_ins/impostor.py.
    """
    program = str(STRANGER.with_name("impostor.py"))
    command = [sys.executable, program, str(int(kind)), answer, *(name.hex() for name in names)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None, "stdout is a pipe"
        assert process.stdout.readline() == b"ready\n"
        yield
