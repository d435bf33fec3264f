"""The source files of the program that the workers run: found as Python would, read, never run.

The workers' interpreter is that of this process, so what is installed there is what is found here.
"""

from __future__ import annotations

import ast
import os
import re
import stat
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder

from hpclaunch.core.source.loading import TORCH, Module, Opaque, SourceReading
from hpclaunch.system.shared import standard_input

MOST_FILES = 100
MOST_BYTES = 1 << 20
RUN_PATH = "runpy.run_path(sys.argv[0]"  # in the code that runs a script by runpy
LIB = os.path.dirname(os.__file__)
STDLIB = (LIB, os.path.join(LIB, "lib-dynload"))
# torch itself, or a torchvision and the like that brings it, among what a distribution needs, be it
# for an extra only.
NEEDS_TORCH = re.compile(rb"^Requires-Dist: *torch(vision|audio|text)?(?![\w.-])", re.M | re.I)


@dataclass(frozen=True, slots=True)
class SourceSurvey:
    """What a command does with torch, as far as its source tells."""

    torch: bool  # it may import it
    # Why it cannot start in a process that has torch already: "train.py sets OMP_NUM_THREADS in
    # line 7, before it imports torch". "" when it can, and when it imports no torch.
    cold: str


@dataclass(slots=True)
class _Call:
    """What an interpreter is called with."""

    flags: set[str] = field(default_factory=set)
    extra: list[str] = field(default_factory=list)  # of -X
    kind: str = ""  # c: code, m: a module, path: a script by runpy; else a script
    program: str = "-"


def survey(command: Sequence[str], environ: Mapping[str, str]) -> SourceSurvey:
    """Of a command that begins with this process's interpreter, and its environment.

    What Python itself will refuse (no such file, a syntax error) imports no torch.
    """
    call = _parse(command[1:])
    if call.flags & {"h", "?", "V"}:
        return SourceSurvey(False, "")
    cold = _needs_own_imports(call, environ)
    if call.kind == "m" and call.program.partition(".")[0] in TORCH:
        return SourceSurvey(True, cold)
    files = _Files(call, environ)
    try:
        program, package = files.program(call)
    except Opaque as e:
        return SourceSurvey(True, cold or str(e))
    if program is None:
        return SourceSurvey(False, "")
    reading = SourceReading(files.find, environ)
    reading.run(program, package=package)
    torch = reading.torch or files.need_torch()
    return SourceSurvey(torch, (cold or reading.cold) if torch else "")


def _parse(words: Sequence[str]) -> _Call:
    """Like CPython's getopt: letters may be joined, and an argument may be attached."""
    call, left = _Call(), [*words]
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                left[:1] = []
            else:
                call.flags.add("h")
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter not in "cmWX":
                call.flags.add(letter)
                continue
            value = word[at:] or (left.pop(0) if left else "")
            if letter in "cm":
                call.kind, call.program = letter, value
                if letter == "c" and RUN_PATH in value and left:
                    call.kind, call.program = "path", left[0]
                return call
            if letter == "X":
                call.extra.append(value)
            break
    if left:
        call.program = left[0]
    return call


def _needs_own_imports(call: _Call, environ: Mapping[str, str]) -> str:
    """Why an interpreter with these options must do its imports itself; "" if it need not."""
    for letter in "EIS":
        if letter in call.flags:
            return f"the option -{letter} keeps hpclaunch out of the interpreter"
    if "v" in call.flags:
        return "the option -v is to show all imports"
    if any(option.partition("=")[0] == "importtime" for option in call.extra):
        return "the option -X importtime is to measure all imports"
    for name in ("PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME"):
        if environ.get(name):
            return f"{name} is to show all imports"
    return ""


class _Files:
    """Modules by name, as the program would find them; only its own are read."""

    def __init__(self, call: _Call, environ: Mapping[str, str]) -> None:
        self._directory = _directory(call)
        self._own = _own_package(call, self._directory)
        self._path = [self._directory]
        isolated = call.flags & {"E", "I"}
        if call.flags & {"P", "I"} or (environ.get("PYTHONSAFEPATH") and not isolated):
            self._path = []
        given = "" if isolated else environ.get("PYTHONPATH", "")
        self._path += [os.path.abspath(entry) for entry in given.split(os.pathsep) if given]
        self._path += sys.path[1:]  # the first is the directory of our own program
        self._found: dict[str, Module | None] = {}
        self._places: dict[str, list[str]] = {}  # of packages: where their modules are
        self._installed: dict[str, str] = {}  # modules of others -> the directory they were in
        self._files = self._bytes = 0

    def program(self, call: _Call) -> tuple[Module | None, str]:
        """What is run, and the package that is imported before. Raises Opaque."""
        script = call.program
        if call.kind == "c":
            return self._parsed("the code after -c", script), ""
        if call.kind == "m":
            return self._module_to_run(script)
        if self._directory == os.path.abspath(script):
            return self._read(_main_in(script)), ""
        file = script
        if script == "-":
            file, script = standard_input.PATH, "standard input"
        try:
            status = os.stat(file)
            if stat.S_ISDIR(status.st_mode):
                return None, ""
            if not stat.S_ISREG(status.st_mode):
                raise Opaque(f"{script} can be read only once")
            self._count(status.st_size)
            with open(file, "rb") as f:
                text = f.read()
        except OSError:
            return None, ""
        if "x" in call.flags:
            text = b"\n" + text.partition(b"\n")[2]
        return self._parsed(script, text), ""

    def _module_to_run(self, dotted: str) -> tuple[Module | None, str]:
        parts = dotted.split(".")
        packages = [".".join(parts[:end]) for end in range(1, len(parts))]
        for package in packages:
            self.find(package)
        module = self.find(dotted)
        if dotted not in self._places:
            return module, "".join(packages[-1:])
        return self.find(dotted + ".__main__"), dotted

    def find(self, dotted: str) -> Module | None:
        """None for a module that is installed, or not there at all. Raises Opaque."""
        if dotted not in self._found:
            self._found[dotted] = self._find(dotted)
        return self._found[dotted]

    def _find(self, dotted: str) -> Module | None:
        parent, _, name = dotted.rpartition(".")
        if parent and parent not in self._places:
            return None
        spec = _spec(name, self._places[parent] if parent else self._path)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
        if not parent and name != self._own:
            directory = os.path.dirname(places[0] if places else spec.origin or "")
            if directory in STDLIB:
                return None
            if directory != self._directory and (_in_site(directory) or _distributions(directory)):
                if self._own is not None:
                    self._installed[name] = directory
                    return None
                self._own = name
        if places:
            self._places[dotted] = places
        return self._read(spec, dotted if places else parent)

    def _read(self, spec: ModuleSpec | None, package: str = "") -> Module | None:
        """A module without source is empty: a compiled extension, a package without __init__."""
        file = "" if spec is None else spec.origin or ""
        if spec is None or not file or file.endswith(tuple(EXTENSION_SUFFIXES)):
            return Module(file, ast.Module([], []), package)
        shown = file.removeprefix(os.getcwd() + os.sep)
        if not file.endswith(".py"):
            raise Opaque(f"{shown} has no source to look into")
        try:
            text = spec.loader.get_data(file)  # type: ignore[union-attr]
        except OSError:
            return None
        self._count(len(text))
        return self._parsed(shown, text, package)

    def _count(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._files > MOST_FILES or self._bytes > MOST_BYTES:
            raise Opaque(
                f"it would take more than {MOST_FILES} files or {MOST_BYTES >> 20} MB to know what "
                "is set before torch is imported"
            )

    def _parsed(self, name: str, text: str | bytes, package: str = "") -> Module | None:
        """None for what does not parse."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns the user, when it runs it
                return Module(name, ast.parse(text), package)
        except (SyntaxError, ValueError):
            return None
        except (RecursionError, MemoryError) as e:
            raise Opaque(f"{name} is nested too deeply to look into") from e

    def need_torch(self) -> bool:
        """Whether an installed module that the program imports needs torch, or may need it."""
        return any(_needs_torch(*module) for module in self._installed.items())


def _directory(call: _Call) -> str:
    """What sys.path begins with: of a directory or an archive that is run, itself."""
    script = os.path.abspath(call.program)
    if call.kind in ("c", "m") or call.program == "-":
        return os.getcwd()
    if _main_in(script) is not None:
        return script
    return os.getcwd() if call.kind else os.path.dirname(os.path.realpath(script))


def _own_package(call: _Call, directory: str) -> str | None:
    """One that counts as the program's, though it is an installed one; "" for none.

    None for a script that an installer made: the first that it imports.
    """
    if call.kind == "m":
        return call.program.partition(".")[0]
    if directory == os.path.join(sys.prefix, "bin"):
        return None
    return re.split(r"/(?:site|dist)-packages/", f"{directory}/", maxsplit=1)[-1].partition("/")[0]


def _main_in(script: str) -> ModuleSpec | None:
    return PathFinder.find_spec("__main__", [os.path.abspath(script)])


def _spec(name: str, path: list[str]) -> ModuleSpec | None:
    """`name` is without its packages, which are not imported here."""
    spec = PathFinder.find_spec(name, path)
    for finder in sys.meta_path if spec is None else ():
        if "editable" in getattr(finder, "__module__", ""):  # of a project that pip put there
            spec = spec or finder.find_spec(name, None)
    return spec


def _in_site(directory: str) -> bool:
    """Whether the directory is one into which installers put packages."""
    return os.path.basename(directory) in ("site-packages", "dist-packages")


def _distributions(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if name.endswith(".dist-info")]
    except OSError:  # an archive
        return []


def _needs_torch(module: str, directory: str) -> bool:
    """According to what the module's distribution requires; True if that is not known."""
    there = _distributions(directory)
    name = module.lower()
    of_it = [info for info in there if info.partition("-")[0].lower() == name]
    of_it = of_it or [info for info in there if _brings(os.path.join(directory, info), module)]
    metadata = [_bytes(os.path.join(directory, info, "METADATA")) for info in of_it]
    heads = [re.split(rb"\r?\n\r?\n", text, maxsplit=1)[0] for text in metadata]
    return not heads or any(NEEDS_TORCH.search(head) for head in heads)


def _brings(info: str, module: str) -> bool:
    """Whether a distribution has a module of another name than its own."""
    modules = _bytes(os.path.join(info, "top_level.txt")).split()
    name = module.encode()
    if modules:
        return name in modules
    record = b"\n" + _bytes(os.path.join(info, "RECORD"))
    return b"\n" + name + b"/" in record or b"\n" + name + b"." in record


def _bytes(file: str) -> bytes:
    try:
        with open(file, "rb") as f:
            return f.read()
    except OSError:
        return b""
