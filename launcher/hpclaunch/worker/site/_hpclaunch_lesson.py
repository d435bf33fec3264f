"""In a worker: reports what its script has imported by the second optimizer step, or by its end.

The report is called the lesson. It lists the steps that bring a later template to the same state:
["import", name, origin] or ["set", variable, value or null]. It names only modules of Python and of
installed packages. The script's own modules may change before the
next start, so workers import them themselves.

The worker sends it to the fork server as one line. After that, one hook remains and does nothing.
"""

import atexit
import importlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    from ._hpclaunch_progress import progress

    Step: "TypeAlias" = list[str | None]  # [kind, name, origin or value]
    Change: "TypeAlias" = tuple[str, str | None]  # name of a variable, its new value
else:
    from _hpclaunch_progress import progress  # loaded before

STEPS = 2  # of an optimizer; a script may import modules after the first one
MOST = 1 << 20  # bytes of the message
STDLIB = os.path.dirname(os.__file__) + os.sep
INSTALLED = ("/site-packages/", "/dist-packages/")
SPEC = type(importlib.__spec__)  # of real modules
PYTHONS_OWN = ("built-in", "frozen")


class Lesson:
    """The steps of a script, noted until they are sent."""

    def __init__(self, path: str, spec_of: "Callable[[object], Any]") -> None:
        self.path = path
        self.spec_of = spec_of  # the function of `_hpclaunch_parking`
        self.pid = os.getpid()
        self.known = frozenset(sys.modules)
        self.changes: list[tuple[str, Change]] = []  # (the newest module at that time, a change)
        self.environ: dict[str, str | None] = {**os.environ}
        self.left = STEPS
        self.given = os.putenv, os.unsetenv
        self.noting = self.putenv, self.unsetenv
        os.putenv, os.unsetenv = self.noting  # type: ignore[assignment]  # for str and bytes
        # This hook is never removed: torch iterates over its hooks while the lesson is sent.
        progress.listen(self.stepped)
        atexit.register(self.send)

    def note(self, name: "str | bytes", value: "str | bytes | None") -> None:
        """Note a change of a variable, until the lesson is sent."""
        if self.left > 0:
            change = os.fsdecode(name), None if value is None else os.fsdecode(value)
            try:
                self.changes.append((next(reversed(sys.modules)), change))
            except RuntimeError:
                pass  # another thread is importing a module

    def putenv(self, name: "str | bytes", value: "str | bytes", /) -> None:
        self.given[0](name, value)
        self.note(name, value)

    def unsetenv(self, name: "str | bytes", /) -> None:
        self.given[1](name)
        self.note(name, None)

    def stepped(self, _optimizer: object) -> None:
        if self.left > 0:
            self.left -= 1
            if not self.left:
                self.send()

    def send(self) -> None:
        self.left = 0
        atexit.unregister(self.send)
        if (os.putenv, os.unsetenv) == self.noting:
            os.putenv, os.unsetenv = self.given
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
        changes: dict[str, list[Change]] = {}
        for last, change in self.changes:
            changes.setdefault(last, []).append(change)
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


def lasting(changes: "Sequence[Change]", environ: "dict[str, str | None]") -> "list[Step]":
    """Return the steps that set each variable to its last value.

    Leave out a variable that was changed and put back: some scripts clear the environment for a
    while. Keep one that was only set to the value that it had: next time it may have another."""
    names = [name for name, _ in changes]
    last = dict(changes)
    steps: list[Step] = [
        ["set", name, value]
        for name, value in last.items()
        if names.count(name) == 1 or environ.get(name) != value
    ]
    environ.update(last)
    return steps


def is_shared(origin: str) -> bool:
    installed = any(part in origin for part in INSTALLED)
    return installed or origin.startswith(STDLIB) or origin in PYTHONS_OWN
