"""In a worker: reports what its script has imported by the second optimizer step, or by its end.

The report is called the lesson. It lists the steps that bring a later template to the same state:
["import", name, origin], ["set", variable, value or null] or ["seed", generator, null]. It names
only modules of Python and of installed packages. The script's own modules may change before the
next start, so workers import them themselves.

The worker sends it to the fork server as one line. After that, one hook remains and does nothing.
"""

import atexit
import functools
import importlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any, TypeAlias

    from ._hpclaunch_progress import progress

    Step: "TypeAlias" = list[str | None]  # [kind, name, origin or value]
else:
    from _hpclaunch_progress import progress  # loaded before

STEPS = 2  # of an optimizer; a script may import modules after the first one
MOST = 1 << 20  # bytes of the message
STDLIB = os.path.dirname(os.__file__) + os.sep
INSTALLED = ("/site-packages/", "/dist-packages/")
SEEDS = (
    ("random", "random", "seed"),
    ("numpy", "numpy.random", "seed"),
    ("torch", "torch", "manual_seed"),
    ("torch", "torch.random", "manual_seed"),
)
SPEC = type(importlib.__spec__)  # of real modules
PYTHONS_OWN = ("built-in", "frozen")


class Lesson:
    """The steps of a script, noted until they are sent."""

    def __init__(self, path: str, spec_of: "Callable[[object], Any]") -> None:
        self.path = path
        self.spec_of = spec_of  # the function of `_hpclaunch_parking`
        self.pid = os.getpid()
        self.known = frozenset(sys.modules)
        self.changes: list[tuple[str, Step]] = []  # (the newest module at that time, a step)
        self.environ: dict[str, str | None] = {**os.environ}
        self.left = STEPS
        # (module, name, function, ours)
        self.replaced: list[tuple[ModuleType, str, object, object]] = []
        self.replace("os", "putenv", self.putenv)
        self.replace("os", "unsetenv", self.unsetenv)
        for generator, module, name in SEEDS:
            self.replace(module, name, functools.partial(self.seed, generator))
        # This hook is never removed: torch iterates over its hooks while the lesson is sent.
        progress.listen(self.stepped)
        atexit.register(self.send)

    def replace(self, owner: str, name: str, noting: "Callable[..., object]") -> None:
        """Replace a function by one that notes its calls, until the lesson is sent."""
        module = sys.modules.get(owner)
        function = getattr(module, name, None)
        if module is None or function is None:
            return
        known = [ours for _, _, replaced, ours in self.replaced if replaced is function]
        ours = known[0] if known else NotedFunction(module, name, function, noting)
        setattr(module, name, ours)
        self.replaced.append((module, name, function, ours))

    def note(self, *step: "str | None") -> None:
        """Note a step, until the lesson is sent. A script that did `from random import seed` keeps
        the replacement, which calls this even afterwards."""
        if self.left > 0:
            try:
                self.changes.append((next(reversed(sys.modules)), [*step]))
            except RuntimeError:
                pass  # another thread is importing a module

    def putenv(self, name: "str | bytes", value: "str | bytes") -> None:
        self.note("set", os.fsdecode(name), os.fsdecode(value))

    def unsetenv(self, name: "str | bytes") -> None:
        self.note("set", os.fsdecode(name), None)

    def seed(self, generator: str, *_args: object) -> None:
        self.note("seed", generator, None)

    def stepped(self, _optimizer: object) -> None:
        if self.left > 0:
            self.left -= 1
            if not self.left:
                self.send()

    def send(self) -> None:
        self.left = 0
        atexit.unregister(self.send)
        for module, name, function, ours in self.replaced:
            if getattr(module, name) is ours:
                setattr(module, name, function)
        if os.getpid() != self.pid:  # a process that the script has forked
            return
        try:
            line = self.message()
            with open(self.path, "wb") as f:
                f.write(line)
        except (OSError, RuntimeError):
            pass  # the fork server no longer wants it, or another thread imports something

    def message(self) -> bytes:
        steps = self.steps()
        while True:
            message = json.dumps(steps).encode("utf-8", "surrogatepass") + b"\n"
            if len(message) <= MOST:
                return message
            del steps[len(steps) * 9 // 10 :]

    def steps(self) -> "list[Step]":
        changes: dict[str, list[Step]] = {}
        for last, step in self.changes:
            changes.setdefault(last, []).append(step)
        steps: list[Step] = []
        for name, module in list(sys.modules.items()):
            spec = self.spec_of(module)
            if isinstance(spec, SPEC) and name not in self.known and spec.name == name:
                origin = str(spec.origin or "")
                if is_shared(origin):
                    # A submodule has the origin "": it comes with its package.
                    steps.append(["import", name, "" if "." in name else origin])
            steps += lasting(changes.pop(name, ()), self.environ)
        return steps


class NotedFunction:
    """A function that notes its calls. Pickle stores it by name, so a process that receives it,
    such as a DataLoader's worker, gets its own function of that name."""

    def __init__(
        self, module: "ModuleType", name: str, function: "Any", noting: "Callable[..., object]"
    ) -> None:
        functools.update_wrapper(self, function)
        self.place = f"{module.__name__}:{name}"
        self.noting = noting

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
        result = self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]
        self.noting(*args)
        return result

    def __reduce__(self) -> "Any":
        import pkgutil

        return pkgutil.resolve_name, (self.place,)


def lasting(changes: "Sequence[Step]", environ: "dict[str, str | None]") -> "list[Step]":
    """Return the steps with only the last value of each variable.

    Leave out a variable that was changed and put back: some scripts clear the environment for a
    while. Keep one that was only set to the value that it had: next time it may have another."""
    sets = [step for step in changes if step[0] == "set"]
    last = {step[1]: step for step in sets}
    several = {step[1] for step in sets if step is not last[step[1]]}
    back = {name for name in several if environ.get(str(name)) == last[name][2]}
    environ.update((str(name), value) for _, name, value in last.values())
    return [
        step
        for step in changes
        if step[0] != "set" or (step is last[step[1]] and step[1] not in back)
    ]


def is_shared(origin: str) -> bool:
    installed = any(part in origin for part in INSTALLED)
    return installed or origin.startswith(STDLIB) or origin in PYTHONS_OWN
