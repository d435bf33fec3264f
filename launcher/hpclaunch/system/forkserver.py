"""The agent's end of its fork server (`worker/forkserver.py`, where the protocol is)."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
GONE_LIMIT = 5.0  # seconds to end what a dead fork server left behind
_WORKER = Path(__file__).parent.parent / "worker"
SITE = str(_WORKER / "site")  # goes to the front of the workers' PYTHONPATH


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker to start; `env` is over the shared one, `out` and `err` are files."""

    rank: int
    argv: Sequence[str]
    env: dict[str, str]
    out: str
    err: str
    cpus: Sequence[int] = ()  # those it is bound to; none: those of its agent


class ForkServer:
    """Requests out, replies in. `lost` is set once the process at the other end is gone."""

    def __init__(self, handled: Iterable[int] = ()) -> None:
        """`handled` are signals beyond the usual ones on which the agent acts."""
        # Should the fork server be killed, what its workers started becomes our child.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._socket, theirs = socket.socketpair()
        script = str(_WORKER / "forkserver.py")
        # A signal for the agent must not end the fork server before it can ignore it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signums = [",".join(str(int(s)) for s in some) for some in (handled, mask)]
        command = [sys.executable, "-I", "-S", script, str(theirs.fileno()), *signums]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self._buffer = b""
        self.lost = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def listen(self, *, loopback: bool) -> None:
        self._ask("listen", loopback=loopback)

    def prepare_store(self, python: str, err: str) -> None:
        """Have the process that holds the stores import torch, ahead of need."""
        self._ask("store", argv=[python, str(_WORKER / "store.py")], err=err)

    def start(self, workers: Sequence[Worker], env: dict[str, str], *, store: bool) -> None:
        described = [
            {
                "rank": w.rank,
                "argv": w.argv,
                "env": w.env,
                "out": w.out,
                "err": w.err,
                "cpus": w.cpus,
            }
            for w in workers
        ]
        self._ask("start", workers=described, env=env, store=store)

    def signal(self, signum: int) -> None:
        self._ask("signal", signum=signum)

    def stop(self) -> None:
        self._ask("stop")

    def kill(self) -> None:
        self._ask("kill")

    def _ask(self, op: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # it is gone: receive() tells
            self._socket.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")

    def receive(self) -> Iterator[dict[str, Any]]:
        """The replies that are there; call it when the descriptor is readable."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.lost = True
            self._end_orphans()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        """The end: the fork server kills whatever is left, and goes."""
        self._socket.close()
        try:
            self._process.wait(2 * GONE_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._end_orphans()

    def _end_orphans(self) -> None:
        """After the fork server's own death: its children died with it, theirs are ours now."""
        import psutil

        self._process.wait()
        me = psutil.Process()
        limit = time.monotonic() + GONE_LIMIT
        while (left := me.children(recursive=True)) and time.monotonic() < limit:
            for process in left:
                try:
                    os.kill(process.pid, signal.SIGKILL)
                    os.waitpid(process.pid, os.WNOHANG)
                except (ProcessLookupError, ChildProcessError):
                    pass
            psutil.wait_procs(left, timeout=0.05)
