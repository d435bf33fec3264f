"""Everything that shows a script how it was started, as one flat JSON object.

It goes to `$CONFORMANCE_OUT/<rank>.json`. A set is one fact per item, so that an extra module or
descriptor is a fact of its own. Facts that begin with "own." differ between any two processes.
"""
# ruff: noqa: E402

AT_START = sorted(globals())

import sys

MODULES = sorted(sys.modules)  # before this file imports more
FRAME = sys._getframe()

import atexit
import builtins
import ctypes
import faulthandler
import gc
import importlib
import json
import locale
import logging
import multiprocessing
import os
import platform
import random
import resource
import signal
import site
import stat
import threading
import time
import tracemalloc
import warnings

FACTS = {}
PRCTL = {  # attributes that prctl(2) reports of this process without changing it
    "dumpable": 3,
    "keepcaps": 7,
    "timing": 13,
    "timerslack": 30,
    "thp_disable": 42,
    "no_new_privs": 39,
    "seccomp": 21,
    "securebits": 27,
}
PRCTL_POINTER = {"pdeathsig": 2, "child_subreaper": 37}
STATUS = ("SigIgn", "SigBlk", "SigCgt", "ShdPnd", "Umask", "Threads", "Groups", "Cpus_allowed")


def fact(name, value):
    FACTS[name] = value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def each(name, items):
    """Record one fact per item of a mapping or of names."""
    for item in items:
        fact(f"{name}.{item}", items[item] if isinstance(items, dict) else True)


def kind(value):
    """Return the full name of a type or a function, which has no address in it."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def read(path):
    with open(path, encoding="utf-8", errors="surrogateescape") as f:
        return f.read()


def the_main_module():
    main = sys.modules["__main__"]
    each("globals", AT_START)
    fact("main is globals", main.__dict__ is globals())
    for name in ("__name__", "__file__", "__doc__", "__cached__", "__package__"):
        fact(name, globals().get(name, "missing"))
    fact("__loader__", kind(__loader__))
    fact("__builtins__", type(__builtins__).__name__)
    spec = __spec__
    fact("__spec__", None if spec is None else kind(spec))
    for name in (
        "name",
        "origin",
        "cached",
        "parent",
        "has_location",
        "submodule_search_locations",
    ):
        fact(f"__spec__.{name}", getattr(spec, name, "missing"))
    fact("code.co_filename", FRAME.f_code.co_filename)
    frames = []
    frame = FRAME
    while frame is not None:
        frames.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back
    fact("frames", frames)
    fact("recursion.depth", depth())


def depth():
    """Return how many calls are left until the limit. Frames below the script reduce it."""
    try:
        return 1 + depth()
    except RecursionError:
        return 1


def the_interpreter():
    for name in ("argv", "orig_argv", "path", "executable", "prefix", "exec_prefix", "base_prefix"):
        fact(f"sys.{name}", getattr(sys, name, "missing"))
    for name in ("pycache_prefix", "dont_write_bytecode", "warnoptions", "_xoptions", "platlibdir"):
        fact(f"sys.{name}", getattr(sys, name, "missing"))
    for name in ("tracebacklimit", "ps1", "last_type", "last_value", "gettotalrefcount"):
        fact(f"sys.{name}", getattr(sys, name, "missing"))
    flags = [n for n in dir(sys.flags) if not n.startswith(("_", "n_")) and n.islower()]
    each("sys.flags", {n: getattr(sys.flags, n) for n in flags if n not in ("count", "index")})
    each("module", MODULES)
    each("meta_path", map(kind, sys.meta_path))
    fact("sys.path_hooks", [kind(hook) for hook in sys.path_hooks])
    each("path_importer_cache", sys.path_importer_cache.keys() - {os.getcwd()})
    for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook"):
        hook, default = getattr(sys, name), getattr(sys, f"__{name}__")
        fact(f"sys.{name}", "default" if hook is default else kind(hook))
    for name in ("gettrace", "getprofile", "getrecursionlimit", "getswitchinterval"):
        fact(f"sys.{name}", getattr(sys, name)())
    for name in ("getdefaultencoding", "getfilesystemencoding", "getfilesystemencodeerrors"):
        fact(f"sys.{name}", getattr(sys, name)())
    fact("sys.get_asyncgen_hooks", tuple(sys.get_asyncgen_hooks()))
    fact("sys.get_int_max_str_digits", getattr(sys, "get_int_max_str_digits", int)())
    fact("sys.getdlopenflags", sys.getdlopenflags())
    each("builtins", dir(builtins))
    fact("builtins.exit is", kind(getattr(builtins, "exit", None)))
    fact("site.ENABLE_USER_SITE", site.ENABLE_USER_SITE)
    fact("gc.enabled", gc.isenabled())
    fact("gc.threshold", gc.get_threshold())
    fact("gc.frozen", gc.get_freeze_count())
    fact("gc.callbacks", gc.callbacks)
    fact("gc.debug", gc.get_debug())
    fact("warnings.filters", warnings.filters)
    fact("warnings.showwarning", kind(warnings.showwarning))
    fact("logging.root.handlers", logging.root.handlers)
    fact("logging.root.level", logging.root.level)
    fact("logging.loggers", sorted(logging.root.manager.loggerDict))
    fact("tracemalloc", (tracemalloc.is_tracing(), tracemalloc.get_traceback_limit()))
    fact("faulthandler", faulthandler.is_enabled())
    fact("atexit.callbacks", atexit._ncallbacks())
    fact("locale", locale.setlocale(locale.LC_ALL))
    fact("locale.preferred", locale.getpreferredencoding(False))
    fact("time.tzname", time.tzname)
    fact("own.hash", hash("conformance"))
    fact("own.random", random.random())


def streams():
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        fact(f"{name}.type", kind(stream))
        fact(f"{name} is its original", stream is getattr(sys, f"__{name}__"))
        for attribute in ("line_buffering", "write_through", "encoding", "errors", "mode", "name"):
            fact(f"{name}.{attribute}", getattr(stream, attribute, "missing"))
        fact(f"{name}.closed", stream.closed)
        fact(f"{name}.fileno", stream.fileno())
        fact(f"{name}.isatty", stream.isatty())
        fact(f"{name}.raw", kind(getattr(stream.buffer, "raw", stream.buffer)))


def descriptors():
    import fcntl

    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            status = os.fstat(fd)
        except OSError:  # that of the directory itself
            continue
        mode = stat.filemode(status.st_mode)[0]
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK)
        fact(f"fd.{fd}", f"{mode} flags={access:o} inherited={os.get_inheritable(fd)}")


def threads():
    fact("threads", [kind(t) for t in threading.enumerate()])
    main = threading.main_thread()
    fact("threads.main", (main.name, main.daemon, main.is_alive()))
    fact("threads.main is current", main.ident == threading.get_ident())
    fact("threads.main is the process", main.native_id == os.getpid())
    fact("threading.excepthook", threading.excepthook is threading.__excepthook__)
    fact("threading.stack_size", threading.stack_size())
    process = multiprocessing.current_process()
    fact("multiprocessing.process", (process.name, process.daemon, process._parent_pid))
    fact("multiprocessing.parent", multiprocessing.parent_process())
    fact("multiprocessing.children", multiprocessing.active_children())
    fact("multiprocessing.method", multiprocessing.get_start_method(allow_none=True))


def signals():
    for signum in sorted(signal.valid_signals()):
        handler = signal.getsignal(signum)
        name = handler.name if isinstance(handler, signal.Handlers) else handler
        fact(f"signal.{int(signum)}", name if name is None or isinstance(name, str) else kind(name))
    fact("signal.mask", sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
    fact("signal.pending", sorted(map(int, signal.sigpending())))
    fact("signal.wakeup_fd", signal.set_wakeup_fd(-1))
    for timer in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"):
        fact(f"signal.{timer}", signal.getitimer(getattr(signal, timer)))


def the_process():
    fact("own.pid", os.getpid())
    fact("parent is alive", os.getppid() > 1)
    group, session = os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()
    fact("leads its group", group)
    fact("leads its session", session)
    fact("cwd", os.getcwd())
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    each("limit", {name: resource.getrlimit(getattr(resource, name)) for name in limits})
    fact("nice", os.getpriority(os.PRIO_PROCESS, 0))
    fact("affinity", sorted(os.sched_getaffinity(0)))
    fact("scheduler", os.sched_getscheduler(0))
    fact("ids", (os.getresuid(), os.getresgid()))
    for line in read("/proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name in STATUS or name.startswith("Cap"):
            fact(f"status.{name}", value.strip())
    for name in ("comm", "oom_score_adj", "coredump_filter", "cgroup", "timerslack_ns"):
        try:
            fact(f"proc.{name}", read(f"/proc/self/{name}").strip())
        except OSError as e:
            fact(f"proc.{name}", e.strerror)
    fact("proc.exe", os.readlink("/proc/self/exe"))
    fact("proc.cmdline", read("/proc/self/cmdline").split("\0"))
    fact("proc.children", read(f"/proc/self/task/{os.getpid()}/children"))
    fact("proc.terminal", read("/proc/self/stat").rpartition(")")[2].split()[4])
    fact("platform.machine", platform.machine())
    libc = ctypes.CDLL(None)
    for name, option in PRCTL.items():
        fact(f"prctl.{name}", libc.prctl(option, 0, 0, 0, 0))
    for name, option in PRCTL_POINTER.items():
        value = ctypes.c_int()
        libc.prctl(option, ctypes.byref(value), 0, 0, 0)
        fact(f"prctl.{name}", value.value)


def the_environment():
    """Record Python's variables; getenv(3) and /proc/self/environ must agree with them."""
    each("environ", dict(os.environ))
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    differing = [n for n in os.environb if libc.getenv(n) != os.environb[n]]
    fact("getenv differs", differing)
    with open("/proc/self/environ", "rb") as f:
        outside = set(f.read().split(b"\0")) - {b""}
    fact(
        "/proc/self/environ differs", sorted(outside ^ {b"=".join(i) for i in os.environb.items()})
    )


def imports():
    """Modules to import are named by the test; each must be the user's own."""
    for name in filter(None, os.environ.get("CONFORMANCE_IMPORT", "").split(",")):
        module = importlib.import_module(name)
        fact(f"import.{name}", (module.__file__, getattr(module, "WHOSE", None)))


def main():
    # What the others import or open must not be there yet when these look.
    for look in (descriptors, the_main_module, the_interpreter, streams, threads, signals):
        look()
    for look in (the_process, the_environment, imports):
        look()
    path = os.path.join(os.environ["CONFORMANCE_OUT"], os.environ["RANK"] + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(FACTS, f, indent=0, sort_keys=True)


if __name__ == "__main__":
    main()
