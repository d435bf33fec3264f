"""The process that runs the user's command for --notify: once for each event, which the command
reads from its standard input. The command may take long, or hang.

    from the agent            to the agent
    {"event": {...}}          {"event": "told", "why": what was wrong; "" if nothing}

The next event comes after that answer. What the command prints is dropped, but for the last line of
its errors if it fails. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Collection, Mapping
from typing import Any

from hpclaunch.system.shared.helper import Helper
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError

LIMIT = 30.0  # seconds for one event
MOST_READ = 4096  # bytes of its errors


class NotifierClient(Helper):
    """`ask`, and then `receive` once it is readable."""

    has_children = True
    does = "runs the command of --notify"
    costs = "an event may be lost"

    def __init__(self, command: str) -> None:
        super().__init__("hpclaunch.system.notifier", str(os.getpid()), command)

    def wait(self, limit: float) -> list[dict[str, Any]]:
        """As `receive`, but for an answer that is yet to come; [] if none has come in time."""
        return self.receive() if self._is_ready(select.POLLIN, limit) else []


def main(fd: str, blocked: str, agent: str, command: str) -> None:
    if not die_with(int(agent)):
        return
    channel = AgentChannel(fd)
    mask = [int(number) for number in blocked.split(",") if number]
    try:
        while True:
            for request in channel.read():
                channel.tell("told", why=run(command, request["event"], mask))
    except AgentGoneError:
        pass


def run(
    command: str, event: Mapping[str, Any], mask: Collection[int] = (), limit: float = LIMIT
) -> str:
    """Run the command with the event. Returns what was wrong; "" if nothing.

    `mask`: the signals that are blocked for it.
    """
    me = os.getpid()

    def prepare() -> None:
        die_with(me)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    # Files, not pipes: a command need not read, and what it leaves running holds up nobody.
    with _file(json.dumps(event).encode() + b"\n") as event_file, _file() as errors:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=event_file,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except OSError as e:
            return f"cannot be run: {e.strerror}"
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"was killed: it took longer than {limit:g} s"
        if not code:
            return ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        errors.seek(max(0, os.fstat(errors.fileno()).st_size - MOST_READ))
        lines = errors.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {said}" if said else how


def _file(content: bytes = b"") -> Any:
    """A file in memory, to be read from its begin."""
    file = os.fdopen(os.memfd_create("hpclaunch notify", os.MFD_CLOEXEC), "w+b", buffering=0)
    file.write(content)
    file.seek(0)
    return file
