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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
GONE_LIMIT = 5.0  # seconds to end what a dead fork server left behind
_PACKAGE = Path(__file__).parent.parent
SITE = str(_PACKAGE / "worker" / "site")  # goes to the front of the workers' PYTHONPATH
# Isolated from the user's environment, but for the place where this package lies.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from hpclaunch.worker.forkserver import main; main(*sys.argv[2:])"
)


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
    """Requests out, replies in. `lost` is set once the process at the other end is gone, and then
    `survivors` if something that it had started cannot be killed.
    """

    def __init__(self, handled: Iterable[int] = ()) -> None:
        """`handled` are signals beyond the usual ones on which the agent acts."""
        self.handled = tuple(handled)
        # Should the fork server be killed, what its workers started becomes our child.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._socket, theirs = socket.socketpair()
        # A signal for the agent must not end the fork server before it can ignore it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signums = [",".join(str(int(s)) for s in some) for some in (self.handled, mask)]
        words = [str(_PACKAGE.parent), str(theirs.fileno()), *signums]
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *words]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        self._buffer = b""
        self.heard = False  # it did come up
        self.lost = False
        self.survivors = False

    def successor(self) -> ForkServer:
        return ForkServer(self.handled)

    def fileno(self) -> int:
        return self._socket.fileno()

    def prepare(
        self, argv: Sequence[str], env: dict[str, str], modules: Sequence[str], *, now: bool
    ) -> None:
        """How to start the template; `now`, or when a store is asked for its first connection."""
        self._ask("prepare", argv=argv, env=env, modules=modules, now=now)

    def listen(self, *, loopback: bool) -> None:
        self._ask("listen", loopback=loopback)

    def start(
        self,
        workers: Sequence[Worker],
        env: dict[str, str],
        *,
        store: str,
        warm: bool,
        learn: bool = False,
    ) -> None:
        """`store` is the file for the errors of the round's store, "" if another node has it.

        With `learn` the template imports what the first worker has, for the next round.
        """
        described = [asdict(w) for w in workers]
        self._ask("start", workers=described, env=env, store=store, warm=warm, learn=learn)

    def signal(self, signum: int) -> None:
        self._ask("signal", signum=signum)

    def stop(self) -> None:
        self._ask("stop")

    def kill_idle(self) -> None:
        self._ask("kill-idle")

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
        self.heard = True
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
        self.survivors = bool(left)
