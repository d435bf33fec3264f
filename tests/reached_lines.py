"""Find the lines of launcher/ that tests reach, in any process: `make coverage`.

    python tests/reached_lines.py PROGRAM WORDS...

runs a program such as pytest, prints a table of packages, and writes the lines never reached.

Most lines run in child processes of the tests: in helpers (`python -I -S`, which ignores variables
and .pth files), in the template (which does not work if it is traced) and its workers, and on nodes
of a Slurm cluster; many of these processes are killed. Therefore nothing is traced. Instead, the
compiled files (`__pycache__`) of launcher/ are replaced while the program runs: before each
statement, another one marks its line in a file that each process maps into its memory. Every
process that imports launcher/ uses them, and no mark is lost when a process is killed. coverage.py
knows which lines are statements, and writes the report.

An `except` or a `case` counts as reached if it has matched. Code that does not come from a compiled
file is not counted: a file that Python runs as a script (`worker/measurement.py`), a copy of
launcher/ without `__pycache__`, another version of Python, `python -O`.

With the marks, some tests fail: those that list what importing hpclaunch imports (ctypes is added),
and one in which torch.compile must find a single graph.

Run one such program at a time. If it is killed, run it again, or remove the `__pycache__`
directories of launcher/.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import marshal
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parents[1]
LAUNCHER = HERE / "launcher"
RESULTS = HERE / "build" / "coverage"
NAME = "__reached__"  # the name of the marks in each module

# The code at the start of each module. Python's mmap would keep a descriptor open. A process that
# cannot map the file, such as one with too many open descriptors, loses its marks.
PROLOGUE = """
def __reached__(path, size):
    import sys
    if not hasattr(sys, "_reached"):
        sys._reached = bytearray(size)
        try:
            import ctypes, os
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            mmap = ctypes.CDLL(None).mmap
            mmap.restype = address = ctypes.c_void_p
            mmap.argtypes = address, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
            place = mmap(None, size, 3, 1, fd, 0)  # readable and writable, shared
            os.close(fd)
            if place != address(-1).value:
                sys._reached = (ctypes.c_ubyte * size).from_address(place)
        except (ImportError, OSError):
            pass
    return sys._reached
__reached__ = __reached__({path!r}, {size})
"""


def marked(source: str, first: int, prologue: str) -> ast.Module:
    """Return a module whose line `n` marks `first + n` when it is reached."""
    tree = ast.parse(source)
    start = len([*itertools.takewhile(_stays_first, tree.body)])
    for node in [*ast.walk(tree)]:
        lines = []
        if isinstance(node, ast.ExceptHandler):
            lines = [node.lineno]
        elif isinstance(node, ast.match_case):
            lines = [node.pattern.lineno]
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                setattr(node, field, [*_with_marks(statements, lines, first)])
    tree.body[start:start] = ast.parse(prologue).body
    return tree


def _with_marks(
    statements: Sequence[ast.stmt], lines: Sequence[int], first: int
) -> Iterator[ast.stmt]:
    """Yield the statements with marks for them, and marks for `lines` as early as possible."""
    head = [*itertools.takewhile(_stays_first, statements)]
    yield from head
    for line in (*lines, *(statement.lineno for statement in head)):
        yield _mark(line, first)
    for statement in statements[len(head) :]:
        for line in _lines(statement):
            yield _mark(line, first)
        yield statement


def _stays_first(statement: ast.stmt) -> bool:
    """Return whether the statement is a docstring or an import of __future__."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _lines(statement: ast.stmt) -> Iterator[int]:
    yield from (decorator.lineno for decorator in getattr(statement, "decorator_list", ()))
    yield statement.lineno


def _mark(line: int, first: int) -> ast.stmt:
    [statement] = ast.parse(f"{NAME}[{first + line}] = 1").body
    return ast.increment_lineno(statement, line - 1)  # for tracebacks


@contextmanager
def marks(root: Path, hits: Path) -> Iterator[Mapping[Path, int]]:
    """Let all processes that import files below `root` mark their lines in the file `hits`.

    Yield the position of each file's line 0 in it.
    """
    places, size = {}, 0
    for path in sorted(root.rglob("*.py")):
        places[path] = size
        size += 1 + len(path.read_text().splitlines())
    hits.parent.mkdir(parents=True, exist_ok=True)
    hits.unlink(missing_ok=True)  # an old process may have mapped it
    hits.write_bytes(bytes(size))
    hits.chmod(0o666)  # some tests start programs of other users
    prologue = PROLOGUE.replace("{path!r}", repr(str(hits))).replace("{size}", str(size))
    compiled = {path: Path(importlib.util.cache_from_source(str(path))) for path in places}
    try:
        for path, cache in compiled.items():
            code = compile(marked(path.read_text(), places[path], prologue), path, "exec")
            found = path.stat()
            header = struct.pack("<III", 0, int(found.st_mtime), found.st_size)
            cache.parent.mkdir(exist_ok=True)
            new = cache.with_suffix(".new")
            new.write_bytes(importlib.util.MAGIC_NUMBER + header + marshal.dumps(code))
            new.replace(cache)  # a process may be reading the old one
        yield places
    finally:
        for cache in compiled.values():
            cache.unlink(missing_ok=True)


def reached(hits: Path, places: Mapping[Path, int]) -> dict[str, list[int]]:
    """Return the lines of each file that were reached."""
    data = hits.read_bytes()
    ends = [*places.values(), len(data)][1:]
    return {
        str(path): [line for line, hit in enumerate(data[first:end]) if hit]
        for (path, first), end in zip(places.items(), ends, strict=True)
    }


def report(lines: Mapping[str, list[int]]) -> None:
    """Print a table of packages, and write the lines never reached."""
    from coverage import Coverage  # only here: `pip install '.[coverage]'`

    data_file = RESULTS / "data"
    data_file.unlink(missing_ok=True)
    coverage = Coverage(data_file=data_file, config_file=False)
    data = coverage.get_data()
    data.add_lines(lines)
    data.touch_files(lines)
    packages: dict[str, tuple[int, int]] = {}
    for path in lines:
        _, statements, _, missing, _ = coverage.analysis2(path)
        package = str(Path(path).parent.relative_to(LAUNCHER))
        for name in (package, "total"):
            all_of_it, never = packages.get(name, (0, 0))
            packages[name] = all_of_it + len(statements), never + len(missing)
    total = packages.pop("total")
    print(f"{'package':<34}{'lines':>7}{'never':>7}{'reached':>9}")
    for name, (all_of_it, never) in [*sorted(packages.items()), ("total", total)]:
        print(f"{name:<34}{all_of_it:>7}{never:>7}{1 - never / max(1, all_of_it):>9.1%}")
    file = RESULTS / "never_reached.txt"
    with file.open("w") as f:
        coverage.report(file=f, skip_covered=True, show_missing=True)
    print(f"lines that were never reached: {os.path.relpath(file)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a program, such as pytest")
    command = parser.parse_args().command
    hits = RESULTS / "hits"
    with marks(LAUNCHER, hits) as places:
        subprocess.run(command, check=False)  # a failed test does not matter here
    report(reached(hits, places))


if __name__ == "__main__":
    main()
