"""The index of the workers' output: when the bytes of their files were written.

Workers write to their files themselves, without times. The log service records when these files
grew: one index for each agent and round, `index-agent-AGENT.txt`. Its lines are in order of time
(seconds since the epoch, on the clock of the agent's node):

    1764025034.123 begin {"format": 2, "launch": "71.0", "host": "n1"}
    1764025034.520 0.000 rank-3.out 4711 520
    1764025099.004 0.000 rank-3.out 0 0

The second line says that 520 bytes from byte 4711 on were written at this time, or up to 0.000
seconds before. The third line says that the file was emptied.

Some lines may be missing, torn, or repeated. Bytes that no index mentions have no time.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from hpclaunch.system.shared import bounded_json

FORMAT = 2
PERIOD = 1.0  # seconds between two writes, and in the long run between two lines of one file
LATEST = 1e11  # seconds since the epoch
EMPTIED = b" 0 0"  # ends a line which says that a file was emptied
LARGEST = 1 << 60  # bytes; longer than any file
JOINED = 0.1  # seconds: a growth so soon after the last one is joined with it


class FileGrowth(NamedTuple):
    """A file grew by `length` bytes from `begin` on, between `since` and `until`. If `begin` and
    `length` are 0, it was emptied.
    """

    since: float
    until: float
    name: str
    begin: int
    length: int

    @property
    def time(self) -> float:
        return self.until


class IndexBegun(NamedTuple):
    """A log service has begun to follow the files of a round."""

    time: float
    launch: str
    host: str


IndexLine = FileGrowth | IndexBegun


def parse(line: bytes) -> IndexLine | None:
    """Return what a line says; None if it is torn, impossible, or of another version."""
    words = line.decode(errors="replace").split(" ", 2)
    try:
        at, word, rest = float(words[0]), words[1], words[2]
        if not 0 <= at < LATEST:
            return None
        if word == "begin":
            fields = bounded_json.loads(rest)
            if fields["format"] != FORMAT:
                return None
            return IndexBegun(at, str(fields["launch"]), str(fields["host"]))
        name, *numbers = rest.split()
        begin, length = map(_number, numbers)
        since = at - float(word)
        is_sound = 0 <= since <= at and (length > 0 or begin == 0)
        return FileGrowth(since, at, name, begin, length) if is_sound else None
    except (ValueError, IndexError, KeyError, TypeError):
        return None


def _number(word: str) -> int:
    """Return a number of bytes. Raises ValueError."""
    number = int(word)
    if not 0 <= number < LARGEST:
        raise ValueError(number)
    return number


def written(line: IndexLine) -> str:
    """Return a line for `parse`, with its end."""
    match line:
        case FileGrowth(since, until, name, begin, length):
            return f"{until:.3f} {until - since:.3f} {name} {begin} {length}\n"
        case IndexBegun(time, launch, host):
            fields = {"format": FORMAT, "launch": launch, "host": host}
            return f"{time:.3f} begin {json.dumps(fields)}\n"
