"""The histories: `history-AGENT-TIME.jsonl` in the log directory, one of each agent.

The first line says whose it is, and each other one is a moment. Lines are only ever appended; the
last one may be cut off.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpclaunch import __version__
from hpclaunch.core.history.moment import AgentHistory, AgentMoment
from hpclaunch.worker import private_files

from ..shared import packing

FORMAT = 1
FILES = re.compile(r"history-[\w.-]+\.jsonl")


@dataclass(frozen=True, slots=True)
class HistoryTitle:
    """The first line of a file."""

    format: int
    version: str  # of hpclaunch
    launch: str  # the same for all agents of a launch
    index: int
    host: str


def name(label: str, began: float) -> str:
    """Of the file of an agent that began at this time."""
    return f"history-{label}-{time.strftime('%Y%m%dT%H%M%S', time.localtime(began))}.jsonl"


def title(launch: str, index: int, host: str) -> str:
    return _line(HistoryTitle(FORMAT, __version__, launch, index, host))


def line(moment: AgentMoment) -> str:
    return _line(moment)


def _line(value: object) -> str:
    return packing.pack(value).decode() + "\n"


def read(directory: Path) -> list[AgentHistory]:
    """All that can be read of those in this directory. Raises OSError for the directory itself."""
    found = []
    for entry in sorted(os.listdir(directory)):
        if FILES.fullmatch(entry):
            try:
                with open(directory / entry, "rb", opener=private_files.open_file) as f:
                    history = _history(f.read().splitlines())
            except OSError:
                continue
            found += [] if history is None else [history]
    return found


def _history(lines: list[bytes]) -> AgentHistory | None:
    """None for a file of another version, or without a title."""
    moments = []
    try:
        first = packing.unpack(lines[0], HistoryTitle)
    except (IndexError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if first.format != FORMAT:
        return None
    for each in lines[1:]:
        try:
            moments.append(packing.unpack(each, AgentMoment))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # cut off: by a full disk, or a node that was lost
    moments.sort(key=lambda moment: moment.at)
    return AgentHistory(first.launch, first.index, first.host, tuple(moments))
