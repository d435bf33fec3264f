"""The text of the program that the workers run, found as Python would find it, and never run.

The workers' interpreter is that of this process, so what is installed there is found here.
"""

from __future__ import annotations

import ast
import os
import stat
import sys
import warnings
from collections.abc import Mapping
from importlib.machinery import PathFinder

from hpclaunch.core.source import first_imports
from hpclaunch.core.source.interpreter_call import InterpreterCall
from hpclaunch.worker.site._hpclaunch_variables import is_read_at_load

from . import standard_input

MOST_BYTES = 1 << 20


class ReadOnceError(Exception):
    """The program is a pipe or the like: reading its text would take it away from the worker."""


def read(call: InterpreterCall) -> bytes | None:
    """Return the text of a program, None where there is no file of it. Raises ReadOnceError."""
    if call.kind == "c":
        return call.program.encode("utf-8", "surrogateescape")
    if call.kind == "m":
        file = _file_of(call.program)
    else:
        file = standard_input.PATH if call.program == "-" else call.program
    try:
        if stat.S_ISDIR(mode := os.stat(file).st_mode):
            file, mode = os.path.join(file, "__main__.py"), stat.S_IFREG
        if not stat.S_ISREG(mode):
            raise ReadOnceError
        with open(file, "rb") as f:
            text = f.read(MOST_BYTES)
    except OSError:
        return None
    return b"\n" + text.partition(b"\n")[2] if "x" in call.flags else text


def parse(text: bytes) -> ast.Module | None:
    """Return the syntax tree of a text; None if it is not one of Python, or too large."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python shows them when it runs the program
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def first_change(tree: ast.Module, environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return a variable that a script sets too late for the template, with its line."""
    python = sys.stdlib_module_names
    return first_imports.first_change(tree, python, is_read_at_load, environ)


def installed_imports(tree: ast.Module) -> tuple[tuple[str, str, str], ...]:
    """Return the unconditional imports of installed modules in a script, as steps: ("import",
    module, origin), with the origin "" for a submodule, or ("from", module, name).
    """
    steps = []
    for name, taken in first_imports.first_imports(tree):
        spec = PathFinder.find_spec(name.partition(".")[0], sys.path[1:])
        origin = "" if spec is None else spec.origin or ""
        if "-packages/" in origin:
            found = origin if "." not in name else ""
            steps.append(("from", name, taken) if taken else ("import", name, found))
    return tuple(steps)


def has_torch() -> bool:
    """Return whether torch is installed."""
    return PathFinder.find_spec("torch", sys.path[1:]) is not None


def _file_of(module: str) -> str:
    """Return the file of a module without importing its packages; "" if there is none."""
    path: list[str] | None = [os.getcwd(), *sys.path[1:]]
    spec = None
    for part in (*module.split("."), "__main__"):
        found = PathFinder.find_spec(part, path)
        if found is None:
            break
        spec, path = found, found.submodule_search_locations and [*found.submodule_search_locations]
        if path is None:
            break
    return "" if spec is None else spec.origin or ""
