"""What a script has imported the last time that it was launched, in the user's cache directory.

    ~/.cache/hpclaunch/lessons/<key>.json     {"version": 1, "steps": [...], "avoided": [...]}

A worker tells it (`worker/site/_hpclaunch_lesson.py`), and the template that has imported it
without harm writes the file (`_hpclaunch_renewal.py`). The key stands for the script's text, its
arguments but for numbers in them, the interpreter and its torch: another text or another option may
mean other imports. A file that is damaged, or somebody else's, counts as none.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from hpclaunch.core.source import interpreter_call
from hpclaunch.core.source.first_imports import first_imports
from hpclaunch.system.shared import bounded_json, program_text
from hpclaunch.worker import private_files

VERSION = 1
KINDS = ("import", "from", "set", "seed")  # of steps
MOST_BYTES = 1 << 20
KEPT = 200  # files, each for a script and its arguments
NUMBER = re.compile(r"(?<![^=,:])[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?(?![^,:])", re.I)
DIGITS = re.compile(r"\d+")  # of a date, or the number of a job


@dataclass(frozen=True, slots=True)
class Lesson:
    """`steps` as `_hpclaunch_lesson.py` has them, and ["from", module, name], which a text shows: a
    package may import the name's module only then. `avoided` are modules to do without.
    """

    steps: list[list[Any]] = field(default_factory=list)
    avoided: list[str] = field(default_factory=list)


NO_LESSON = Lesson()


def directory(environ: Mapping[str, str]) -> Path | None:
    """None where the user has no home."""
    cache = environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(cache):
        home = environ.get("HOME") or ""
        if not os.path.isabs(home):
            return None
        cache = os.path.join(home, ".cache")
    return Path(cache, "hpclaunch", "lessons")


def of_command(command: Sequence[str], environ: Mapping[str, str]) -> tuple[Lesson, Path | None]:
    """The lesson for a command that begins with this process's interpreter, and where the one for
    its next launch belongs. For a script that was never launched, what its text shows.
    """
    try:
        text = program_text.read(interpreter_call.parse(command[1:]))
    except program_text.ReadOnceError:
        text = None
    if text is None:
        return NO_LESSON, None
    above = directory(environ)
    if above is None:
        return _from_text(text), None
    path = above / f"{_key(command, text)}.json"
    found = _load(path)
    _prune(above)
    return (_from_text(text) if found is None else found), path


def _key(command: Sequence[str], text: bytes) -> str:
    script = interpreter_call.parse(command[1:]).program  # a copy elsewhere is the same script
    words = [DIGITS.sub("", NUMBER.sub("", word)) for word in command[2:] if word != script]
    spec = PathFinder.find_spec("torch", sys.path[1:])
    version = ""
    if spec is not None and spec.origin:
        try:
            found = os.stat(Path(spec.origin).with_name("version.py"))
            version = f"{spec.origin} {found.st_mtime_ns} {found.st_size}"
        except OSError:
            version = spec.origin
    said = json.dumps([VERSION, os.path.realpath(command[0]), sys.version, version, *words])
    # Enough to tell a user's scripts apart. hashlib would load OpenSSL, a megabyte for every agent.
    data = said.encode() + b"\n" + text
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}{len(data):x}"


def _load(path: Path) -> Lesson | None:
    try:
        found = bounded_json.loads(private_files.read_file(path, MOST_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        return None
    steps, avoided = found.get("steps"), found.get("avoided")
    if not isinstance(steps, list) or not isinstance(avoided, list):
        return None
    if not all(map(_is_step, steps)) or not all(isinstance(name, str) for name in avoided):
        return None
    return Lesson(steps, avoided)


def _is_step(step: object) -> bool:
    if not isinstance(step, list) or len(step) != 3 or step[0] not in KINDS:
        return False
    is_value = isinstance(step[2], str) or (step[0] in ("set", "seed") and step[2] is None)
    return isinstance(step[1], str) and is_value and "\0" not in step[1] + (step[2] or "")


def _prune(above: Path) -> None:
    """Keep those that were written last."""
    try:
        names = os.listdir(above)
        if len(names) <= KEPT:
            return
        files = sorted((os.lstat(above / name).st_mtime, name) for name in names)
        for _, name in files[: len(files) - KEPT]:
            os.unlink(above / name)
    except OSError:
        pass  # another launch does the same


def _from_text(text: bytes) -> Lesson:
    """Installed modules only, as this interpreter finds them."""
    tree = program_text.parse(text)
    if tree is None:
        return NO_LESSON
    steps = []
    for name, taken in first_imports(tree):
        spec = PathFinder.find_spec(name.partition(".")[0], sys.path[1:])
        origin = "" if spec is None else spec.origin or ""
        if "-packages/" in origin:
            found = origin if "." not in name else ""
            steps.append(["from", name, taken] if taken else ["import", name, found])
    return Lesson(steps)
