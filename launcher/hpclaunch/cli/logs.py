"""Show the output of all workers of a job, merged by time.

    hpclaunch logs                  the newest launch of this directory
    hpclaunch logs 71 --follow      all launches of a Slurm job, until its end
    hpclaunch logs 71 --rank 0,3-5  some of its ranks
    hpclaunch logs 71 --grep 'nan|inf' --since 5m

It reads only files in the log directory, while the job runs and after its end.
Each line has the time by the clock of its node, to the second, and the rank.
The time of a line is --:--:-- if it is not known.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpclaunch.core.protocol import ranges
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.wording import some
from hpclaunch.observe.job_report_text import why
from hpclaunch.observe.log_lines import LogLines, visible

from . import launch_ledgers, log_directories, say, standard_output, values, write_bytes
from .parser import Parser

if TYPE_CHECKING:
    from hpclaunch.observe.launches import Launch
    from hpclaunch.system.logs.merged_output import JobOutput, OutputLine

PAUSE = 0.5  # seconds between two searches for new lines
MANY = 100  # with more nodes, searches are less frequent: each node has an index to read
SILENT = 180.0  # seconds until a launcher counts as dead; it writes a status file every 60
LATEST = 1.5  # seconds for agents to write their last lines


def prepare_parser(parser: Parser) -> None:
    log_directories.add_argument(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="show what is new until the job ends"
    )
    parser.add_argument(
        "--rank", type=values.ranks, metavar="RANKS", help="only these ranks, such as 0,3-5"
    )
    parser.add_argument("--node", default="", metavar="NODE", help="only workers on this node")
    parser.add_argument("--stderr", action="store_true", help="only standard error")
    parser.add_argument(
        "--since", type=values.ago, metavar="TIME", help="only lines of the last 90s, 5m, 2h or 7d"
    )
    parser.add_argument(
        "--grep",
        type=values.expression,
        metavar="REGEX",
        help="only lines with a match of this regular expression (Python's)",
    )


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    from hpclaunch.system.logs.merged_output import JobOutput, LineFilter

    since = {} if options.since is None else {"since": time.time() - options.since}
    wanted = LineFilter(options.rank, options.node, errors_only=options.stderr, **since)
    try:
        _show(options, JobOutput(wanted))
    except OSError as e:
        raise UsageError(f"cannot show logs: {e.filename}: {e.strerror or e}") from e
    return 0


def _show(options: argparse.Namespace, output: JobOutput) -> None:
    directories = log_directories.chosen(options.job, _changed_at)
    screen = _Screen(options)
    while True:
        over = not options.follow or _is_over(options.job, directories)
        if over and options.follow:
            time.sleep(LATEST)
        output.look(directories)
        write_bytes(screen.lines(output.lines(final=over)))
        if over:
            if options.follow:
                _name_killed(directories)
            break
        time.sleep(PAUSE * max(1.0, len(output.nodes) / MANY))
        # A Slurm job may have been started again. A directory is chosen once: in hpclaunch-logs,
        # another launch may be the newest now.
        if options.job is not None and not os.path.isdir(options.job):
            directories = log_directories.chosen(options.job, _changed_at)
    if not screen.has_shown_lines:
        _explain(options, output, directories)
    elif (refused := output.refused) is not None:
        say(f"not shown: {refused.filename}: {refused.strerror}")


def _explain(options: argparse.Namespace, output: JobOutput, directories: Iterable[Path]) -> None:
    """Say that no lines were shown. Raise UsageError if a mistake is the reason."""
    if not output.is_there:
        raise UsageError(f"no worker has written anything in {', '.join(map(str, directories))}")
    if (refused := output.refused) is not None:
        raise UsageError(f"cannot show {refused.filename}: {refused.strerror}")
    if options.node and options.node not in output.nodes:
        known = some(sorted(output.nodes), 8) or "unknown nodes"
        raise UsageError(f"--node {options.node}: no workers ran there, but on {known}")
    if options.rank is not None and not options.rank & output.ranks:
        raise UsageError(f"--rank: only ranks {ranges.written(output.ranks)} have output")
    say("no line was written that these options select")


def _changed_at(directory: Path) -> float:
    """Return when the last fact was recorded or a round began, or 0 for neither."""
    from hpclaunch.system.logs.log_directory import rounds

    recorded_at = launch_ledgers.date(directory)  # a launch that has just begun has no round
    try:
        return max(recorded_at, os.stat(directory).st_mtime if rounds(directory) else 0.0)
    except OSError:
        return recorded_at


def _is_over(job: str | None, directories: Sequence[Path]) -> bool:
    """Return whether no further lines will follow, not even from another run of the job."""
    newest: dict[str, Launch] = {}  # of each job
    for directory in reversed(directories):  # launches that still run are usually the last
        last = _last(directory)
        has_ended = last is not None and last.verdict is not None
        if not has_ended and not _was_killed(directory):
            return False
        if last is not None:
            name = last.name.partition(".")[0]
            newest[name] = max(last, newest.get(name, last), key=lambda each: each.begin)
    again = any(last.verdict and last.verdict.sequel.is_requeued for last in newest.values())
    return not (again and job is not None and job.replace("_", "").isdecimal())


def _last(directory: Path) -> Launch | None:
    return next(reversed(_launches(directory)), None)


def _was_killed(directory: Path) -> bool:
    """Return whether no launcher is left that could record the end of its launch."""
    from hpclaunch.system.logs.log_directory import is_locked

    return time.time() > _changed_at(directory) + SILENT and not is_locked(directory)


def _name_killed(directories: Iterable[Path]) -> None:
    for directory in directories:
        if (last := _last(directory)) is None or last.verdict is None:
            say(f"{directory}: no end was recorded: the launcher was killed, or its nodes failed")


def _launches(directory: Path) -> Sequence[Launch]:
    return _launches_by(directory, launch_ledgers.state(directory))


@lru_cache(maxsize=64)
def _launches_by(directory: Path, _state: object) -> Sequence[Launch]:
    """Return the launches. Their files are read again only if `_state` has changed."""
    try:
        launches, _ = launch_ledgers.read(directory)
    except OSError:
        return ()
    return tuple(launches)


@lru_cache(maxsize=64)
def _moment(at: int) -> tuple[str, str]:
    local = time.localtime(at)
    return time.strftime("%Y-%m-%d", local), time.strftime("%H:%M:%S", local)


class _Screen:
    """Makes the lines for standard output."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._grep = options.grep
        self._text = LogLines(lambda at: _moment(int(at)), for_terminal=standard_output().isatty())
        self._last: tuple[Path, str] | None = None  # the round of the last line, and its launch

    @property
    def has_shown_lines(self) -> bool:
        return self._last is not None

    def lines(self, lines: Iterable[OutputLine]) -> Iterator[bytes]:
        """Format the lines, with a title before the first line of each round."""
        for line in lines:
            if self._grep is not None and not self._grep.search(visible(line.text)):
                continue
            of = (line.round, "" if line.begun is None else line.begun.launch)
            if of != self._last:
                self._last = of
                yield self._begin(line)
            at = line.time if line.dated else None
            yield self._text.line(at, line.rank, line.text)

    def _begin(self, line: OutputLine) -> bytes:
        number = int(line.round.name.partition("-")[2])
        begun = line.begun
        launch = line.round.parent.name if begun is None else begun.launch
        ended = _last_end(line.round.parent, launch, number) if number else ""
        return self._text.round(launch, number, None if begun is None else begun.time, ended)


def _last_end(directory: Path, launch: str, number: int) -> str:
    """Return which round ended early before this one, and why, or "" if that is not known. Numbers
    of rounds have gaps, since a new head skips one.
    """
    from hpclaunch.observe.job_report import report

    mine = [each for each in _launches(directory) if each.name == launch]
    ends = report(mine).ends if mine else ()
    before = [end for end in ends if end.round < number]
    last = max(before, key=lambda end: end.round, default=None)
    return "" if last is None else f"round {last.round} ended: {why(last)}"
