"""The template: an interpreter that has imported torch, and forks the workers of every round.

The fork server starts it with the workers' own command line. It never runs the script. Still in its
startup, after all that Python runs before a script (`_hpclaunch_startup.py`), it serves
requests; a worker that it forks returns from here and goes on to the script as a fresh interpreter
does. So `__main__`, `sys.argv`, `sys.path`, the interpreter's options and the end of a script are
Python's own doing. What the template has imported is parked in the worker until the script imports
it (`_hpclaunch_parking.py`).

HPCLAUNCH_TEMPLATE has the fork server's pid and three descriptors: a stream socket to the fork
server, with one JSON object per line, and the files with what was written to stdout and stderr.
`worker/template_messages.py`, of which nothing can be imported here, has the messages.

With "store" the listening socket comes along, and one child holds the round's TCPStore. "learn" has
the fork server's descriptors, one or two, to which the first and the last worker write their
lessons (`_hpclaunch_lesson.py`). To the one of "restarts", a worker writes why it becomes a new
interpreter (`_hpclaunch_restart.py`).

With "renew" come a channel and two files for output. A fork of the template imports what a lesson
says (`_hpclaunch_renewal.py`), as the fork server's child like the workers. It says "begun" on its
channel, and is a template like this one once it is "ready", unless a module is "unsafe". This one
goes on until then.

Workers are forked by a child of this process that ends at once. So they become children of the fork
server, which is the nearest subreaper: it alone waits for them and ends them.

When it forks, nothing may be here that a fork could break: it has one thread (HARMLESS ones apart),
no child, no device, no socket or writable file but its own, no module that the script would find
elsewhere, and has read none of the variables that differ between workers ("own"). Otherwise the
template is unfit. A module that brings any of this along ends the template, so that the next one
does without the module.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from typing import Any

import _hpclaunch_hooks  # type: ignore[import-not-found]  # beside this
from _hpclaunch_ownership import is_ours  # type: ignore[import-not-found]  # the same

TYPE_CHECKING = False
if TYPE_CHECKING:
    import random
    from typing import TypeAlias

    from ._hpclaunch_renewal import Step
    from ._hpclaunch_startup import Startup

    # In a worker that was forked, what `become` needs: the template, the pid of the process between
    # the two, the worker, and the request
    Forked: "TypeAlias" = tuple["Template", int, dict[str, Any], dict[str, Any]]

PR_SET_PDEATHSIG = 1  # as in worker/processes.py, of which nothing can be imported here
NAME = b"hpclaunch-torch"  # of the template, for ps
NO_TORCH = 3  # exit code
SHARED = (  # what must not be open
    *("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/infiniband/"),
    *("socket:", "pipe:"),
)
# jemalloc, which pyarrow brings along, hears of a fork, and then does that thread's work elsewhere.
HARMLESS = (b"jemalloc_bg_thd",)
OURS = ("__main__", "_hpclaunch_hooks")
STARTUP = "what this Python runs before a script (sitecustomize, usercustomize, .pth files)"


def serve(startup: "Startup") -> None:
    """Returns in the workers only."""
    try:
        words = os.environ.pop("HPCLAUNCH_TEMPLATE").split(",")
        worker = Template(startup, *map(int, words)).run()
        if worker is None:  # the fork server is gone
            os._exit(0)
        become(*worker)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(126)


class Unfit(Exception):  # noqa: N818
    """Why a worker that is forked from here would differ from a fresh interpreter."""


class Template:
    def __init__(self, startup: "Startup", server: int, channel: int, out: int, err: int) -> None:
        for fd in (channel, out, err):
            os.set_inheritable(fd, False)
        self.startup = startup
        self.server = server
        self.channel = socket.socket(fileno=channel)
        self.output = (out, err)
        self.env: dict[str, str] = {}  # with which this process was started
        self.own: frozenset[str] = frozenset()
        self.blocked: list[int] = []
        self.unseeded: Any = None
        self.effects: Any = None  # of importing torch
        # What all else has written to stdout and stderr, and which variables it has changed
        self.said = (b"", b"")
        self.changes: dict[str, str | None] = {}
        self.parking: Any = None
        self.came: list[int] = []  # descriptors for the next requests
        # The words of the command line up to the script, which every worker has in common.
        self.words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
        self.mine = startup.open
        self.name = name()
        set_name(NAME)
        # Whoever looks for workers by their command line is not to find this process.
        self.command = command_line()
        set_command_line(NAME)

    def run(self) -> "Forked | None":
        """None at the end; in a worker that was forked, what `become` needs.

        The lines are those of worker/json_lines.py, of which nothing can be imported here.
        """
        buffer = b""
        while True:
            data, more, _, _ = socket.recv_fds(self.channel, 1 << 16, 4)
            if not data:
                return None
            self.came += more
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                op = request.pop("op")
                if op == "load":
                    self.load(**request)
                elif op == "fork":
                    listener = self.came.pop(0) if request["store"] else None
                    worker = self.fork(request, listener)
                    if worker is not None:
                        return worker
                    close(listener)
                elif op == "renew":
                    given, self.came = self.came[:3], self.came[3:]
                    if self.renew(given, **request):
                        buffer = b""
                        break
                    close(*given)
                else:
                    raise ValueError(f"unknown request {op!r}")

    def take_name(self) -> None:
        """Older torches give the process that imports them another name: the workers have that."""
        if (given := name()) != NAME:
            self.name = given
            set_name(NAME)

    def tell(self, op: str, **fields: object) -> None:
        self.channel.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")

    # Loading

    def load(
        self, modules: "list[str]", env: "dict[str, str]", own: "list[str]", blocked: "list[int]"
    ) -> None:
        self.env, self.own, self.blocked = env, frozenset(own), blocked
        often = gc.get_threshold()
        gc.set_threshold(0)  # what is imported stays, and collections cost a tenth of the time
        try:
            if is_traced():
                raise Unfit("the interpreter is being traced")
            self.check_state(STARTUP)
            self.unseeded = Unseeded()
            is_plain = finalizing().is_plain()
            self.effects = self.startup.parking.Effects(self.startup)
            import_torch()
            if is_plain:
                finalizing().torch_is_imported()
            self.take_name()
            self.check("torch")
            self.effects.end(self.own)
        except Unfit as e:
            self.tell("unfit", words=self.words, why=str(e))
            return
        for name in modules:
            self.load_module(name)
        self.prepare_to_fork()
        self.tell("ready", words=self.words)
        if not gc.get_threshold()[0]:  # else a module has set another
            gc.set_threshold(*often)
        finalizing().freeze()

    def prepare_to_fork(self) -> None:
        """Prepare what the workers need, so that none of them makes it for itself."""
        parking, torchs = self.startup.parking, self.effects
        self.changes = {
            name: value
            for name, value in self.startup.changes(self.env).items()
            if name not in torchs.changes
        }
        self.said = tuple(
            parking.read(fd, 0, end - len(written)) + parking.read(fd, end, now)
            for fd, end, now, written in zip(
                (1, 2), torchs.sizes, parking.sizes(), torchs.written, strict=True
            )
        )
        for name in ("_hpclaunch_lesson", "_hpclaunch_responder", "_hpclaunch_restart"):
            _hpclaunch_hooks.beside(name)
        self.parking = parking.Parking(self.startup.modules, torchs)
        finalizing().left_out.append(self.parking)

    def load_module(self, name: str) -> None:
        try:
            __import__(name)
        except (Exception, SystemExit) as e:
            self.tell("failed", module=name, why=f"{type(e).__name__}: {e}")
        try:
            self.check(name)
        except Unfit as e:
            self.tell("unsafe", module=name, why=str(e))
            os._exit(0)

    def check(self, name: str) -> None:
        self.check_state(f"importing {name}")
        self.check_shadows(name)

    def check_state(self, what: str) -> None:
        """A fork loses threads and devices, and shares connections and files."""
        if threads():
            # OpenBLAS ends its threads before a fork, and starts them again when it needs them.
            pid = fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
        if threads():
            raise Unfit(f"{what} starts threads")
        if children():
            raise Unfit(f"{what} starts processes")
        for fd, target in self.startup.descriptors().items():
            if fd not in self.mine and (target.startswith(SHARED) or is_written(fd, target)):
                raise Unfit(f"{what} opens {target}")
        for name in sorted(self.own.intersection(self.startup.asked)):
            if not is_of_torch(reader := self.startup.asked[name]):
                raise Unfit(f"{reader} reads {name}, of which each worker has a value of its own")

    def check_shadows(self, imported: str, known: "frozenset[str]" = frozenset()) -> None:
        """The script would find modules beside it first; they were not searched here."""
        first = script_directory()
        if first is None:
            return
        from importlib.machinery import PathFinder

        new = sys.modules.keys() - known - self.startup.modules
        names = {name.partition(".")[0] for name in new}
        for name in sorted(names.difference(OURS)):
            spec = PathFinder.find_spec(name, [first])
            if spec is not None and spec.loader is not None:
                raise Unfit(f"{spec.origin} stands in for the {name} that {imported} imports")
        sys.path_importer_cache.pop(first, None)

    # The next template

    def renew(self, fds: "list[int]", steps: "list[Step]", own: "list[str]", idle: bool) -> bool:
        """True in the fork that is the next template."""
        try:
            brood = fork_through()
        except OSError:  # the kernel grants no further process; its channel's end tells
            return False
        if not brood:
            return False
        self.adopted(brood)
        channel, out, err = fds
        for stream, new in enumerate((out, err), start=1):
            os.dup2(new, stream)
        close(*self.output)
        self.output = (out, err)
        self.channel = socket.socket(fileno=channel)
        for fd in fds:
            os.set_inheritable(fd, False)
        self.mine = self.startup.descriptors().keys()
        self.tell("begun", pid=os.getpid())
        self.replay(steps, own, idle)
        return True

    def replay(self, steps: "list[Step]", own: "list[str]", idle: bool) -> None:
        renewal = _hpclaunch_hooks.beside("_hpclaunch_renewal")
        often = gc.get_threshold()
        gc.set_threshold(0)
        known = frozenset(sys.modules)
        replayed = renewal.Renewal(self, Unfit, steps, own)
        name = ""
        try:
            if idle:
                with renewal.standing_back():
                    replayed.run(careful=True)
            else:
                replayed.run(careful=False)
            self.check_shadows("the script", known)
        except renewal.NotForAll as e:
            name, why = e.args
        except Unfit as e:
            name, why = "*", str(e)
        if name:
            self.tell("unsafe", module=name, why=why)
            os._exit(0)
        self.take_name()
        gc.set_threshold(*often)
        self.prepare_to_fork()
        finalizing().freeze()
        self.tell("ready", words=self.words)

    # Forking

    def fork(self, request: "dict[str, Any]", listener: "int | None") -> "Forked | None":
        what = request["what"]
        try:
            brood = fork()
        except OSError as e:
            self.tell("forked", what=what, pids={}, store=0, why=str(e.strerror))
            return None
        if brood:
            _, status = os.waitpid(brood, 0)
            if status:
                why = f"fork failed with status {status}"
                self.tell("forked", what=what, pids={}, store=0, why=why)
            return None
        brood = os.getpid()
        pids: dict[int, int] = {}
        store, why = 0, ""
        try:
            if listener is not None:
                store = fork()
                if not store:
                    self.hold_store(brood, listener, request["store"])
            for worker in request["workers"]:
                pid = fork()
                if not pid:
                    close(listener)
                    return self, brood, worker, request
                pids[worker["rank"]] = pid
        except OSError as e:
            why = str(e.strerror)
        self.tell("forked", what=what, pids=pids, store=store, why=why)
        os._exit(0)

    def lesson_of(self, worker: "dict[str, Any]", request: "dict[str, Any]") -> "str | None":
        """Where the worker writes its lesson; None for most."""
        tellers = dict(zip((0, -1), request["learn"], strict=False))
        for place, fd in tellers.items():
            if worker is request["workers"][place]:
                return self.of_server(fd)
        return None

    def of_server(self, fd: int) -> str:
        """Return the path of a descriptor of the fork server."""
        return f"/proc/{self.server}/fd/{fd}"

    def adopted(self, brood: int) -> None:
        """Wait until the fork server is our parent, whose death then ends us."""
        os.setsid()
        while os.getppid() == brood:
            time.sleep(0.0002)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self.server:
            os._exit(1)
        self.channel.close()
        close(*self.came)
        self.came = []

    def hold_store(self, brood: int, listener: int, err: str) -> None:
        """Serve the round's store until we are killed; it outlives the workers of the round."""
        try:
            self.adopted(brood)
            redirect(err, err)
            store = serve_store(listener)
            while store:
                signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


class Unseeded:
    """Generators of random numbers that modules have made for themselves, such as for the ids of
    runs or of cached files, which must not be the same in two workers."""

    def __init__(self) -> None:
        import random
        import weakref

        self.kind = random.Random
        self.seed = seed = random.Random.seed
        self.known = known = weakref.WeakValueDictionary()  # type: ignore[var-annotated]

        def noting(generator: "random.Random", a: "Any" = None, version: int = 2) -> None:
            seed(generator, a, version)
            if a is None:
                known[id(generator)] = generator
            else:
                known.pop(id(generator), None)

        self.kind.seed = noting  # type: ignore[method-assign, assignment]

    def renew(self) -> None:
        """In a worker, which has the function as it was."""
        self.kind.seed = self.seed  # type: ignore[method-assign]
        for generator in [*self.known.values()]:
            generator.seed()


def import_torch() -> None:
    try:
        import torch.distributed  # noqa: F401
    except (ImportError, OSError):  # or one of its libraries is not there
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(NO_TORCH)


def serve_store(listener: int) -> object:
    """A TCPStore that takes over a listening socket.

    torch's libuv backend can do so from 2.8 on; its older backend could always.
    """
    import functools

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    socket_of_round = socket.socket(fileno=listener)
    serve = functools.partial(
        TCPStore,
        "127.0.0.1",
        socket_of_round.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=socket_of_round.detach(),
    )
    try:
        return serve()
    except NotImplementedError:
        return serve(use_libuv=False)


def become(
    template: "Template", brood: int, worker: "dict[str, Any]", request: "dict[str, Any]"
) -> None:
    """Turn a fork of the template into an interpreter that is about to run its script."""
    template.adopted(brood)
    set_name(template.name)
    set_command_line(template.command)
    redirect(worker["out"], worker["err"])
    if worker["stdin"]:
        fd = os.open(worker["stdin"], os.O_RDONLY)
        os.dup2(fd, 0)
        os.close(fd)
    close(*template.output)
    for stream, data in enumerate(template.said, start=1):
        write(stream, data)
    if worker["cpus"]:
        try:
            os.sched_setaffinity(0, worker["cpus"])
        except OSError:
            pass  # the cgroup has shrunk meanwhile: the CPUs that it has are good enough
    template.startup.end()
    environ = request["env"] | worker["env"]
    os.environ.clear()
    os.environ.update(environ)
    for name, value in template.changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    sys.orig_argv[:] = worker["argv"]
    sys.argv[1:] = worker["argv"][len(template.words) :]
    forget()
    template.unseeded.renew()
    _hpclaunch_hooks.keep_writing()
    _hpclaunch_hooks.progress.begin()
    lesson = template.lesson_of(worker, request)
    if lesson is not None:
        _hpclaunch_hooks.beside("_hpclaunch_lesson").Telling(lesson)
    report = template.of_server(request["restarts"])
    restarts = _hpclaunch_hooks.beside("_hpclaunch_restart").Restarts
    restarts = restarts(template.parking, environ, worker, template.blocked, report)
    template.parking.park(restarts)
    signal.pthread_sigmask(signal.SIG_SETMASK, template.blocked)


def forget() -> None:
    """Renew what is each process's own: random numbers, a key for children, its thread's id."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.modules["torch"].default_generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        key = process.AuthenticationString(os.urandom(32))
        process.current_process()._config["authkey"] = key
    if "threading" in sys.modules:
        sys.modules["threading"].main_thread()._set_native_id()  # Python before 3.13 forgets it
    _hpclaunch_hooks.record_errors()
    atexit.register(finalizing().at_exit)


def finalizing() -> "Any":
    return _hpclaunch_hooks.beside("_hpclaunch_finalizing")


def fork_through() -> int:
    """Fork a grandchild, whose parent ends at once: returns that parent's pid there, and 0 here."""
    brood = fork()
    if brood:
        os.waitpid(brood, 0)
        return 0
    brood = os.getpid()
    child = -1
    try:
        child = fork()
    finally:
        if child:
            os._exit(0)
    return brood


def fork() -> int:
    """From 3.12 on, Python warns of threads, of which only HARMLESS ones are here."""
    if sys.version_info < (3, 12) or len(os.listdir("/proc/self/task")) == 1:
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def name() -> bytes:
    """As ps and top show it."""
    with open("/proc/self/comm", "rb") as f:
        return f.read()[:-1]


def set_name(new: bytes) -> None:
    with open("/proc/self/comm", "wb") as f:
        f.write(new)


def arguments() -> "tuple[int, int]":
    """Where the command line is in the memory of this process: proc(5)."""
    with open("/proc/self/stat", "rb") as f:
        fields = f.read().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46])


def command_line() -> bytes:
    with open("/proc/self/cmdline", "rb") as f:
        return f.read()


def set_command_line(new: bytes) -> None:
    begin, end = arguments()
    if begin:  # else this kernel hides where it is
        ctypes.memmove(begin, new.ljust(end - begin, b"\0"), end - begin)


def threads() -> "list[bytes]":
    """The names of those beside this one that a fork must not lose."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        try:
            if int(thread) != os.getpid():
                with open(f"/proc/self/task/{thread}/comm", "rb") as f:
                    names.append(f.read()[:-1])
        except OSError:
            pass  # it has ended
    return [name for name in names if name not in HARMLESS]


def children() -> "list[str]":
    with open(f"/proc/self/task/{os.getpid()}/children") as f:
        return f.read().split()


def is_traced() -> bool:
    """By a debugger, a profiler or coverage, each of which follows a single process."""
    tools = getattr(sys, "monitoring", None)  # from Python 3.12 on
    names = [tools.get_tool(number) for number in range(6)] if tools else []
    return bool(sys.gettrace() or sys.getprofile() or any(names))


def is_written(fd: str, target: str) -> bool:
    """Whether it is a file that is open for writing, at a position that workers would share."""
    if target.startswith("/dev/"):
        return False
    with open(f"/proc/self/fdinfo/{fd}") as f:
        flags = next(int(line.split()[1], 8) for line in f if line.startswith("flags:"))
    return flags & os.O_ACCMODE != os.O_RDONLY


def is_of_torch(file: str) -> bool:
    """torch reads some variables on import, but uses them only in the worker."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is not None and file.startswith(os.path.dirname(spec.origin) + os.sep)


def close(*fds: "int | None") -> None:
    for fd in fds:
        if fd is not None:
            os.close(fd)


def redirect(out: str, err: str) -> None:
    for stream, path in enumerate((out, err), start=1):
        # As append_to in processes.py; the agent has made the file, and checked it.
        if path.startswith("/dev/pts/"):
            fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            fd = os.open(path, flags, 0o600)
            check_own(fd, path)
        os.dup2(fd, stream)
        os.close(fd)


def check_own(fd: int, path: str) -> None:
    """As open_file in private_files.py."""
    found = os.fstat(fd)
    if not is_ours(found, os.path.dirname(path)) or found.st_nlink > 1:
        raise PermissionError(f"{path} belongs to another user, or has another name too")


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def script_directory() -> "str | None":
    """What Python will put first in sys.path; None if nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    script = sys.argv[0]
    if script in ("-m", "-c"):
        return os.getcwd()
    import pkgutil

    if pkgutil.get_importer(script) is not None:
        return script
    return os.path.dirname(os.path.realpath(script))
