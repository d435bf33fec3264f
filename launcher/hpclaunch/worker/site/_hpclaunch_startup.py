"""Watches, in the template, what Python runs before a script: sitecustomize and usercustomize.

Both may add to sys.path, install import hooks, or set variables, and forked workers inherit this.
Workers must not share files, threads or processes, nor the template's value of a variable that
differs between workers. The template checks for both before it is ready.

This module imports nothing that is not yet loaded, since it runs before both.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Iterator
    from types import FrameType, ModuleType

# The files of os.environ's own code.
_CORE = {f.__code__.co_filename for f in (os.getenv, type(os.environ).get, type(os.environ).update)}


_asked: "dict[str, str]" = {}  # name of a variable: the file that read it first
_listed: "dict[str, str]" = {}  # name of a variable: the file that listed all


def _reader(frame: "FrameType") -> str:
    """Return the file of the code that reads os.environ."""
    while frame.f_back is not None and frame.f_code.co_filename in _CORE:
        frame = frame.f_back
    return frame.f_code.co_filename


class Environ(type(os.environ)):  # type: ignore[misc]
    """os.environ while the template loads; it records which file reads which variable.

    A file that iterates over all variables, to copy them or to find a prefix, may then read each
    once without a record. tqdm does so, and torch imports it.
    """

    def __iter__(self) -> "Iterator[str]":
        reader = _reader(sys._getframe(1))
        for name in super().__iter__():
            _listed[name] = reader
            yield name

    def __getitem__(self, name: str) -> str:
        if name in _listed or name not in _asked:
            reader = _reader(sys._getframe(1))
            if _listed.pop(name, None) != reader:
                _asked.setdefault(name, reader)
        return super().__getitem__(name)  # type: ignore[no-any-return]


class Startup:
    """The state of the process before sitecustomize runs, and what it and usercustomize change."""

    def __init__(self, parking: "ModuleType") -> None:
        for name in (__name__, parking.__name__):
            del sys.modules[name]
        self.parking = parking
        self.modules: frozenset[str] = frozenset()  # in sys.modules when a script begins
        self.open = self.descriptors().keys()
        self.asked = _asked
        self._plain = type(os.environ)
        os.environ.__class__ = Environ

    def serve_next(self) -> None:
        """Serve as the template once usercustomize has run; sitecustomize has run already."""
        import site  # the module that is running sitecustomize

        if not site.ENABLE_USER_SITE:
            self._serve()
            return
        execute = site.execusercustomize

        def execusercustomize() -> None:
            site.execusercustomize = execute
            execute()
            self._serve()

        site.execusercustomize = execusercustomize

    def _serve(self) -> None:
        self.modules = frozenset(sys.modules)
        try:
            if sys.version_info < (3, 10):  # noqa: UP036 - workers may have any Python
                raise RuntimeError("a template needs Python 3.10 or newer")
            template = sys.modules["_hpclaunch_hooks"].beside("_hpclaunch_template")
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(126)  # this process is no worker and must not become one
        template.serve(self)

    def changes(self, before: "dict[str, str]") -> "dict[str, str | None]":
        """Return {name: value, or None if it is gone} of variables that differ from `before`."""
        now = dict(os.environ)
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return {name: now.get(name) for name in names}

    @staticmethod
    def descriptors() -> "dict[str, str]":
        """Return {descriptor: the target of its link in /proc}."""
        found = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                found[fd] = os.readlink("/proc/self/fd/" + fd)
            except OSError:  # the descriptor of this listing, closed by now
                pass
        return found

    def end(self) -> None:
        """Make os.environ an ordinary one again, in a fork of the template."""
        os.environ.__class__ = self._plain
