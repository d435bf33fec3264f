"""In a fork that is to replace the template: imports what scripts of earlier rounds have imported.

The state of the process is compared before and after each import. A module is left to the workers
if it would make them differ from fresh interpreters: it starts a thread or a process; opens a
socket or a device; seeds a generator, or draws a number after the script has seeded it; reads a
variable that differs between workers; replaces a function of another module; writes output; or
stores the process id. Such a module ends this process, which reports it, and the next attempt does
without it.

Forks may inherit handlers of signals and of exit, locks, caches, and files open for reading.
"""

import importlib
import os
import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # what only type checkers need
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..template_messages import Renew
    from ._hpclaunch_template import Template

FUNCTIONS = (type(lambda: 0), type(len), type)
OWN_BUSINESS = {"sys", "__main__"}


class NotForAll(Exception):  # noqa: N818
    """The reason why a module cannot be imported for all workers."""


class Renewal:
    """The steps of a lesson, without the modules that ended earlier attempts."""

    def __init__(self, template: "Template", unfit: "type[Exception]", request: "Renew") -> None:
        self.template = template
        self.unfit = unfit  # the exception of the template's checks
        self.steps = request.steps
        self.names = {step.name for step in self.steps if step.kind not in ("set", "seed")}
        template.own |= frozenset(request.own)
        self.asked, self.sizes = template.startup.asked, template.startup.parking.sizes
        self.set_here: dict[str, str | None] = {}  # variables, as the script has set them so far
        self.seeded: set[str] = set()  # generators that the script has seeded so far
        # {module: {name: function or class}}, to detect replaced ones; empty if not careful
        self.functions: dict[str, dict[str, object]] = {}

    def run(self, careful: bool) -> None:
        """Do all steps; if `careful`, detect replaced functions. Raises NotForAll(module, why)."""
        before = dict(os.environ)
        if careful:
            self.note_functions()
        for step in [*self.steps]:
            kind, name, value = step.kind, step.name, step.more
            if kind == "set" and self.is_set(name, value) and before.get(name) != value:
                self.steps.remove(step)
            elif kind == "set":
                self.set(name, value)
            elif kind == "seed":
                self.seeded.add(name)
            elif kind == "from":
                self.load(name, "", value)
            elif name not in sys.modules:
                self.load(name, value)
        for name, value in [*self.set_here.items()]:  # the worker's script will set them
            if os.environ.get(name) == value:
                self.set(name, before.get(name))

    def is_set(self, name: str, value: "str | None") -> bool:
        """Return whether a module, and not the script, has set a variable to this value."""
        return value is not None and os.environ.get(name) == value and name not in self.set_here

    def set(self, name: str, value: "str | None") -> None:
        self.set_here[name] = value
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def load(self, name: str, origin: "str | None", taken: "str | None" = "") -> None:
        self.asked.clear()
        package = name.partition(".")[0]
        is_new = package not in sys.modules
        # A lesson lists a package after those of its modules that the package itself imports.
        blamed = package if is_new and package in self.names else name
        before, known = Moment(self.sizes), set(sys.modules)
        try:
            module = importlib.import_module(name)
            if taken:
                getattr(module, taken, None)
        except (Exception, SystemExit) as e:
            raise NotForAll(blamed, f"{type(e).__name__}: {e}") from e
        try:
            found = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
            if origin and found != origin:
                raise NotForAll(blamed, f"it is found at {found} here")
            self.template.check_state(f"importing {name}")
            if why := before.differs(self.seeded) or keeps_pid(sys.modules.keys() - known):
                raise NotForAll(blamed, why)
            if is_new and self.functions and (why := self.replaced(package)):
                raise NotForAll(blamed, why)
        except self.unfit as e:
            raise NotForAll(blamed, str(e)) from e
        if read := sorted(self.set_here.keys() & self.asked.keys()):
            raise NotForAll(blamed, f"it reads {read[0]}, which the script sets")

    def note_functions(self) -> None:
        """Record the functions of new modules."""
        for name, module in list(sys.modules.items()):
            if name not in self.functions and isinstance(module, type(sys)):
                # isinstance() would read `__class__`, and some objects then warn of deprecation.
                space = vars(module).items()
                found = {k: v for k, v in space if issubclass(type(v), FUNCTIONS)}
                self.functions[name] = found

    def replaced(self, own: str) -> str:
        """Describe a function of another package that the import of `own` has replaced, or return
        ""."""
        for module, before in self.functions.items():
            top = module.partition(".")[0]
            there = sys.modules.get(module)
            if top == own or top in OWN_BUSINESS or there is None:
                continue
            now = vars(there)
            for attribute, value in before.items():
                if now.get(attribute) is not value and attribute in now:
                    by = (getattr(now[attribute], "__module__", None) or "").partition(".")[0]
                    if by != top:
                        return f"it replaces {module}.{attribute}"
        self.note_functions()
        return ""


class Moment:
    """A snapshot of the random number generators and the output, which an import may change."""

    def __init__(self, sizes: "Callable[[], list[int]]") -> None:
        self.generators = generators(moved=True)
        self.sizes, self.written = sizes, sizes()

    def differs(self, seeded: "set[str]") -> str:
        """Describe what has changed since then; "" if nothing has."""
        now = generators()
        for key, (seed, position) in self.generators.items():
            if now[key][0] != seed:
                return f"it seeds the generator of {key}"
            if now[key][1] != position and key in seeded:
                return f"it draws from the generator of {key}, which the script has seeded before"
        if self.sizes() != self.written:
            return "it writes to the standard output or error"
        return ""


def generators(moved: bool = False) -> "dict[str, tuple[Any, Any]]":
    """Return {name: (state that a seed determines, position in it)} of the generators.

    Every 600th draw or so changes that state, too. With `moved`, draw one number first, so that the
    next draw is not mistaken for a seed. This is harmless: every worker gets a seed of its own.
    """
    modules = sys.modules
    if moved:
        random.random()  # noqa: S311
    _, state, _ = random.getstate()
    found = {"random": (state[:-1], state[-1])}
    if "numpy.random" in modules:
        if moved:
            modules["numpy.random"].random_sample()
        _, key, *position = modules["numpy.random"].get_state()
        found["numpy"] = (key.tobytes(), position)
    generator = modules["torch"].default_generator
    found["torch"] = (generator.initial_seed(), generator.get_state().numpy().tobytes())
    return found


def keeps_pid(names: "Iterable[str]") -> str:
    """Name an attribute of these modules that is the process id; "" if there is none."""
    pid = os.getpid()
    for name in names:
        for attribute, value in getattr(sys.modules[name], "__dict__", {}).items():
            if type(value) is int and value == pid and "pid" in attribute.lower():
                return f"{name}.{attribute} is the process id"
    return ""
