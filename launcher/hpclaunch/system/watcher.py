"""The agent's end of its watcher (`nvml.py`, where the protocol is): what NVML says of its GPUs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpclaunch.core.devices import Gpu
from hpclaunch.core.findings import Finding, Grade
from hpclaunch.core.health import XidSeen

PERIOD = 30.0  # seconds between two looks at the GPUs while the workers run
ANSWER_LIMIT = 10.0  # seconds, of which the memory of dead workers may take five
GONE_LIMIT = 1.0  # seconds; a process that hangs within the driver cannot be killed
_ROOT = Path(__file__).parent.parent.parent
# Isolated from the user's environment, but for the places where this package and pynvml lie.
_PROGRAM = (
    "import sys; sys.path += sys.argv[1:3]; "
    "from hpclaunch.system.nvml import main; main(*sys.argv[3:])"
)


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to a check of a round; without one, what has come up since."""

    findings: tuple[Finding, ...] = ()
    round: int | None = None
    xids: tuple[XidSeen, ...] = ()


class Watcher:
    """Checks out, reports in. Every check is answered: by the watcher, or in its place once
    `next_deadline` has come or it is gone. `lost` is set when it can answer no more.
    """

    def __init__(self, gpus: Sequence[Gpu], period: float = PERIOD) -> None:
        self.gpus = tuple(gpus)
        self.period = period
        self._socket, theirs = socket.socketpair()
        wanted = json.dumps([(gpu.uuid, gpu.name) for gpu in self.gpus])
        found = find_spec("pynvml")
        assert found is not None, "the survey has used it"
        assert found.origin is not None
        places = [str(_ROOT), str(Path(found.origin).parent)]
        words = [*places, str(os.getpid()), str(theirs.fileno()), str(period), wanted]
        # What scancel or a terminal sends to every process is for the agent alone.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *words]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self._buffer = b""
        self._round: int | None = None  # of the check that waits for its answer
        self._deadline = math.inf
        self.lost = False

    def successor(self) -> Watcher:
        return Watcher(self.gpus, self.period)

    def fileno(self) -> int:
        return self._socket.fileno()

    def next_deadline(self) -> float:
        return self._deadline

    def check(self, round: int, dead: Collection[int] = ()) -> None:  # noqa: A002
        """Ask for all that is wrong, before a round begins; no worker of ours is running.

        `dead` are the pids of the last round's workers, whose memory is waited for.
        """
        self._round, self._deadline = round, time.monotonic() + ANSWER_LIMIT
        with contextlib.suppress(OSError):  # it is gone: receive() tells
            request = {"round": round, "dead": sorted(dead)}
            self._socket.sendall(json.dumps(request).encode() + b"\n")

    def receive(self) -> Iterator[Report]:
        """What is there; call it when the descriptor is readable."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.lost = True
            why = "the process that reads NVML has ended: the GPUs of this host are not watched"
            advice = "NVML crashes; look at nvidia-smi on this host"
            yield self._answer(Finding("NVML", why, Grade.WARN, advice))
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            report = _report(**json.loads(line))
            if report.round is not None and report.round == self._round:
                self._round, self._deadline = None, math.inf
            yield report

    def expire(self) -> Report:
        """Call it when `next_deadline` has come: a hang of NVML is the answer."""
        self.lost = True
        self._process.kill()
        found = f"does not answer within {ANSWER_LIMIT:.0f} s"
        advice = "most likely a GPU fell off the bus: look at dmesg; the node must be started again"
        return self._answer(Finding("NVML", found, Grade.FAIL, advice))

    def _answer(self, finding: Finding) -> Report:
        """In the watcher's place, to whatever waits for it."""
        report = Report((finding,), self._round)
        self._round, self._deadline = None, math.inf
        return report

    def close(self) -> None:
        """Returns soon, even if the watcher cannot be killed for now."""
        self._socket.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_LIMIT)


def _report(
    round: int | None,  # noqa: A002 - the protocol's word
    findings: list[dict[str, Any]],
    xids: list[dict[str, Any]],
) -> Report:
    return Report(
        tuple(Finding(**{**f, "grade": Grade(f["grade"])}) for f in findings),
        round,
        tuple(XidSeen(**{**x, "pids": tuple(x["pids"])}) for x in xids),
    )
