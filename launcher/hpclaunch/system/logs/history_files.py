"""The histories: `history-AGENT-TIME.jsonl` in the log directory, one for each start of an agent.

The first line names the agent, and each other line is a moment. Lines are only ever appended; the
last one may be cut off. After lost lines, which may have the first among them, it is repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from hpclaunch import __version__
from hpclaunch.core.member.moments import AgentHistory, AgentMoment, is_sound
from hpclaunch.core.protocol.values import value
from hpclaunch.worker import private_files

from ..shared import packing
from .log_directory import HISTORIES, matching

FORMAT = 2
T = TypeVar("T")


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
    first = next(_lines_of(HistoryTitle, lines), None)
    if first is None or first.format != FORMAT:
        return None
    moments = [moment for moment in _lines_of(AgentMoment, lines) if is_sound(moment)]
    moments.sort(key=lambda moment: moment.at)
    return AgentHistory(first.launch, first.index, first.host, tuple(moments))


def _lines_of(kind: type[T], lines: Iterable[bytes]) -> Iterator[T]:
    """Yield the values of this kind. A line may be cut off, by a full disk or a lost node."""
    for each in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            yield packing.unpack(each, kind)
