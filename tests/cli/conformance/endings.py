"""The ways in which a script can end: `endings.py NAME`."""
# ruff: noqa: T201

import atexit
import ctypes
import faulthandler
import os
import signal
import sys
import tempfile
import threading
import types
import warnings
import weakref


def finish():
    print("done")


def exit_zero():
    sys.exit(0)


def exit_three():
    sys.exit(3)


def exit_none():
    sys.exit(None)


def exit_text():
    sys.exit("no such data set: bäh")


def exit_large():
    sys.exit(256 + 7)


def exception():
    def inner():
        raise ValueError("wrong\nin two lines")

    try:
        inner()
    except ValueError as e:
        e.add_note("a note") if hasattr(e, "add_note") else None
        raise RuntimeError("epoch 3") from e


def in_a_thread():
    thread = threading.Thread(target=exception, name="loader")
    thread.start()
    thread.join()
    print("still here")


def a_thread_outlives_main():
    """The interpreter waits for threads that are no daemons."""
    main = threading.main_thread()
    threading.Thread(target=lambda: (main.join(), print("the last word"))).start()


def exit_in_a_thread():
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()


def at_exit():
    """Callbacks in reverse order, one that fails among them, then what is still referenced."""

    class Held:
        def __del__(self):
            print("collected", __name__, sys is None)

    globals()["held"] = Held()
    atexit.register(print, "first registered")
    atexit.register(exception)
    atexit.register(print, "last registered")
    raise KeyError("before")


def what_is_left():
    """Python collects it at once: while any of it is finalized, all of it is there."""

    class Held:
        def __init__(self, name):
            self.name, self.itself = name, self

        def __del__(self):
            print("collected", self.name, os.path.basename("a/b"), sys.is_finalizing())
            print(os.path.exists(directory.name), "directory" in globals())

    def generator():
        try:
            yield
        finally:
            print("closed", sys.is_finalizing())

    begun = generator()
    next(begun)
    file = open("left", "w")  # noqa: SIM115
    file.write("not flushed")
    held = Held("by the script")
    finalizer = weakref.finalize(held, print, "finalizer")
    watched = weakref.ref(held, print)
    directory = tempfile.TemporaryDirectory(dir=".")
    module = types.ModuleType("module")
    module.held = Held("by a module")
    sys.modules["module"] = module
    atexit.register(lambda: print("at exit", os.path.exists(directory.name)))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    globals().update(locals())


def in_del():
    class Fails:
        def __del__(self):
            raise ValueError("in __del__")

    Fails()


def own_hook():
    sys.excepthook = lambda kind, value, trace: print("mine:", kind.__name__, value)
    exception()


def too_deep():
    too_deep()


def leave_at_once():
    atexit.register(print, "never")
    print("written though", end="")
    os._exit(5)


def abort():
    os.abort()


def segfault():
    ctypes.string_at(0)


def segfault_with_traceback():
    faulthandler.enable()
    ctypes.string_at(0)


def interrupt():
    raise KeyboardInterrupt


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def interrupted():
    """Send the signal itself, which has Python's own handler."""
    os.kill(os.getpid(), signal.SIGINT)


def broken_pipe():
    """Python ignores SIGPIPE, and says what is wrong."""
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")


def warn():
    warnings.warn("slow path", stacklevel=1)
    warnings.warn("by default not shown", DeprecationWarning, stacklevel=1)


def unfinished_line():
    print("epoch 1", end="")
    print("loss 0.1", end="", file=sys.stderr)


def other_program():
    os.execv("/bin/sh", ["sh", "-c", "echo now a shell; exit 6"])


def closed_output():
    sys.stdout.close()
    sys.stderr.close()
    os.close(1)
    os.close(2)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
