"""Watch a running job on the whole screen.

    hpclaunch top 71

The last line shows the keys: nodes or ranks, sort, filter. Into a pipe or a
file, it writes a line now and then.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.observe.top_screen import TopState, top_screen

from . import status
from .parser import Parser

if TYPE_CHECKING:
    from rich.live import Live

    from hpclaunch.system.network import launches

KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "erase",
    "\x08": "erase",
    "\x03": "q",
}
PAUSE = 1.0  # seconds between two snapshots


def prepare_parser(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="Slurm's id of a job, or the name of a launch")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from hpclaunch.system.network import launches

    try:
        if not (sys.stdin and sys.stdin.isatty() and status.draws(environ)):
            return status.watch(options.job, environ)
        found = launches.find(options.job, environ)
        signal.signal(signal.SIGTERM, _leave)  # so that the terminal is restored
        with _keys_at_once():
            _show(found, environ)
    except launches.NoLaunchError as e:
        raise UsageError(str(e)) from e
    return 0


def _leave(signum: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Read keys without waiting for the end of a line, and without echo."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _show(found: launches.FoundLaunches, environ: Mapping[str, str]) -> None:
    """Show the job until the user leaves or it is over."""
    from rich.console import Console
    from rich.live import Live

    from hpclaunch.system.network import launches

    console, launch = Console(), found.only
    state: TopState | None = TopState()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while state is not None:
            with found.watch(PAUSE) as stream:
                state = _follow(stream, launch, state, live, environ)
            if state is not None:  # perhaps another agent leads now
                try:
                    found = launches.find(found.which, environ)
                    launch = found.launches[0]
                except launches.NoLaunchError:
                    return


def _follow(
    stream: launches.LaunchStream,
    launch: LaunchSnapshot,
    state: TopState,
    live: Live,
    environ: Mapping[str, str],
) -> TopState | None:
    """Show the launch until its head ends or changes. Return the state, or None to leave."""
    from rich.text import Text

    while not stream.over:
        lines = top_screen(launch, state, status.style(environ), live.console.height)
        live.update(Text.from_ansi("\n".join(lines), no_wrap=True), refresh=True)
        ready, _, _ = select.select([sys.stdin, stream], [], [], PAUSE)
        if stream in ready:
            for seen in stream.receive():
                launch = seen[0]
        if sys.stdin in ready:
            for key in keys_in(os.read(sys.stdin.fileno(), 64).decode(errors="replace")):
                chosen = state.pressed(key)
                if chosen is None:
                    return None
                state = chosen
    return state


def keys_in(text: str) -> Iterator[str]:
    """Return the keys in the input of a terminal."""
    while text:
        known = max((code for code in KEYS if text.startswith(code)), key=len, default=text[0])
        yield KEYS.get(known, known)
        text = text[len(known) :]
