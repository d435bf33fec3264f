"""Watch a running job on the whole screen.

    hpclaunch top 71

The last line shows the keys: nodes or ranks, sort, filter. Into a pipe or a
file, it writes a line now and then. A job that is over is shown as it was at
its end, from its log directory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
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
}
# A character, or the sequence that a terminal sends for a key such as Left or F1 (ECMA-48).
KEY = re.compile(r"\x1b(?:\[\[?[0-?]*[ -/]*[@-~]|O.)|.", re.DOTALL)
CUT_SHORT = re.compile(r"\x1b(?:\[\[?[0-?]*[ -/]*|O)?\Z")
REST = 0.1  # seconds for the rest of a sequence
PAUSE = 1.0  # seconds between two snapshots


def prepare_parser(parser: Parser) -> None:
    parser.add_argument(
        "job", metavar="JOB", help="Slurm's id of a job, the name of a launch, or a log directory"
    )


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from hpclaunch.system.network import launches

    try:
        if not (sys.stdin and sys.stdin.isatty() and status.draws(environ)):
            return status.watch(options.job, environ)
        found = status.running_or_ended(options.job, environ)
        if isinstance(found, LaunchSnapshot):
            status.show_screen([found], environ)
            return 0
        signal.signal(signal.SIGTERM, _leave)  # so that the terminal is restored
        with _keys_at_once():
            last = _show(found, environ)
    except launches.NoLaunchError as e:
        raise UsageError(str(e)) from e
    if last is not None:
        status.show_screen(status.at_end([last]), environ)
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


def _show(found: launches.FoundLaunches, environ: Mapping[str, str]) -> LaunchSnapshot | None:
    """Show the job until the user leaves, or it is over. Return its last snapshot if it is over."""
    from rich.console import Console
    from rich.live import Live

    from hpclaunch.system.network import launches

    launch, which = found.only, found.which
    state: TopState | None = TopState()
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        while state is not None:
            with found.watch(PAUSE) as stream:
                while state is not None and not stream.over:
                    state = _draw(launch, state, live, environ)
                    ready, _, _ = select.select([sys.stdin, stream], [], [], PAUSE)
                    if stream in ready:
                        for seen in stream.receive():
                            launch = seen[0]
                    if sys.stdin in ready:
                        state = _typed(state)
            while state is not None:  # perhaps another agent leads now
                state = _draw(launch, state, live, environ)
                if select.select([sys.stdin], [], [], PAUSE)[0]:
                    state = _typed(state)
                    continue
                try:
                    found = launches.find(which, environ)
                    launch = found.launches[0]
                    break
                except launches.UnreachableError:
                    launch = status.aged(launch)
                except launches.NoLaunchError:
                    return launch
    return None


def _draw(
    launch: LaunchSnapshot, state: TopState, live: Live, environ: Mapping[str, str]
) -> TopState:
    """Draw the screen, and return the state that it shows."""
    from rich.text import Text

    screen = top_screen(launch, state, status.style(environ), live.console.height)
    live.update(Text.from_ansi("\n".join(screen.lines), no_wrap=True), refresh=True)
    return screen.state


def _typed(state: TopState) -> TopState | None:
    """Return the state after the keys that were pressed; None to leave."""
    text = ""
    while not text or (CUT_SHORT.search(text) and select.select([sys.stdin], [], [], REST)[0]):
        data = os.read(sys.stdin.fileno(), 64)
        if not data:
            return None  # the terminal is gone
        text += data.decode(errors="replace")
    after: TopState | None = state
    for key in keys_in(text):
        after = after.pressed(key) if after is not None else None
    return after


def keys_in(text: str) -> Iterator[str]:
    """Return the keys in the input of a terminal, without those that have no name here."""
    return (KEYS.get(key, key) for key in KEY.findall(text) if key in KEYS or len(key) == 1)
