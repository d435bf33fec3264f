"""Show what happened in a job, from the journals of its agents.

    hpclaunch replay hpclaunch-logs/71.0   all agents of a job, merged by time
    hpclaunch replay DIR/journal.jsonl     one of them

A journal has the events that an agent has handled, its decisions, and their
times. The exit code is 2 if a file is not a journal, otherwise 0.
"""

from __future__ import annotations

import argparse
import datetime
import errno
import heapq
import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hpclaunch.core.member.moments import LATEST
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import EXIT_USAGE
from hpclaunch.core.protocol.wording import count, for_console

from . import say, write_bytes
from .parser import Parser

LENGTH = 72  # greatest length of a value without --verbose
INDENT = " " * 14
JOURNALS = re.compile(r"journal.*\.jsonl")
PLACE = ("stage", "phase", "round")  # the parts of a position
# Exceptions that a damaged or forged journal may cause.
DAMAGED = (
    *(ValueError, KeyError, TypeError, IndexError, AttributeError),
    *(OverflowError, RecursionError, MemoryError),
)

Line = tuple[float, str]  # the time, and the text


class JournalError(Exception):
    """A file is not a journal of this version of hpclaunch. The message says why."""


def prepare_parser(parser: Parser) -> None:
    parser.add_argument(
        "journal", type=Path, metavar="DIR|FILE", help="the log directory of a job, or one journal"
    )
    parser.add_argument("--verbose", action="store_true", help="show messages in full")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    from hpclaunch.system.shared import open_file_limit

    files = _files(options.journal)
    open_file_limit.raise_to(len(files))  # all are read at the same time
    names: dict[str, int] = {}
    agents = [_Agent(path, names, verbose=options.verbose) for path in files]
    lines = heapq.merge(*(agent.lines() for agent in agents), key=lambda line: line[0])
    write_bytes(for_console(f"{text}\n") for _, text in lines)
    wrong = [f"{agent.path}: {agent.wrong}" for agent in agents if agent.wrong]
    if len(agents) == 1 and wrong:
        raise UsageError(wrong[0])
    for text in wrong:
        say(f"error: {text}")
    return EXIT_USAGE if wrong else 0


def _files(where: Path) -> list[Path]:
    from hpclaunch.system.logs.log_directory import matching

    try:
        if not where.is_dir():
            open(where, "rb", opener=_regular).close()
            return [where]
        files = matching(where, JOURNALS)
    except OSError as e:
        raise UsageError(f"cannot read {where}: {e.strerror}") from e
    if not files:
        raise UsageError(
            f"no journal in {where}: name the directory of one job, which is "
            "hpclaunch-logs/<job>.<step> or its --log-dir"
        )
    return files


def _regular(path: str, flags: int) -> int:
    """Open a regular file of any owner; an opener for `open`."""
    # Without O_NONBLOCK, opening a named pipe would block.
    fd = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


class _Agent:
    """The journal of one agent, as lines of text."""

    def __init__(self, path: Path, names: dict[str, int], *, verbose: bool) -> None:
        self.path, self.verbose = path, verbose
        self._names = names  # the index of an agent, by host
        self.wrong = ""  # why the journal cannot be shown
        self._host = path.name
        self._time = 0.0
        self._events = 0
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}  # the last messages, from and to
        self._position: dict[str, Any] = {}
        self._has_ended = False

    def lines(self) -> Iterator[Line]:
        from hpclaunch.system.shared.bounded_json import MOST

        began = None
        try:
            with open(self.path, "rb", opener=_regular) as file:
                # The file may be no journal: limit the length of a line.
                for number, line in enumerate(iter(partial(file.readline, MOST), b""), start=1):
                    for text in self._read(number, line):
                        began = self._time if began is None else began
                        yield self._time, text
            if began is None:
                raise JournalError("it is empty")
        except JournalError as e:
            self.wrong = str(e)
        except OSError as e:
            self.wrong = e.strerror or str(e)
        except DAMAGED as e:
            self.wrong = f"its content makes no sense: {type(e).__name__}: {e}"
        if began is not None and not self.wrong:
            yield self._time, self._end(self._time - began)

    def _read(self, number: int, line: bytes) -> Iterator[str]:
        """Yield a line of the journal as text. Raises JournalError, or one of DAMAGED."""
        entry = _parsed(line)
        if entry is None and number == 1:
            raise JournalError("this is not a journal of hpclaunch")
        if entry is None:  # the node went down, or this is a copy of a file in use
            yield self._at(f"the journal is cut off in line {number}")
            return
        self._time = max(self._time, _seconds(entry["time"]))
        if number == 1 and entry.get("note") != "core":
            raise JournalError("its first line does not describe the agent")
        if "effect" in entry:
            self._has_ended = entry["effect"] == "Exit"
            yield f"{INDENT}  -> {self._words(entry, 'to', 'to')}"
        elif "event" in entry:
            self._events += 1
            yield self._at(self._words(entry, "from", "sender"))
        elif entry["note"] == "core":
            yield self._begun(entry["with"])
        elif entry["note"] == "position":
            before, self._position = self._position, {name: entry["with"][name] for name in PLACE}
            if before:
                yield f"{INDENT}  =  {_changes(before, self._position)}"
        elif entry["note"] == "late":
            yield self._at(f"... this agent was held up for {entry['with']['seconds']:.1f} s")
        elif entry["note"] == "gap":
            yield self._at(f"... {count(entry['with']['lines'], 'line')} of the journal are lost")
        else:
            yield self._at(f"({entry['note']}: {self._short(entry['with'])})")

    def _begun(self, core: Mapping[str, Any]) -> str:
        from hpclaunch.system.logs.journal import FORMAT

        if core["format"] != FORMAT:
            raise JournalError(
                f"a journal of format {core['format']}, and this version of hpclaunch reads "
                f"{FORMAT}: show it with hpclaunch {core['version']}"
            )
        self._position, self._has_ended = {}, False
        index, places = core["made"]["index"], core["made"]["job"]["places"]
        self._host = host = places[index]["host"]
        alone = [place["host"] for place in places].count(host) == 1
        if not alone or self._names.setdefault(host, index) != index:
            self._host = f"{host}[{index}]"
        day = datetime.datetime.fromtimestamp(self._time).astimezone()
        return self._at(
            f"begins, {day:%Y-%m-%d %H:%M:%S %Z}: agent {index} of {len(places)}, "
            f"hpclaunch {core['version']}"
        )

    def _end(self, lasted: float) -> str:
        summary = f"{count(self._events, 'event')} in {_length(lasted)}"
        if self._has_ended:
            return self._at(summary)
        where = f": {_where(self._position)}" if self._position else ""
        return self._at(f"{summary}; the journal ends here, without the end of the job{where}")

    def _at(self, text: str) -> str:
        moment = datetime.datetime.fromtimestamp(self._time)
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03}  {self._host}  {text}"

    # Words

    def _words(self, entry: Mapping[str, Any], way: str, peer: str) -> str:
        """Return an event or effect as text; of a message, only what differs from the last one."""
        name = entry.get("event") or entry.get("effect")
        body = dict(entry["with"])
        if "of" not in entry:
            return f"{name} {self._fields(body)}".rstrip()
        if "fact" in body:
            return f"{name} {entry['of']} {self._fields(body['fact'])}".rstrip()
        other, message = body.pop(peer), body.pop("message")
        key = (f"{way} {entry['of']}", str(other))
        last, self._seen[key] = self._seen.get(key), message
        if last is None or self.verbose:
            fields = self._fields(message)
        else:
            changed = {k: v for k, v in message.items() if k not in last or last[k] != v}
            fields = self._fields(changed, empty=True)
        return f"{name} {way} {other}: {entry['of']} {fields}".rstrip()

    def _fields(self, body: Mapping[str, Any], *, empty: bool = False) -> str:
        empty = empty or self.verbose
        shown = {k: v for k, v in body.items() if empty or v or type(v) in (int, float)}
        return " ".join(f"{name}={self._short(value)}" for name, value in shown.items())

    def _short(self, value: Any) -> str:
        match value:
            case dict():
                text = "{" + self._fields(value) + "}"
            case list():
                text = "[" + ", ".join(map(self._short, value)) + "]"
            case str():
                text = repr(value) if re.search(r"\s|^$", value) else value
            case float():
                text = f"{value:.3f}"
            case _:
                text = str(value)
        return text if self.verbose or len(text) <= LENGTH else f"{text[:LENGTH]}..."


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a line, or None if the line is cut off or is no entry."""
    from hpclaunch.system.shared import bounded_json

    try:
        entry = bounded_json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "now" in entry else None


def _seconds(value: float) -> float:
    """Return a time. Raises JournalError if it is impossible."""
    if not 0 <= value < LATEST:
        raise JournalError(f"{value} is no possible time")
    return value


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    changes = []
    for name in PLACE:
        old, new = before[name], after[name]
        if old == new:
            continue
        if old == "":
            changes.append(f"leads, stage {new}")
        elif new == "":
            changes.append("no longer leads")
        else:
            changes.append(f"{name} {old} -> {new}")
    return ", ".join(changes)


def _where(position: Mapping[str, Any]) -> str:
    stage = f"stage {position['stage']}, " if position["stage"] else ""
    return f"{stage}phase {position['phase']}, round {position['round']}"


def _length(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))
