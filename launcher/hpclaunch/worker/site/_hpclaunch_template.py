"""The template: an interpreter that has imported torch, and forks the workers of every round.

The fork server starts it with the workers' own command line, but it never runs the script. Its
startup stops after everything that Python runs before a script (`_hpclaunch_startup.py`), and it
serves requests there. In a forked worker, `serve` returns, and Python continues to the script as in
a fresh interpreter. So `__main__`, `sys.argv`, `sys.path`, the interpreter's options and the end of
a script are Python's own. torch is parked in the worker until the script imports it
(`_hpclaunch_parking.py`).

HPCLAUNCH_TEMPLATE has the fork server's pid and three descriptors: a socket to the fork server
(`worker/template_messages.py`), and the files for stdout and stderr.

On Fork, a child may hold the round's TCPStore, whose listening socket comes with the request. The
first and the last worker write lessons (`_hpclaunch_lesson.py`). A worker that becomes a new
interpreter reports why (`_hpclaunch_restart.py`).

On Renew, a fork of the template, the successor, does the steps of a lesson
(`_hpclaunch_renewal.py`). It is a child of the fork server, like the workers. On its own channel it
answers Begun, then Unsafe or Ready. After Unsafe it ends; after Ready it replaces this template,
which serves until then.

A child of this process forks the workers and ends at once. So they become children of the fork
server, the nearest subreaper, and it alone waits for them and ends them.

When it forks, the template must have one thread (except HARMLESS ones), no child, no device, no
sockets or writable files but its own, and no module that the script would find elsewhere. It must
not have read a variable that differs between workers ("own"). Otherwise it is unfit. A module that
breaks these rules ends the template, and the next one does without the module.
"""

import atexit
import ctypes
import gc
import os
import signal
import socket
import sys
import time
import traceback
import types
import warnings
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    import random
    from typing import TypeAlias

    from .. import processes
    from .. import template_messages as replies
    from ..fork_server_messages import Worker
    from ..json_lines import JsonLines
    from ..messages import decode, never
    from ..template_messages import NO_TORCH, REQUESTS, Fork, Load, Renew
    from ._hpclaunch_errors import record_errors
    from ._hpclaunch_hooks import beside
    from ._hpclaunch_output import keep_writing
    from ._hpclaunch_progress import progress
    from ._hpclaunch_startup import Startup

    # What `become` needs in a forked worker: the template, the pid of the process that has forked
    # the worker, the worker, and the request
    NewWorker: "TypeAlias" = tuple["Template", int, Worker, Fork]
else:
    # All of these are loaded already.
    from _hpclaunch_errors import record_errors
    from _hpclaunch_hooks import beside
    from _hpclaunch_output import keep_writing
    from _hpclaunch_progress import progress

    # The package above this directory, under a name that no module of the user's has. A worker
    # removes it from `sys.modules`.
    _package = types.ModuleType("_hpclaunch_worker")
    _package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules[_package.__name__] = _package
    _has_future = "__future__" in sys.modules
    from _hpclaunch_worker import processes
    from _hpclaunch_worker import template_messages as replies
    from _hpclaunch_worker.json_lines import JsonLines
    from _hpclaunch_worker.messages import decode, never
    from _hpclaunch_worker.template_messages import NO_TORCH, REQUESTS, Fork, Load, Renew

    if not _has_future:  # a script would see it
        del sys.modules["__future__"]

NAME = b"hpclaunch-torch"  # the template's name in ps
SHARED = (  # prefixes of the links of descriptors that must not be open
    *("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/infiniband/"),
    *("socket:", "pipe:"),
)
# jemalloc, which pyarrow loads, handles a fork: other threads then do this thread's work.
HARMLESS = (b"jemalloc_bg_thd",)
OURS = ("__main__", "_hpclaunch_hooks", "_hpclaunch_worker")
STARTUP = "what this Python runs before a script (sitecustomize, usercustomize, .pth files)"


def serve(startup: "Startup") -> None:
    """Serve the fork server's requests. Returns only in the forked workers."""
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


class UnfitError(Exception):
    """The reason why a worker that is forked from here would differ from a fresh interpreter."""


class Template:
    def __init__(self, startup: "Startup", server: int, channel: int, out: int, err: int) -> None:
        for fd in (channel, out, err):
            os.set_inheritable(fd, False)
        self.startup = startup
        self.server = server
        self.channel = JsonLines(socket.socket(fileno=channel))
        self.output = (out, err)
        self.env: dict[str, str] = {}  # the environment of this process at its start
        self.own: frozenset[str] = frozenset()
        self.blocked: list[int] = []
        self.unseeded: Any = None
        self.effects: Any = None  # of importing torch
        # The output and the changed variables of everything but the import of torch
        self.written: tuple[bytes, ...] = (b"", b"")
        self.changes: dict[str, str | None] = {}
        self.parking: Any = None
        # The words of the command line up to the script, which all workers have in common
        self.words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
        self.mine = startup.open
        self.name = process_name()
        set_name(NAME)
        # A search for workers by their command line must not find this process.
        self.command = processes.read_proc("self/cmdline", processes.LARGE)
        set_command_line(NAME)

    def run(self) -> "NewWorker | None":
        """Serve requests. Return None at the end, or in a forked worker what `become` needs."""
        while True:
            channel = self.channel
            try:
                requests = channel.receive()
            except EOFError:
                return None
            for raw in requests:
                request = decode(REQUESTS, raw)
                match request:
                    case Load():
                        self.load(request)
                    case Fork():
                        listener = channel.descriptors.pop(0) if request.store else None
                        worker = self.fork(request, listener)
                        if worker is not None:
                            return worker
                        close(listener)
                    case Renew():
                        fds = [channel.descriptors.pop(0) for _ in range(3)]
                        if self.renew(fds, request):
                            break  # further requests on this channel are not for the successor
                        close(*fds)
                    case _:
                        never(request)

    def take_name(self) -> None:
        """Record a process name that an import has set, for the workers: older torches set one."""
        if (given := process_name()) != NAME:
            self.name = given
            set_name(NAME)

    def answer(self, reply: "replies.Reply") -> None:
        self.channel.send(reply.encoded())

    # Loading

    def load(self, request: "Load") -> None:
        self.env, self.own = request.env, frozenset(request.own)
        self.blocked = request.blocked
        often, *_ = gc.get_threshold()
        gc.set_threshold(0)  # imports make little garbage, and collections take 10 % of the time
        try:
            if is_traced():
                raise UnfitError("the interpreter is being traced")
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
        except UnfitError as e:
            self.answer(replies.Unfit(self.words, str(e)))
            return
        for name in request.modules:
            self.load_module(name)
        self.prepare_to_fork(often)

    def prepare_to_fork(self, often: int) -> None:
        """Prepare what all workers need, so that no worker does it itself, and answer Ready.
        `often` is the threshold of the garbage collector."""
        parking, torchs = self.startup.parking, self.effects
        self.changes = {
            name: value
            for name, value in self.startup.changes(self.env).items()
            if name not in torchs.changes
        }
        self.written = tuple(
            parking.read(fd, 0, end - len(written)) + parking.read(fd, end, now)
            for fd, end, now, written in zip(
                (1, 2), torchs.sizes, parking.sizes(), torchs.written, strict=True
            )
        )
        for name in ("_hpclaunch_lesson", "_hpclaunch_responder", "_hpclaunch_restart"):
            beside(name)
        self.parking = parking.Parking(self.startup.modules, torchs)
        finalizing().left_out.append(self.parking)
        self.answer(replies.Ready(self.words))
        gc.set_threshold(gc.get_threshold()[0] or often)  # a module may have set another one
        finalizing().freeze()

    def load_module(self, name: str) -> None:
        try:
            __import__(name)
        except (Exception, SystemExit) as e:
            self.answer(replies.Failed(name, f"{type(e).__name__}: {e}"))
        try:
            self.check(name)
        except UnfitError as e:
            self.answer(replies.Unsafe(name, str(e)))
            os._exit(0)

    def check(self, name: str) -> None:
        self.check_state(f"importing {name}")
        self.check_shadows(name)

    def check_state(self, what: str) -> None:
        """Raise UnfitError if a fork would lose threads or devices, or share connections or files,
        or if a variable that differs between workers was read."""
        if threads():
            # Before a fork, OpenBLAS ends its threads; it starts them again when needed.
            pid = fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
        if threads():
            raise UnfitError(f"{what} starts threads")
        if processes.children():
            raise UnfitError(f"{what} starts processes")
        for fd, target in self.startup.descriptors().items():
            if fd not in self.mine and (target.startswith(SHARED) or is_written(fd, target)):
                raise UnfitError(f"{what} opens {target}")
        for name in sorted(self.own.intersection(self.startup.asked)):
            if not is_of_torch(reader := self.startup.asked[name]):
                raise UnfitError(
                    f"{reader} reads {name}, of which each worker has a value of its own"
                )

    def check_shadows(self, imported: str, known: "frozenset[str]" = frozenset()) -> None:
        """Raise UnfitError if a module in the script's directory shadows an imported one: the
        template did not search this directory."""
        first = script_directory()
        if first is None:
            return
        from importlib.machinery import PathFinder

        new = sys.modules.keys() - known - self.startup.modules
        names = {name.partition(".")[0] for name in new}
        for name in sorted(names.difference(OURS)):
            spec = PathFinder.find_spec(name, [first])
            if spec is not None and spec.loader is not None:
                raise UnfitError(f"{spec.origin} stands in for the {name} that {imported} imports")
        sys.path_importer_cache.pop(first, None)

    # The next template

    def renew(self, fds: "list[int]", request: "Renew") -> bool:
        """Fork a successor. Return True in the successor."""
        try:
            between = fork_through()
        except OSError:  # no process granted; the fork server sees the end of the channel
            return False
        if not between:
            return False
        self.adopted(between)
        channel, out, err = fds
        for stream, new in enumerate((out, err), start=1):
            os.dup2(new, stream)
        close(*self.output)
        self.output = (out, err)
        self.channel = JsonLines(socket.socket(fileno=channel))
        for fd in fds:
            os.set_inheritable(fd, False)
        self.mine = self.startup.descriptors().keys()
        self.answer(replies.Begun(os.getpid()))
        self.replay(request)
        return True

    def replay(self, request: "Renew") -> None:
        renewal = beside("_hpclaunch_renewal")
        often, *_ = gc.get_threshold()
        gc.set_threshold(0)
        known = frozenset(sys.modules)
        name = ""
        try:
            renewal.Renewal(self, UnfitError, request).run(careful=request.idle)
            self.check_shadows("the script", known)
        except renewal.NotForAll as e:
            name, why = e.args
        except UnfitError as e:
            name, why = "*", str(e)
        if name:
            self.answer(replies.Unsafe(name, why))
            os._exit(0)
        self.take_name()
        self.prepare_to_fork(often)

    # Forking

    def fork(self, request: "Fork", listener: "int | None") -> "NewWorker | None":
        what = request.what
        try:
            between = fork()
        except OSError as e:
            self.answer(replies.Forked(what, {}, 0, str(e.strerror)))
            return None
        if between:
            _, status = os.waitpid(between, 0)
            if status:
                self.answer(replies.Forked(what, {}, 0, f"fork failed with status {status}"))
            return None
        between = os.getpid()
        pids: dict[int, int] = {}
        store, why = 0, ""
        try:
            if listener is not None:
                store = fork()
                if not store:
                    self.hold_store(between, listener, request.store)
            for worker in request.workers:
                pid = fork()
                if not pid:
                    close(listener)
                    return self, between, worker, request
                pids[worker.rank] = pid
        except OSError as e:
            why = str(e.strerror)
        self.answer(replies.Forked(what, pids, store, why))
        os._exit(0)

    def lesson_of(self, worker: "Worker", request: "Fork") -> "str | None":
        """Return the path to which the worker writes its lesson; None for most workers."""
        for place, fd in zip((0, -1), request.learn, strict=False):
            if worker is request.workers[place]:
                return self.of_server(fd)
        return None

    def of_server(self, fd: int) -> str:
        """Return the path of a descriptor of the fork server."""
        return f"/proc/{self.server}/fd/{fd}"

    def adopted(self, between: int) -> None:
        """Wait until the fork server is this process's parent, and die when it dies."""
        os.setsid()
        while os.getppid() == between:
            time.sleep(0.0002)
        processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.server:
            os._exit(1)
        self.channel.close()
        close(*self.channel.descriptors)

    def hold_store(self, between: int, listener: int, err: str) -> None:
        """Serve the round's store, beyond the end of its workers, until this process is killed."""
        try:
            self.adopted(between)
            redirect(err, err)
            store = serve_store(listener)
            while store:
                signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


class Unseeded:
    """The random number generators that modules have created for themselves, for example for ids
    of runs or of cached files, which must differ between workers."""

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
        """Seed the generators in a worker, and restore Random.seed."""
        self.kind.seed = self.seed  # type: ignore[method-assign]
        for generator in [*self.known.values()]:
            generator.seed()


def import_torch() -> None:
    try:
        import torch.distributed  # noqa: F401
    except (ImportError, OSError):  # OSError: a library is missing
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(NO_TORCH)


def serve_store(listener: int) -> object:
    """Return a TCPStore that takes over a listening socket. torch's libuv backend supports this
    from 2.8 on, its older backend in every version."""
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


def become(template: "Template", between: int, worker: "Worker", request: "Fork") -> None:
    """Turn a fork of the template into an interpreter that is about to run its script."""
    template.adopted(between)
    set_name(template.name)
    set_command_line(template.command)
    redirect(worker.out, worker.err)
    if worker.stdin:
        move(os.open(worker.stdin, os.O_RDONLY), 0)
    close(*template.output)
    if worker.cpus:
        try:
            os.sched_setaffinity(0, worker.cpus)
        except OSError:
            pass  # the cgroup has shrunk: use the CPUs that it has
    template.startup.end()
    environ = request.env | worker.env
    os.environ.clear()
    os.environ.update(environ)
    repeat(template.written, template.changes)
    sys.orig_argv[:] = worker.argv
    sys.argv[1:] = worker.argv[len(template.words) :]
    forget()
    template.unseeded.renew()
    keep_writing()
    progress.begin()
    lesson = template.lesson_of(worker, request)
    if lesson is not None:
        beside("_hpclaunch_lesson").Lesson(lesson, template.startup.parking.spec_of)
    report = template.of_server(request.restarts)
    restarts = beside("_hpclaunch_restart").Restarts
    restarts = restarts(template.parking, environ, worker, template.blocked, report)
    template.parking.park(restarts)
    for module in [name for name in sys.modules if name.startswith("_hpclaunch_worker")]:
        del sys.modules[module]
    site = os.path.dirname(os.path.abspath(__file__))
    for directory in (site, os.path.dirname(site)):
        sys.path_importer_cache.pop(directory, None)
    signal.pthread_sigmask(signal.SIG_SETMASK, template.blocked)


def forget() -> None:
    """Renew the state that each process has for itself: random numbers, the key for children, and
    the thread's id."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.modules["torch"].default_generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        key = process.AuthenticationString(os.urandom(32))
        process.current_process()._config["authkey"] = key
    if "threading" in sys.modules:
        sys.modules["threading"].main_thread()._set_native_id()  # Python does so from 3.13 on
    record_errors()
    atexit.register(finalizing().at_exit)


def finalizing() -> "Any":
    return beside("_hpclaunch_finalizing")


def fork_through() -> int:
    """Fork a grandchild, whose parent ends at once. Return the parent's pid there, and 0 here."""
    between = fork()
    if between:
        os.waitpid(between, 0)
        return 0
    between = os.getpid()
    child = -1
    try:
        child = fork()
    finally:
        if child:
            os._exit(0)
    return between


def fork() -> int:
    """Fork without a warning. Python warns of other threads from 3.12 on, but only HARMLESS ones
    are here."""
    if sys.version_info < (3, 12) or len(os.listdir("/proc/self/task")) == 1:
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def process_name() -> bytes:
    """Return the name of this process, as ps and top show it."""
    return processes.read_proc("self/comm")[:-1]


def set_name(new: bytes) -> None:
    with open("/proc/self/comm", "wb") as f:
        f.write(new)


def set_command_line(new: bytes) -> None:
    begin, end = map(int, processes.stat("self")[45:47])  # where it is in memory, as in proc(5)
    if begin:  # 0: this kernel hides the address
        ctypes.memmove(begin, new.ljust(end - begin, b"\0"), end - begin)


def threads() -> "list[bytes]":
    """Return the names of the other threads, which a fork would lose, except HARMLESS ones."""
    others = {*processes.threads_of(os.getpid())} - {str(os.getpid())}
    lines = [processes.read_proc(f"self/task/{thread}/comm") for thread in others]
    return [line[:-1] for line in lines if line and line[:-1] not in HARMLESS]


def is_traced() -> bool:
    """Return whether a debugger, a profiler or coverage traces this process: these trace only one
    process."""
    tools = getattr(sys, "monitoring", None)  # from Python 3.12 on
    names = [tools.get_tool(number) for number in range(6)] if tools else []
    return bool(sys.gettrace() or sys.getprofile() or any(names))


def is_written(fd: str, target: str) -> bool:
    """Return whether a descriptor is a file that is open for writing. Workers would share the
    position in it."""
    if target.startswith("/dev/"):
        return False
    with open(f"/proc/self/fdinfo/{fd}") as f:
        flags = next(int(line.split()[1], 8) for line in f if line.startswith("flags:"))
    return flags & os.O_ACCMODE != os.O_RDONLY


def is_of_torch(file: str) -> bool:
    """Return whether a file belongs to torch, which reads some variables when it is imported, but
    uses them only in the worker."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is not None and file.startswith(os.path.dirname(spec.origin) + os.sep)


def close(*fds: "int | None") -> None:
    for fd in fds:
        if fd is not None:
            os.close(fd)


def redirect(out: str, err: str) -> None:
    for stream, path in enumerate((out, err), start=1):
        move(processes.append_to(path), stream)


def move(fd: int, stream: int) -> None:
    """Make a descriptor one of the standard streams. It is one already if the stream was closed."""
    if fd == stream:
        os.set_inheritable(fd, True)
    else:
        os.dup2(fd, stream)
        os.close(fd)


def repeat(written: "tuple[bytes, ...]", changes: "dict[str, str | None]") -> None:
    """Repeat in a worker what imports did beside loading modules: output, and changed variables."""
    for stream, data in enumerate(written, start=1):
        while data:
            data = data[os.write(stream, data) :]
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def script_directory() -> "str | None":
    """Return the directory or archive that Python will put first in sys.path; None if none."""
    if getattr(sys.flags, "safe_path", False):
        return None
    script = sys.argv[0]
    if script in ("-m", "-c"):
        return os.getcwd()
    import pkgutil

    if pkgutil.get_importer(script) is not None:
        return script
    return os.path.dirname(os.path.realpath(script))
