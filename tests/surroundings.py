"""What the tests run in: always the same, whatever the shell, job or terminal that started them.

A test starts real programs, and a program inherits from whoever starts it: signals that are
ignored (`nohup make test &`), the umask, limits, the locale, and variables of a cluster job. What
it does then is of interest, but to a test that has made these surroundings on purpose. So every
process that runs tests begins with `make_known`:

signals      none is ignored or blocked but those that Python ignores itself
umask        022
limits       1024 open files, as a login gives them, or fewer where no more are allowed; no core
             files, since some tests abort on purpose
environment  the variables in KEPT, and a UTF-8 locale; no virtual environment is active, and a
             `python3` in PATH is a program: pyenv has a shell script, which takes three times as
             long to start
bytecode     Python keeps what it has compiled: of the tests, too, which pytest compiles

Limits on time, memory and the size of files stay: whoever has set them means the tests too.

`pytest --surroundings umask,home` makes unusual ones on purpose, for whatever the tests start: see
SURROUNDINGS, and `make test-surroundings`.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

KEPT = (
    *("PATH", "LD_LIBRARY_PATH"),  # with which programs are found, and can run
    *("HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"),
)
# For the tests themselves: what they must not skip, which faults they choose, a program to compare
CONTROLS = (
    *("HPCLAUNCH_SLURM_REQUIRED", "HPCLAUNCH_GPU_REQUIRED", "HPCLAUNCH_GPU_LIMIT"),
    *("HPCLAUNCH_SOAK_SEED", "HPCLAUNCH_REAL_MPS_CONTROL"),
)
PYTHONS = (signal.SIGPIPE, signal.SIGXFSZ)  # every Python ignores them, but for what it starts

SURROUNDINGS = {
    "umask": "umask 077: what one user makes, no other can read",
    "locale": "LC_ALL=C, and no Python that makes UTF-8 of it",
    "descriptors": "ulimit -n 256: no process can have more open files",
    "home": "HOME cannot be written, not even by root",
    "tmpdir": "TMPDIR is longer than the path of a socket may be, with a space and an umlaut in it",
    "stranger": "another user's process has a name that ends within a character",
}
SHORT = "/tmp"  # where sockets lie, wherever temporary files are: their paths have a limit
STRANGER = Path(__file__).parent / "stand_ins" / "stranger.py"
STAND_INS = str(STRANGER.parent)
# The first line of a script that asks whether its template has imported what it has not itself.
PRELOADED = (
    "import sys; preloaded = lambda name: "
    "name in sys.modules or any(name in getattr(f, 'modules', ()) for f in sys.meta_path)\n"
)
LIGHT_TORCH = str(STRANGER.with_name("light_torch"))  # for PYTHONPATH, where torch is not tested
entered: set[str] = set()  # which of them
variables: dict[str, str] = {}  # that it has, for whatever the tests start
_company: list[subprocess.Popen[bytes]] = []  # for as long as this process lives


def make_known() -> None:
    """Of this process, and so of all that it starts."""
    if sys.getfilesystemencoding() != "utf-8":
        raise RuntimeError("the tests' own Python needs UTF-8: LC_ALL=C.UTF-8 make test")
    # What has a handler here has the default action in a program that is started from here.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: _go_on}
    for signum in signal.valid_signals():
        if signum not in PYTHONS and signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, usual.get(signum, signal.SIG_DFL))
    if "PYTEST_XDIST_WORKER" in os.environ:  # it ends when the process does that has started it
        signal.signal(signal.SIGHUP, _go_on)
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


def _go_on(*_: object) -> None:
    """Tests that were started with nohup outlive their terminal."""


def environment(**changes: object) -> dict[str, str]:
    """For a program that a test starts: the known one, and these."""
    known = {name: value for name, value in os.environ.items() if name not in CONTROLS}
    return known | {name: str(value) for name, value in changes.items()}


def enter(name: str) -> None:
    """Make these for the programs that the tests start. Their `variables` come with `tell`."""
    entered.add(name)
    match name:
        case "umask":
            os.umask(0o077)
        case "locale":
            # Python takes UTF-8 for the C locale, unless it is told not to.
            variables.update(LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
        case "descriptors":
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        case "home":
            variables.update(HOME="/sys/kernel")
        case "tmpdir":
            _move_temporary_files()
        case "stranger":
            _company.append(start_stranger())


def tell() -> None:
    """To whatever is started from here on. Not before the processes that run tests were started,
    which have a UTF-8 locale."""
    os.environ.update(variables)


def _move_temporary_files() -> None:
    """Those of pytest too, in every process that runs tests."""
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
    """No file can grow that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def start_stranger(name: bytes = b"mod\xc3") -> subprocess.Popen[bytes]:
    """It has the name already, and ends with this process."""
    command = [sys.executable, str(STRANGER), name.hex()]
    stranger = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert stranger.stdout is not None, "a pipe was asked for"
    with stranger.stdout as closed:
        closed.read()
    return stranger


@contextmanager
def talker(words: bytes, port: int = 0) -> Iterator[int]:
    """A program that says this to whoever connects to a port; which one that is."""
    command = [sys.executable, str(STRANGER.with_name("talker.py")), str(port), words.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None, "a pipe was asked for"
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
    """A program, another user's where we are root, that has sockets with these names. `answer`: see
    stand_ins/impostor.py."""
    program = str(STRANGER.with_name("impostor.py"))
    command = [sys.executable, program, str(int(kind)), answer, *(name.hex() for name in names)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None, "a pipe was asked for"
        assert process.stdout.readline() == b"ready\n"
        yield
