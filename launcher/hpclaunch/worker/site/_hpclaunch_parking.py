"""Parks torch outside `sys.modules` until a worker's script imports it.

A worker that is forked from the template has torch in its memory, but not in `sys.modules`. When
the script imports torch or a part of it, `Parking`, the first finder on `sys.meta_path`, restores
all of torch and informs `_hpclaunch_restart.py`. Modules from elsewhere that torch has imported
stay in `sys.modules`.

`Effects` are what importing torch did beside loading modules. This module imports nothing that a
script would not have in `sys.modules`.
"""

import _frozen_importlib_external
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from ._hpclaunch_hooks import find_beyond, remove_finder
    from ._hpclaunch_restart import Restarts
    from ._hpclaunch_startup import Startup
else:
    from _hpclaunch_hooks import find_beyond, remove_finder  # loaded before

TORCH = ("torch", "functorch")


class Effects:
    """The effects of importing torch beside loading modules: variables that it reads and sets, and
    output. Create it before the import, and call `end` after it."""

    def __init__(self, startup: "Startup") -> None:
        self.read: frozenset[str] = frozenset()
        self.changes: dict[str, str | None] = {}  # name: value, or None for a deletion
        self.written: tuple[bytes, ...] = (b"", b"")  # to stdout and stderr
        self.sizes = sizes()  # of stdout and stderr; `end` updates them
        self._before: Any = startup, dict(os.environ)
        startup.asked.clear()

    def end(self, own: "frozenset[str]") -> None:
        startup, environ = self._before
        self.changes = startup.changes(environ)
        self.read = frozenset(startup.asked) - own
        begin, self.sizes = self.sizes, sizes()
        self.written = tuple(map(read, (1, 2), begin, self.sizes))
        self._before = None


def sizes() -> "list[int]":
    """Return the sizes of the template's stdout and stderr, which are files."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return [os.fstat(fd).st_size for fd in (1, 2)]


def read(fd: int, begin: int, end: int) -> bytes:
    """Return the bytes from `begin` to `end` of one of these files."""
    if begin == end:
        return b""
    with open(f"/proc/self/fd/{fd}", "rb", buffering=0) as f:
        return os.pread(f.fileno(), end - begin, begin)


class Parking:
    """The modules of torch. `at_start` names the modules that are loaded when a script begins."""

    def __init__(self, at_start: "frozenset[str]", effects: "Effects") -> None:
        self.effects = effects
        loaded = {name: module for name, module in sys.modules.items() if name not in at_start}
        self.modules = {name: m for name, m in loaded.items() if name.partition(".")[0] in TORCH}
        # Modules that the script might find elsewhere, or replace, before it imports torch.
        self.origins = {
            name: (module, spec.origin if spec.has_location else None)
            for name, module in loaded.items()
            if "." not in name and (spec := spec_of(module)) is not None and spec.name == name
        }
        self.path = [*sys.path]
        self.restarts: Any = None
        self.is_parked = False

    def park(self, restarts: "Restarts") -> None:
        """Park torch in a worker that is about to run its script. `restarts` is informed when torch
        is restored, or when the script needs a new interpreter instead."""
        self.restarts = restarts
        for name in self.modules:
            del sys.modules[name]
        self.is_parked = True
        sys.meta_path.insert(0, self)

    # A finder

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return what the other finders find, with a loader that restores torch."""
        if not self.is_parked or name not in self.modules:
            return None
        spec: ModuleSpec | None = find_beyond(self, name, path, target)
        if spec is not None:
            spec.loader = Loader(self, spec.loader)  # type: ignore[assignment]
        return spec

    def restored(self, name: str, origin: "str | None") -> "ModuleType":
        """Restore torch, whose module `name` was found at `origin`, and return this module."""
        module = self.modules[name]
        if self.is_parked:
            known = spec_of(module)
            if known is not None and not is_same(known.origin, origin):
                self.restarts.restart("module", name)
            self._check()
            self.is_parked = False
            for each, parked in self.modules.items():
                sys.modules.setdefault(each, parked)
            remove_finder(self)
            self.restarts.restored(self.effects)
        return module

    def _check(self) -> None:
        """Become a new interpreter if importing torch now would load another module than the
        template has: the script has changed `sys.modules` or `sys.path`."""
        for name, (module, _) in self.origins.items():
            if sys.modules.get(name, module) is not module:
                self.restarts.restart("module", name)
        if self.path in (sys.path, sys.path[1:]):  # the first entry is the script's directory
            return
        for name, (_, origin) in self.origins.items():
            if origin is not None:
                spec = _frozen_importlib_external.PathFinder.find_spec(name)
                if spec is not None and not is_same(spec.origin, origin):
                    self.restarts.restart("module", name)


class Loader:
    """A loader that restores torch, and otherwise imitates the module's own loader, which is None
    for a package without a file."""

    def __init__(self, parking: "Parking", loader: "Any") -> None:
        self._parking, self._loader = parking, loader
        self._spec: ModuleSpec | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> "Any":
        return type(self._loader)

    def __getattr__(self, name: str) -> "Any":
        return getattr(self._loader, name)

    def create_module(self, spec: "ModuleSpec") -> "ModuleType":
        module = self._parking.restored(spec.name, spec.origin)
        self._spec = spec_of(module)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        module.__spec__ = self._spec  # importlib has replaced it

    def load_module(self, name: str) -> "ModuleType":
        __import__(name)
        return sys.modules[name]


def spec_of(module: object) -> "ModuleSpec | None":
    """Return the spec of a module, without calling a `__getattr__` of it."""
    spec: ModuleSpec | None = getattr(module, "__dict__", {}).get("__spec__")
    return spec


def is_same(known: "str | None", found: "str | None") -> bool:
    """Return whether two origins are one file, whatever links lead to it."""
    try:
        return known == found or os.path.samefile(known, found)  # type: ignore[arg-type]
    except (OSError, TypeError):  # an origin is not a file
        return False
