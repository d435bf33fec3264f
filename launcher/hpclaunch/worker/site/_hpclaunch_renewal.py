"""In a fork of the template that is to be the next one: imports what a script was seen to import.

Each import is compared before and after. What would differ in a worker that is forked afterwards is
not for the template: a thread, a process, a socket, a device; a generator that is seeded, or from
which a number is drawn after the script has seeded it; a variable read that is each worker's own; a
function of another module replaced; a line written. Such a module ends this process, which names
it, so that the next attempt does without.

What a fork hands on as it is may stay: handlers of signals and of the interpreter's end, locks,
caches, open files that are only read.
"""

import importlib
import json
import os
import random
import sys

FUNCTIONS = (type(lambda: 0), type(len), type)
OWN_BUSINESS = {"sys", "__main__"}


class NotForAll(Exception):  # noqa: N818
    """Why a module cannot be imported for all workers."""


class Renewal:
    """Of a template: `steps` are a lesson's, without modules that came to grief before."""

    def __init__(self, template, unfit, steps, own):
        self.template = template
        self.unfit = unfit  # the template's exception
        self.steps = steps
        template.own |= frozenset(own)
        self.asked = template.startup.asked
        self.set_here: dict[str, str | None] = {}  # as the script has set them by now
        self.seeded: set[str] = set()  # generators, by the script
        # {module: {name: function or class}}, to see which are replaced; empty if nobody asks.
        self.functions: dict[str, dict[str, object]] = {}

    def run(self, careful):
        """`careful`: also compare what takes long to. Raises NotForAll with (module, why)."""
        before = dict(os.environ)
        if careful:
            self.note_functions()
        for kind, name, value in self.steps:
            if kind == "set":
                self.set(name, value)
            elif kind == "seed":
                self.seeded.add(name)
            elif kind == "from":
                self.load(name, "", value)
            elif name not in sys.modules:
                self.load(name, value)
        for name, value in [*self.set_here.items()]:  # the script itself is going to set them
            if os.environ.get(name) == value:
                self.set(name, before.get(name))

    def set(self, name, value):
        self.set_here[name] = value
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def load(self, name, origin, taken=""):
        self.asked.clear()
        package = name.partition(".")[0]
        compares = self.functions and package not in sys.modules
        before = Moment()
        try:
            module = importlib.import_module(name)
            if taken:
                getattr(module, taken, None)
        except Exception as e:
            raise NotForAll(name, f"{type(e).__name__}: {e}") from e
        try:
            found = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
            if origin and found != origin:
                raise NotForAll(name, f"it is found at {found} here")
            self.template.check_state(f"importing {name}")
            if why := before.differs(self.seeded):
                raise NotForAll(name, why)
            if compares and (why := self.replaced(package)):
                raise NotForAll(name, why)
        except self.unfit as e:
            raise NotForAll(name, str(e)) from e
        if read := sorted(self.set_here.keys() & self.asked.keys()):
            raise NotForAll(name, f"it reads {read[0]}, which the script sets")

    def note_functions(self):
        """Those of modules that are new."""
        for name, module in list(sys.modules.items()):
            if name not in self.functions and isinstance(module, type(sys)):
                # isinstance() asks the object, and some complain that they are old.
                space = vars(module).items()
                found = {k: v for k, v in space if issubclass(type(v), FUNCTIONS)}
                self.functions[name] = found

    def replaced(self, own):
        """A function of a module that was there before, by one that is not of its package."""
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

    def lasting(self):
        """The steps to do the next time. Values of variables may be secrets, and others by then:
        only that one is set is kept.
        """
        return [[kind, name, None if kind == "set" else value] for kind, name, value in self.steps]


class Moment:
    """What an import may change for others."""

    def __init__(self):
        self.generators = generators(moved=True)
        self.written = written()

    def differs(self, seeded):
        """How, in words; "" if it does not."""
        now = generators()
        for key, (seed, position) in self.generators.items():
            if now[key][0] != seed:
                return f"it seeds the generator of {key}"
            if now[key][1] != position and key in seeded:
                return f"it draws from the generator of {key}, which the script has seeded before"
        if written() != self.written:
            return "it writes to the standard output or error"
        return ""


def generators(moved=False):
    """{name: (what a seed determines, the position after it)}. The first changes also after some
    600 draws: `moved` makes sure that these are not about to be over. Every worker gets a seed of
    its own.
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


def written():
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    return [os.fstat(fd).st_size for fd in (1, 2)]


def remember(path, steps, avoided):
    """Write a lesson for the next launch: whole, or not at all."""
    directory = os.path.dirname(path)
    made = f"{path}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with open(os.open(made, flags, 0o600), "w") as f:
            json.dump({"version": 1, "steps": steps, "avoided": sorted(avoided)}, f)
        os.replace(made, path)
    except (OSError, UnicodeError):
        try:
            os.unlink(made)
        except OSError:
            pass
