"""The histories: `history-AGENT-TIME.jsonl` in the log directory, one for each start of an agent.

The first line names the agent, and each other line is a moment. Lines are only ever appended; the
last one may be cut off.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpclaunch import __version__
from hpclaunch.core.member.moments import AgentHistory, AgentMoment, is_sound
from hpclaunch.core.protocol.values import value
from hpclaunch.worker import private_files

from ..shared import packing
from .log_directory import HISTORIES, matching

FORMAT = 2


@value(frozen=True)
class HistoryTitle:
    """The first line of a file."""

    format: int
    version: str  # of hpclaunch
    launch: str  # the same for all agents of a launch
    index: int
    host: str


def title(launch: str, index: int, host: str) -> str:
    return line(HistoryTitle(FORMAT, __version__, launch, index, host))


def line(moment: AgentMoment | HistoryTitle) -> str:
    return packing.pack(moment).decode() + "\n"


def read(directory: Path) -> list[AgentHistory]:
    """Return the readable histories in this directory. Raises OSError for the directory itself."""
    found = []
    for path in matching(directory, HISTORIES):
        try:
            history = _history(private_files.read_file(path).splitlines())
        except OSError:
            continue
        found += [] if history is None else [history]
    return found


def _history(lines: list[bytes]) -> AgentHistory | None:
    """Return the history in a file; None if it is of another version, or without a title."""
    moments = []
    try:
        first = packing.unpack(lines[0], HistoryTitle)
    except (IndexError, msgspec.MsgspecError):
        return None
    if first.format != FORMAT:
        return None
    for each in lines[1:]:
        try:
            moments.append(packing.unpack(each, AgentMoment))
        except msgspec.MsgspecError:
            continue  # cut off: by a full disk, or a node that was lost
    moments = [moment for moment in moments if is_sound(moment)]
    moments.sort(key=lambda moment: moment.at)
    return AgentHistory(first.launch, first.index, first.host, tuple(moments))
