"""TORCHELASTIC_ERROR_FILE: the exception that ended a worker.

As with torchrun, each worker writes its exception to an error file of its own. The launcher copies
that of the first failure to its own TORCHELASTIC_ERROR_FILE, which torchx sets, for example. If a
message is too long for a worker's last lines, its beginning is read from the error file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpclaunch.system.shared import bounded_json
from hpclaunch.worker import private_files

from .log_directory import without_colours

if TYPE_CHECKING:
    from hpclaunch.core.protocol.model import Failure

VARIABLE = "TORCHELASTIC_ERROR_FILE"
TRACEBACK = "Traceback (most recent call last):"
MOST_FRAMES = 3  # of a traceback, the innermost
MOST_CHARACTERS = 400  # of a message's first line
LAST_LINES = 2  # shown after the beginning of a long message
AT_EXIT = 10.0  # seconds in which a process that an exception ends may still print something
SYNTAX = re.compile(r"^((?:Syntax|Indentation|Tab)Error: .+) \(.+, line \d+\)$")
FRAME = re.compile(r'^  File ".+", line \d+, in .+(?:\n    .*)?', re.MULTILINE)


def files_of(failures: Iterable[Failure], logs: Path) -> dict[str, int]:
    """Return the error file of each failed worker, with the exit code that torch would record."""
    return {
        str(logs / f"round-{f.round}" / f"rank-{f.rank}.error.json"): -f.signal or f.code
        for f in failures
    }


def hand_on(files: Mapping[str, int], wanted: str) -> None:
    """Copy the first of these error files that can be read to `wanted`, with its exit code: a
    worker that is killed cannot write that itself.
    """
    error = None
    for file, code in files.items():
        if (error := _read(Path(file))) is not None:
            if isinstance(error.get("message"), dict):
                error["message"]["errorCode"] = code
            break
    if error is None:
        return
    # Some versions of Python can read JSON that is nested too deeply for them to write.
    with contextlib.suppress(OSError, RecursionError):
        text = json.dumps(error)
        with open(wanted, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as f:
            f.write(text)


def with_beginning(last: str, file: Path) -> str:
    """Return the last lines of a worker's `file`, with the beginning of its exception.

    A long exception, such as one that names hundreds of parameters, begins before the last lines.
    Then its innermost frames and its first line are shown before the last LAST_LINES lines. Other
    output may follow an exception, such as that of libraries at exit. Then the last lines end with
    the exception's last line, which says why the worker failed. Output that comes long after it
    shows that a shell script has continued: the last lines say why that failed.
    """
    source = file.with_suffix(".error.json")
    error = (_read(source) or {}).get("message")
    message = error.get("message") if isinstance(error, dict) else None
    lines = [*map(_as_printed, message.splitlines())] if isinstance(message, str) else []
    if not lines:
        return last
    is_last = last.endswith(lines[-1]) or _is_long_before(source, file)
    if lines[0] in last:
        return last if is_last else f"{last}\n{lines[-1]}"
    more = error.get("extraInfo") if isinstance(error, dict) else None
    trace = str(more.get("py_callstack")) if isinstance(more, dict) else ""
    frames = FRAME.findall(trace.partition(str(message))[0])[-MOST_FRAMES:]
    rest = f"[... all of it is in {file.name}]"
    first, *end = [line[:MOST_CHARACTERS] for line in lines]
    end = last.splitlines() if is_last else end
    return "\n".join([TRACEBACK, *frames, first, *([rest, *end[-LAST_LINES:]] if end else [])])


def _is_long_before(source: Path, file: Path) -> bool:
    """Return whether an error file was written long before the last output in `file`."""
    with contextlib.suppress(OSError):
        return source.stat().st_mtime + AT_EXIT < file.stat().st_mtime
    return False


def _as_printed(line: str) -> str:
    """Return a line of an error file's message as a traceback's last lines have it: without
    colours, without a colon if nothing follows, and without the place of a syntax error.
    """
    return without_colours(SYNTAX.sub(r"\1", line).removesuffix(": "))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        error = bounded_json.loads(private_files.read_file(file))
    except (OSError, ValueError):
        return None
    return error if isinstance(error, dict) else None
