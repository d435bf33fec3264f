"""List the checkpoints in a directory, and the one that a job would resume from.

    hpclaunch checkpoints DIR
    hpclaunch checkpoints 'lightning_logs/**'

DIR is the value for --checkpoint-dir. The newest checkpoint comes first. Those
that a launch with --stage has only in the memory of this node are listed, too.
The command changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.wording import harmless, size
from hpclaunch.observe.text_style import duration

from . import options as launch
from . import rich_output, write
from .parser import Parser

if TYPE_CHECKING:
    from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint
    from hpclaunch.system.checkpoints.service import CheckpointService


def prepare_parser(parser: Parser) -> None:
    parser.add_argument("dir", metavar="DIR", help="a directory, or a pattern of directories")
    parser.add_argument("--json", action="store_true", help="print JSON, for other programs")
    launch.add_what_counts(parser.add_argument)


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    try:
        found, chosen = look(options)
        in_memory = dict(_in_memory(options, found))
    except OSError as e:
        raise UsageError(f"cannot look for checkpoints in {options.dir}: {e.strerror or e}") from e
    form = _json if options.json else partial(_table, options.dir)
    write(form(found, chosen, in_memory))
    return 0


def look(options: argparse.Namespace) -> tuple[list[ExaminedCheckpoint], ExaminedCheckpoint | None]:
    """Return all checkpoints, the newest first, and the one that a launch would choose."""
    from hpclaunch.system.checkpoints import READS

    service = _service(options.dir, options)
    found = list(service.examine())
    for i, each in enumerate(found):
        if each.lacks is not None:
            continue
        if options.verify in READS and (wrong := service.read(each).wrong):
            found[i] = each._replace(lacks=wrong)
            continue
        return found, each
    return found, None


def _service(where: str, options: argparse.Namespace) -> CheckpointService:
    from hpclaunch.system.checkpoints.service import CheckpointService

    complete = options.checkpoint_complete or ""
    return CheckpointService(where, options.checkpoint_exclude, complete, options.verify)


def _in_memory(
    options: argparse.Namespace, on_storage: list[ExaminedCheckpoint]
) -> Iterator[tuple[str, ExaminedCheckpoint]]:
    """Yield the complete checkpoints of running launches that have not been copied to storage, each
    with its path there.
    """
    from hpclaunch.system.checkpoints import split
    from hpclaunch.system.staging.stage_directory import of_launches

    storage, pattern = split(options.dir)
    stored = {(os.path.abspath(f.candidate.path), f.candidate.time) for f in on_storage}
    for stage in of_launches(storage):
        with contextlib.suppress(OSError):  # the launch has just ended
            for each in _service(os.path.join(stage, pattern), options).examine():
                path = os.path.join(storage, os.path.relpath(each.candidate.path, stage))
                path = os.path.normpath(path)
                if each.lacks is None and (path, each.candidate.time) not in stored:
                    yield path, each


def _json(
    found: list[ExaminedCheckpoint],
    chosen: ExaminedCheckpoint | None,
    in_memory: dict[str, ExaminedCheckpoint],
) -> str:
    now = time.time()
    answer = {
        "chosen": None if chosen is None else chosen.candidate.path,
        "rule": None if chosen is None else chosen.rule,
        "checkpoints": [_record(each, now, each is chosen) for each in found],
        "in_memory": [
            _record(each, now, chosen=False) | {"path": path} for path, each in in_memory.items()
        ],
    }
    return json.dumps(answer, indent=2) + "\n"


def _record(found: ExaminedCheckpoint, now: float, chosen: bool) -> dict[str, Any]:
    candidate, step = found.candidate, found.candidate.step
    return {
        "path": candidate.path,
        "format": candidate.format.name,
        "load": candidate.format.load,
        "step": None if step is None else step.value,
        "unit": None if step is None else step.unit,
        "size": found.size,
        "saved": candidate.time / 1e9,
        "age": round(now - candidate.time / 1e9, 3),
        "world": candidate.world,
        "complete": found.lacks is None,
        "why_not": found.lacks,
        "rule": found.rule,
        "chosen": chosen,
    }


def _table(
    where: str,
    found: list[ExaminedCheckpoint],
    chosen: ExaminedCheckpoint | None,
    in_memory: dict[str, ExaminedCheckpoint],
) -> str:
    from rich.table import Table
    from rich.text import Text

    from hpclaunch.system.checkpoints import split

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("", "checkpoint", "format", "step", "size", "age", "ranks"):
        right = name in ("size", "age", "ranks")
        folds = name == "checkpoint"
        table.add_column(
            name,
            no_wrap=not folds,
            overflow="fold",
            justify="right" if right else "left",
            max_width=36 if folds else None,
        )
    table.add_column("complete", overflow="fold", ratio=1)
    base, _ = split(where)
    now = time.time()
    rows = [*in_memory.items(), *((each.candidate.path, each) for each in found)]
    for number, (path, each) in enumerate(rows):
        candidate = each.candidate
        name = os.path.relpath(path, base)
        complete = Text("yes", style="green") if each.lacks is None else Text(harmless(each.lacks))
        if number < len(in_memory):
            complete = Text("yes, only in memory", style="yellow")
        table.add_row(
            Text("->" if each is chosen else "", style="bold green"),
            Text(harmless(candidate.name if name == "." else name)),
            candidate.format.name,
            "" if candidate.step is None else str(candidate.step),
            size(each.size),
            duration(max(0.0, now - candidate.time / 1e9)),
            "" if candidate.world is None else str(candidate.world),
            complete,
        )
    latest = max((each.candidate.time for each in in_memory.values()), default=0)
    text = _summary(found, chosen, where)
    if latest > (0 if chosen is None else chosen.candidate.time):
        one = "one" if chosen is None else "a newer one"
        text += f"; a running launch has {one} in memory"
    summary = Text(harmless(text), style="bold")
    return rich_output.as_text([table, summary] if found or in_memory else [summary])


def _summary(found: list[ExaminedCheckpoint], chosen: ExaminedCheckpoint | None, where: str) -> str:
    if chosen is not None:
        candidate = chosen.candidate
        return (
            f"would resume from {candidate.name} ({chosen.rule}); load it with "
            f"{candidate.format.load}"
        )
    if not found:
        from hpclaunch.system.checkpoints import nothing_known
        from hpclaunch.system.checkpoints.finding import others, roots

        lacking = "no checkpoint in" if os.path.isdir(where) else "no directory"
        text = f"{lacking} {where}: a training would begin at the start"
        with contextlib.suppress(OSError):  # it was removed meanwhile
            text = nothing_known(where, others(roots(where))) or text
        return text
    return "none of them is complete: a training would begin at the start"
