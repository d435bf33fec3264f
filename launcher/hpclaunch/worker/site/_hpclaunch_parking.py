"""Parks what the template has imported outside `sys.modules`, until a worker's script imports it.

A worker that is forked from the template has torch in its memory. For the script, `sys.modules` is
nevertheless that of a new interpreter. `Parking` is the first finder on `sys.meta_path`. When the
script imports a module that is parked, the finder restores this module together with all modules
that it has imported itself, just as a real import would load them. So it is known when torch comes
into being for the script. `_hpclaunch_restart.py` relies on that.

The template records which module imports which (`Recorder`), and what an import does beside loading
modules (`Effects`). Nothing here is imported that a script might not have imported.
"""

import _frozen_importlib
import _frozen_importlib_external
import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from typing import Any

importlib: "Any" = _frozen_importlib


C_CODE = ("create_module", "exec_module")  # of importlib, which call that of a module in C


class Recorder:
    """Records which modules import which, between `begin` and `end`."""

    def __init__(self):
        self.imports: Any = set()  # what `edges` resolves
        self._given: Any = ()

    def begin(self):
        given, find = builtins.__import__, importlib._gcd_import
        modules, frame_at, add = sys.modules, sys._getframe, self.imports.add
        # The number of modules when an import was last recorded. If none has begun since, then the
        # one that asks now has asked for the one that did so.
        seen: Any = {}

        def import_(name, globals=None, locals=None, fromlist=(), level=0):  # noqa: A002
            package = globals.get("__package__") if level and globals else None
            what = name, level, package, tuple(fromlist) if fromlist else ()
            if seen.get(what) != len(modules):
                seen[what] = len(modules)
                add((asker(frame_at(1)), *what))
            return given(name, globals, locals, fromlist, level)

        def _gcd_import(name, package=None, level=0):
            """Record calls of `importlib.import_module`."""
            add((asker(frame_at(1)), name, level, package, ()))
            return find(name, package, level)

        self._given = given, find
        builtins.__import__ = import_
        importlib._gcd_import = _gcd_import

    def end(self):
        builtins.__import__, importlib._gcd_import = self._given

    def edges(self):
        """Yield pairs of names: a module, and one that it has asked for."""
        for asker, name, level, package, taken in self.imports:
            if level:
                base = (package or "").rsplit(".", level - 1)[0]
                name = f"{base}.{name}" if name else base
            yield asker, name
            for item in taken:
                yield asker, f"{name}.{item}"


def asker(frame):
    """Return the name of the module that is being loaded, and asks for another one."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>":
            return frame.f_globals.get("__name__")
        if code.co_name in C_CODE and code.co_filename.startswith("<frozen importlib"):
            loaded = frame.f_locals
            return loaded["spec"].name if "spec" in loaded else loaded["module"].__name__
        frame = frame.f_back
    return None


class Effects:
    """What importing a module does beside loading modules: variables that it reads and sets, and
    what it writes. Created before the import; `end` is called after it."""

    def __init__(self, startup, name):
        self.name = name
        self.read = frozenset()  # type: ignore[var-annotated]
        self.changes = {}  # name: value, or None for a deletion
        self.written = (b"", b"")  # to stdout and stderr
        self._before: Any = startup, dict(os.environ), sizes()
        startup.asked.clear()

    def end(self, own):
        startup, environ, before = self._before
        self.changes = startup.changes(environ)
        self.read = frozenset(startup.asked) - own
        self.written = tuple(map(read, (1, 2), before, sizes()))
        self._before = None


def written():
    """Return what the template has written to stdout and stderr so far."""
    return tuple(map(read, (1, 2), (0, 0), sizes()))


def sizes():
    """Return how much the template has written to stdout and stderr, which are files."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return [os.fstat(fd).st_size for fd in (1, 2)]


def read(fd, begin, end):
    """Return bytes of a file that is open for appending."""
    if begin == end:
        return b""
    with open(f"/proc/self/fd/{fd}", "rb", buffering=0) as f:
        return os.pread(f.fileno(), end - begin, begin)


class Parking:
    """The modules that the template has imported beside those `at_start`.

    A module has a number, its place in the order of `sys.modules`. A set of modules is an integer
    with a bit for each: it is small, and a worker that uses it writes to no page of theirs.
    """

    def __init__(self, at_start, recorder, effects):
        self.names = [name for name in sys.modules if name not in at_start]
        self.modules: Any = [sys.modules[name] for name in self.names]
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.closures = self._closures(recorder)
        self.attributes = self._attributes()
        self.effects = {self.numbers[e.name]: e for e in effects if e.name in self.numbers}
        self.path = [*sys.path]
        self.parked = 0  # the set of modules that are parked
        self.restarts: Any = None

    def _closures(self, recorder):
        """Return, for each module, the set of modules that importing it brings along."""
        edges = [[] for _ in self.names]  # type: ignore[var-annotated]
        for asker, name in recorder.edges():
            if asker in self.numbers and name in self.numbers:
                edges[self.numbers[asker]].append(self.numbers[name])
        for number, name in enumerate(self.names):
            parent = self.numbers.get(name.rpartition(".")[0])
            if parent is not None:
                edges[number].append(parent)
            if not is_found_by_name(name, self.modules[number]) and number:
                # Its package has made it, or else the module that came before it.
                edges[number - 1 if parent is None else parent].append(number)
        closures = [1 << number for number in range(len(edges))]
        before = None
        while closures != before:
            before = [*closures]
            for number, others in enumerate(edges):
                found = closures[number]
                for other in others:
                    found |= closures[other]
                closures[number] = found
        known = {}  # type: ignore[var-annotated]  # many are equal
        return [known.setdefault(found, found) for found in closures]

    def _attributes(self):
        """Return {number: (namespace, name)} of the attributes of packages that are modules which
        importing the package does not bring along."""
        found = {}
        for number, name in enumerate(self.names):
            parent, _, last = name.rpartition(".")
            above = self.numbers.get(parent)
            if above is not None and self.closures[above] >> number & 1:
                continue
            namespace = getattr(sys.modules.get(parent), "__dict__", {})
            if namespace.get(last) is self.modules[number]:
                found[number] = (namespace, last)
        return found

    def is_parked(self, name):
        number = self.numbers.get(name)
        return number is not None and bool(self.parked >> number & 1)

    def park(self, restarts):
        """Park the modules of a worker that is about to run its script. `restarts` learns what is
        restored, and what must not be."""
        self.restarts = restarts
        for name in self.names:
            del sys.modules[name]
        for namespace, name in self.attributes.values():
            del namespace[name]
        self.parked = (1 << len(self.names)) - 1
        sys.meta_path.insert(0, self)

    def end(self):
        """Prepare for the end of the process, which runs exit handlers of parked modules: give
        their packages the attributes back. Let go of the other modules: Python finalizes them."""
        parked = set(bits(self.parked))
        self.modules = [m if number in parked else None for number, m in enumerate(self.modules)]
        self.attributes = {n: place for n, place in self.attributes.items() if n in parked}
        for number, (namespace, name) in self.attributes.items():
            namespace[name] = self.modules[number]

    # A finder

    def find_spec(self, name, path=None, target=None):
        """Return what the other finders find, with a loader that restores the module."""
        if not self.is_parked(name):
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if find_spec and finder is not self else None
            if spec is not None:
                spec.loader = Loader(self, self.numbers[name], spec.loader)
                return spec
        return None

    def restored(self, number, origin):
        """Restore a module that was found at `origin`, with all that its import brings along."""
        known = spec_of(self.modules[number])
        if known is not None and known.origin != origin:
            self.restarts.restart("module", self.names[number])
        numbers = bits(self.closures[number] & self.parked)
        self._check(numbers)
        for each in numbers:
            # Extensions that come from Cython make some modules for themselves, if there are none.
            sys.modules.setdefault(self.names[each], self.modules[each])
        self.parked &= ~self.closures[number]
        for each in numbers:
            if each in self.attributes:
                namespace, name = self.attributes[each]
                namespace[name] = self.modules[each]
        done = [self.effects.pop(each, None) for each in numbers]
        self.restarts.restored(list(filter(None, done)))
        if not self.parked:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        return self.modules[number]

    def _check(self, numbers):
        """Become a new interpreter if an import would now load another module than the template
        has: the script has put one into `sys.modules`, or a directory into `sys.path`."""
        for number in numbers:
            name, module = self.names[number], self.modules[number]
            there = sys.modules.get(name, module)
            if there is not module and is_found_by_name(name, module):
                self.restarts.restart("module", name)
        if self.path in (sys.path, sys.path[1:]):  # the first is the script's directory
            return
        for number in numbers:
            name, known = self.names[number], spec_of(self.modules[number])
            if "." not in name and known is not None and known.has_location:
                spec = _frozen_importlib_external.PathFinder.find_spec(name)
                if spec is not None and spec.origin != known.origin:
                    self.restarts.restart("module", name)


class Loader:
    """A loader that restores a module, and otherwise looks like the module's own, which is None for
    a package without a file."""

    def __init__(self, parking, number, loader):
        self._parking, self._number, self._loader = parking, number, loader
        self._spec = None

    @property  # type: ignore[misc]
    def __class__(self):
        return type(self._loader)

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        module = self._parking.restored(self._number, spec.origin)
        self._spec = spec_of(module)
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec  # importlib has set another

    def load_module(self, name):
        __import__(name)
        return sys.modules[name]


def is_found_by_name(name, module):
    spec = spec_of(module)
    return spec is not None and spec.name == name


def spec_of(module):
    """Return the spec of a module, without asking an object that answers every question."""
    return getattr(module, "__dict__", {}).get("__spec__")


def bits(integer):
    """Return the numbers of the bits that are set."""
    return [number for number, bit in enumerate(reversed(bin(integer)[2:])) if bit == "1"]
