"""The facts that an agent has recorded: `facts.jsonl` of the first agent, and
`facts-agent-LABEL.jsonl` of the others.

One JSON object per line; lines are only ever appended:

    {"time", "format", "version", "launch", "host", "incarnation"}    an agent's run begins, or
                                                                      continues after lost lines
    {"time", "fact": NAME, ...}                                       a fact, with its fields
    {"time", "lost"}                              so many lines before this are missing

`time` is in seconds since the epoch.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from hpclaunch import __version__
from hpclaunch.core.protocol import facts
from hpclaunch.core.protocol.values import field, replace, value
from hpclaunch.worker import private_files

from ..shared import bounded_json, packing
from .appended_lines import AppendedLines, name_of
from .log_directory import matching

FORMAT = 3
MOST = 4 << 20  # bytes of lines that are read for an agent
NAMES = re.compile(r"facts(-agent-[\w.-]+)?\.jsonl")
KINDS: dict[str, type[facts.Fact]] = {kind.__name__: kind for kind in get_args(facts.Fact)}


class FactFile:
    """The facts file of one agent. Without a directory, facts are dropped."""

    def __init__(
        self, directory: Path | None, label: str, launch: str, host: str, incarnation: str
    ) -> None:
        self._title: dict[str, Any] = {
            "format": FORMAT,
            "version": __version__,
            "launch": launch,
            "host": host,
            "incarnation": incarnation,
        }
        self._is_titled = False
        self.lines = AppendedLines(directory, name_of("facts", label), self._note_gap)

    def record(self, fact: facts.Fact, at: float) -> None:
        """Write a fact that was recorded at this time, in seconds since the epoch."""
        if not self._is_titled:
            self._write_title()
        self._line({"fact": type(fact).__name__, **msgspec.to_builtins(fact)}, at)

    def _write_title(self) -> None:
        self._is_titled = True
        self._line(self._title)

    def _note_gap(self, lost: int) -> None:
        self._write_title()  # the first one may be lost
        self._line({"lost": lost})

    def _line(self, value: dict[str, Any], at: float | None = None) -> None:
        at = round(time.time(), 3) if at is None else at
        self.lines.add(packing.to_json({"time": at, **value}) + b"\n")


@value(frozen=True)
class AgentFacts:
    """The facts that one start of an agent has recorded, with times in seconds since the epoch."""

    launch: str
    host: str
    incarnation: str  # of the agent
    facts: list[tuple[float, facts.Fact]] = field(default_factory=list)


def in_directory(directory: Path) -> list[Path]:
    """Return the files with facts, in the order of their names. Raises OSError."""
    return matching(directory, NAMES)


def read(directory: Path) -> tuple[list[AgentFacts], list[str]]:
    """Return the facts of all agents and launches in this directory, and the names of files that
    are damaged or of another version. Lines that are cut off or of another version are left out.
    Raises OSError for the directory itself.
    """
    found: list[AgentFacts] = []
    unknown = []
    for path in in_directory(directory):
        try:
            runs = _runs(private_files.read_file(path).splitlines())
        except OSError:
            runs = []
        found += runs
        unknown += [] if runs else [path.name]
    return found, unknown


def _runs(lines: list[bytes]) -> list[AgentFacts]:
    found: list[AgentFacts] = []
    run: AgentFacts | None = None  # None: of another version
    for line in lines:
        try:
            value = bounded_json.loads(line.decode())
            if not isinstance(value, dict):
                continue
            if "format" in value:
                before, run = run, None
                if value["format"] == FORMAT:
                    names = (value["launch"], value["host"], value["incarnation"])
                    run = AgentFacts(*msgspec.convert(names, tuple[str, str, str]))
                    if before is not None and replace(before, facts=[]) == run:
                        run = before  # it continues after lost lines
                    else:
                        found.append(run)
            elif run is not None and "fact" in value:
                at = msgspec.convert(value["time"], float)
                run.facts.append((at, msgspec.convert(value, type=KINDS[value["fact"]])))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def lines_of(directory: Path, launch: str, kinds: Collection[str]) -> str:
    """Return the lines with facts of these kinds, and the titles above them, of all agents of a
    launch. Files that cannot be read are left out. Raises OSError for the directory itself, or if
    the lines are too many.
    """
    found: list[bytes] = []
    for path in in_directory(directory):
        try:
            lines = private_files.read_file(path).splitlines()
        except OSError:
            continue
        found += _without_repeats(_chosen(lines, launch, kinds))
    if sum(map(len, found)) + len(found) > MOST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), directory)
    return b"\n".join(found).decode()


def _chosen(
    lines: Iterable[bytes], launch: str, kinds: Collection[str]
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    is_ours = False
    for line in lines:
        try:
            value = bounded_json.loads(line.decode())
        except ValueError:
            continue
        if not isinstance(value, dict):
            continue
        if "format" in value:
            is_ours = value.get("launch") == launch
        if is_ours and (value.get("fact") in kinds or "format" in value):
            yield line, value


def _without_repeats(lines: Iterable[tuple[bytes, dict[str, Any]]]) -> list[bytes]:
    """Leave out each SeatUse between two equal ones: it changes no ledger, and a job of two weeks
    records 4 MB of them.
    """
    found: list[bytes] = []
    before, repeats = None, 0
    for line, fields in lines:
        is_use = fields.get("fact") == "SeatUse"
        use = {**fields, "time": 0, "last": fields.get("last") is not None} if is_use else None
        repeats = repeats + 1 if is_use and use == before else 0
        if repeats > 1:
            found.pop()
        found.append(line)
        before = use
    return found


def of_lines(text: str) -> list[AgentFacts]:
    """Return the facts in the text that `lines_of` returns."""
    return _runs(text.encode().splitlines())
