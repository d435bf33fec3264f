"""Turns a worker into a new interpreter if its script changes a variable that torch has read.

torch reads environment variables while it is loaded, in a forked worker before the script begins.
So until the script imports torch, changes of these variables are watched. A change replaces the
process by a new interpreter with the same arguments, streams and process id, which imports torch
itself. The worker reports this to the fork server, which starts later rounds cold.

A process that the script has forked cannot become a new interpreter. If it imports torch, it
reports what it has changed.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..fork_server_messages import Worker
    from ._hpclaunch_hooks import beside
    from ._hpclaunch_parking import Effects, Parking
else:
    from _hpclaunch_hooks import beside  # loaded before

is_read_at_load = beside("_hpclaunch_variables").is_read_at_load
MOST = 300  # characters of a name, so that a report fits into PIPE_BUF
# Python itself ignores these.
PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
INSTALLED = ("/site-packages/", "/dist-packages/")


class Restarts:
    """A watch for changes that need a new interpreter. `environ` and `worker` are for starting
    it, `report` is the path of the fork server's pipe."""

    def __init__(
        self,
        parking: "Parking",
        environ: "dict[str, str]",
        worker: "Worker",
        blocked: "list[int]",
        report: str,
    ) -> None:
        self.parking = parking
        self.environ, self.worker, self.blocked, self.report = environ, worker, blocked, report
        self.pid = os.getpid()
        self.directory = ""
        with contextlib.suppress(OSError):  # the directory was removed
            self.directory = os.getcwd()
        self.mask = os.umask(0o77)
        os.umask(self.mask)
        self.ignored = {s for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN}
        self.cpus = os.sched_getaffinity(0)
        self.inherited = inheritable()
        self.libc = ctypes.CDLL(None)
        self.given = os.putenv, os.unsetenv
        self.watching = self.putenv, self.unsetenv
        self.noted = b""  # the report of a process that the script has forked
        os.putenv, os.unsetenv = self.watching  # type: ignore[assignment]  # for str and bytes

    # Variables

    def putenv(self, name: "str | bytes", value: "str | bytes", /) -> None:
        self.change(os.fsdecode(name), os.fsdecode(value))
        return self.given[0](name, value)

    def unsetenv(self, name: "str | bytes", /) -> None:
        self.change(os.fsdecode(name), None)
        return self.given[1](name)

    def change(self, name: str, value: "str | None") -> None:
        if os.environ.get(name) != value and self.matters(name) and not is_import_of_package():
            self.restart("variable", name)

    def matters(self, name: str) -> bool:
        """Return whether torch is parked, and has read this variable."""
        read = is_read_at_load(name) or name in self.parking.effects.read
        return read and self.parking.is_parked

    def restored(self, effects: "Effects") -> None:
        """Finish the script's import of torch: write the output of the import, set the variables
        that it sets, and send a pending report."""
        if (os.putenv, os.unsetenv) == self.watching:
            os.putenv, os.unsetenv = self.given
        beside("_hpclaunch_template").repeat(effects.written, effects.changes)
        if self.noted:
            self.send(self.noted)

    # A new interpreter

    def restart(self, kind: str, name: str) -> None:
        """Report what the script has changed, and become a new interpreter. A process that the
        script has forked cannot, and reports the change when it imports torch."""
        forked = os.getpid() != self.pid
        file, line = caller()
        file = file.removeprefix(self.directory + os.sep)
        message = [kind, name[:MOST], file[-MOST:], line, forked]
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        if forked:
            self.noted = data
        else:
            self.send(data)
            self.become_new()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError), open(self.report, "wb", buffering=0) as f:
            f.write(data)

    def become_new(self) -> None:
        streams: Any = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        for stream in streams:
            with contextlib.suppress(Exception):
                stream.flush()
        self.libc.fflush(None)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        with contextlib.suppress(OSError):
            os.chdir(self.directory)
        with contextlib.suppress(OSError):  # the cgroup has shrunk
            os.sched_setaffinity(0, self.cpus)
        os.umask(self.mask)
        for fd in inheritable() - self.inherited:
            os.set_inheritable(fd, False)
        template = beside("_hpclaunch_template")
        with contextlib.suppress(OSError):  # the log directory was moved: keep the open files
            template.redirect(self.worker.out, self.worker.err)
        try:
            if self.worker.stdin:
                template.move(os.open(self.worker.stdin, os.O_RDONLY), 0)
            # Each thread has its own setting.
            processes = template.processes
            processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            for s in signal.valid_signals():
                ignored = s in self.ignored and s not in PYTHONS_OWN
                self.libc.signal(int(s), ctypes.c_void_p(int(ignored)))
            signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
            argv = self.worker.argv
            os.execvpe(argv[0], argv, self.environ)
        except OSError as e:
            os.write(2, f"hpclaunch: cannot start the worker again: {e}\n".encode())
            os._exit(126)


def inheritable() -> "set[int]":
    """Return the descriptors that an exec would keep."""
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the descriptor of this listing, closed by now
            if os.get_inheritable(fd):
                found.add(fd)
    return found


def is_import_of_package() -> bool:
    """Return whether an installed package is being imported. Some, such as scikit-learn, set
    variables for itself. An installed program that is run with -m counts as the script.
    """
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or not any(part in frame.f_code.co_filename for part in INSTALLED):
        return False
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    main = getattr(sys.modules.get("__main__"), "__package__", None) or ""
    return package not in ("__main__", main.partition(".")[0])


def caller() -> "tuple[str, int]":
    """Return the (file, line) that sets a variable or imports a module."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith("<frozen ") or file in OWN):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


OWN = {
    *(f.__code__.co_filename for f in (os.getenv, type(os.environ).get, type(os.environ).update)),
    caller.__code__.co_filename,
    os.path.join(os.path.dirname(caller.__code__.co_filename), "_hpclaunch_parking.py"),
}
