"""The facts that an agent has recorded: `facts.jsonl` of the first agent, and
`facts-agent-LABEL.jsonl` of the others.

One JSON object per line; lines are only ever appended:

    {"time", "format", "version", "launch", "host"}    an agent's run begins
    {"time", "fact": NAME, ...}                        a fact, with its fields
    {"time", "lost"}                                   so many lines before this are missing

`time` is that of the wall clock, in seconds.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from hpclaunch import __version__
from hpclaunch.core.protocol import facts
from hpclaunch.core.protocol.values import value
from hpclaunch.worker import private_files

from ..shared import bounded_json, packing
from .appended_lines import AppendedLines, name_of
from .log_client import LogServiceClient

FORMAT = 1
NAMES = re.compile(r"facts(-agent-[\w.-]+)?\.jsonl")
KINDS: dict[str, type[facts.Fact]] = {kind.__name__: kind for kind in get_args(facts.Fact)}


class FactFile:
    """The file of one agent. Without a directory there is none."""

    def __init__(self, directory: Path | None, label: str, launch: str, host: str) -> None:
        self._title: dict[str, Any] | None = {
            "format": FORMAT,
            "version": __version__,
            "launch": launch,
            "host": host,
        }
        self._lines: AppendedLines | None = None
        if directory is not None:
            self._lines = AppendedLines(directory, name_of("facts", label), self._note_gap)

    def record(self, fact: facts.Fact) -> None:
        """Have a fact written that was recorded just now."""
        if self._title is not None:
            title, self._title = self._title, None
            self._line(title)
        self._line({"fact": type(fact).__name__, **msgspec.to_builtins(fact)})

    def flush(self, service: LogServiceClient) -> None:
        """Give the log service what it takes without a wait. Call this at the end of each turn."""
        if self._lines is not None:
            self._lines.flush(service)

    def finish(self, service: LogServiceClient) -> None:
        """Give the log service the rest, however much that is. Close the service after this."""
        if self._lines is not None:
            self._lines.finish(service)

    def _note_gap(self, lost: int) -> None:
        self._line({"lost": lost})

    def _line(self, value: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.add(packing.to_json({"time": round(time.time(), 3), **value}) + b"\n")


@value(frozen=True)
class RecordedFact:
    time: float  # seconds since the epoch
    launch: str
    host: str  # of the agent that has recorded it
    fact: facts.Fact


def read(directory: Path) -> list[RecordedFact]:
    """Return the facts of all agents and launches in this directory, in the order of time. Lines
    that are cut off, or of another version, are left out. Raises OSError for the directory itself.
    """
    found: list[RecordedFact] = []
    for name in sorted(filter(NAMES.fullmatch, os.listdir(directory))):
        try:
            lines = private_files.read_file(directory / name).splitlines()
        except OSError:
            continue
        found += _facts(lines)
    return sorted(found, key=lambda recorded: recorded.time)


def _facts(lines: list[bytes]) -> Iterator[RecordedFact]:
    title: dict[str, Any] = {}
    for line in lines:
        try:
            value = bounded_json.loads(line.decode())
            if not isinstance(value, dict):
                continue
            if "format" in value:
                title = value
            elif title.get("format") == FORMAT and "fact" in value:
                fact = msgspec.convert(value, type=KINDS[value["fact"]])
                origin = (value["time"], title["launch"], title["host"])
                yield RecordedFact(*msgspec.convert(origin, tuple[float, str, str]), fact)
        except (ValueError, TypeError, KeyError):
            continue
