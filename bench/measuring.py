"""Start a launcher, see its workers meet, kill one, see them meet again.

Nothing here polls: the workers tell of themselves over a Unix socket, and while something is being
measured the benchmark sleeps until it hears from them.
"""

import json
import os
import select
import selectors
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

BIN = Path(sys.executable).parent
WORKER = Path(__file__).parent / "worker.py"
SOCKET = "BENCH_SOCKET"  # the variable that tells a worker where the benchmark listens
LOGS = "logs"  # hpclaunch's, with its journals, in the directory of a run
LIMIT = 60.0  # seconds until a start or a restart counts as hung

HPCLAUNCH = "hpclaunch"
COLD = "hpclaunch --cold"  # every worker a fresh interpreter
TORCHRUN = "torchrun"
# As shipped, torchrun's restarts in place often hang: its store outlives the round and hands new
# ranks the addresses of dead ones. With sharing off it does its best.
BEST_OF_TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True, slots=True)
class Command:
    """What to start, before the script and its arguments; `env` is over the inherited one."""

    argv: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)


def command(
    launcher: str, workers: int, *, max_restarts: int = 3, more: Sequence[str] = ()
) -> Command:
    """`workers` per node; `more` are options of this launcher's."""
    program, *options = launcher.split()
    options += [f"--max-restarts={max_restarts}", f"--nproc-per-node={workers}", *more]
    if launcher == TORCHRUN:
        return Command([str(BIN / program), *options], BEST_OF_TORCHRUN)
    return Command([str(BIN / program), *options, f"--log-dir={LOGS}"])


def alone(launcher: str, workers: int, *, max_restarts: int = 3) -> Command:
    """A job of one machine."""
    more = ["--standalone"] if launcher == TORCHRUN else []
    return command(launcher, workers, max_restarts=max_restarts, more=more)


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's own word; the moments as `worker.py` saw them, the pid as this process sees it."""

    pid: int
    rank: int
    restarts: int
    marks: Mapping[str, float]  # when it had come how far, in order

    @property
    def met(self) -> float:
        """The last of them, once a collective is done: all ranks are there."""
        return max(self.marks.values())


class Run:
    """A launcher at work on `worker.py` in a directory of its own.

    The `script` with its arguments is `worker.py`, or tells of itself as that does. `where` puts a
    command line somewhere else than onto this machine; there must be the same files.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        workers: int,
        where: Callable[[list[str], Path], list[str]] = lambda argv, _: argv,
        script: Sequence[object] = (WORKER,),
    ) -> None:
        self.workers = workers
        self.has_failed = False  # it has ended too early, or hung
        self.directory = Path(tempfile.mkdtemp(prefix="bench-"))
        self._selector = selectors.DefaultSelector()
        self._living: dict[socket.socket, Report] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = str(self.directory / "socket")
        self._listener.bind(path)
        self._listener.listen(256)
        self._selector.register(self._listener, selectors.EVENT_READ, self._welcome)
        self.began = time.monotonic()
        with (self.directory / "output").open("wb") as output:
            self.launchers = [
                subprocess.Popen(
                    where([*c.argv, *map(str, script)], self.directory),
                    cwd=self.directory,
                    env={**os.environ, **c.env, SOCKET: path},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                for c in commands
            ]
        for launcher in self.launchers:
            self._selector.register(os.pidfd_open(launcher.pid), selectors.EVENT_READ)

    @property
    def logs(self) -> Path:
        return self.directory / LOGS

    @property
    def reports(self) -> list[Report]:
        """Of the living workers, the newest of each rank, by rank."""
        newest = {r.rank: r for r in sorted(self._living.values(), key=lambda r: r.met)}
        return [newest[rank] for rank in sorted(newest)]

    def met(self, after: float) -> list[Report] | None:
        """All ranks' reports, once all have met after that moment; None for a hang."""
        while True:
            ready = [r for r in self.reports if r.met > after]
            if len(ready) == self.workers:
                return ready
            events = self._selector.select(after + LIMIT - time.monotonic())
            for key, _ in events:
                if key.data is None:
                    self._complain("the launcher has ended")
                    return None
                key.data(key.fileobj)
            if not events:
                self._complain(f"nothing for {LIMIT:.0f} s")
                return None

    def kill_worker(self, rank: int) -> float:
        """SIGKILL to a worker; returns the moment."""
        moment = time.monotonic()
        os.kill(self.reports[rank].pid, signal.SIGKILL)
        return moment

    def finish(self) -> float | None:
        """Let the workers come to the end of their script; returns the seconds from then until the
        launchers have ended, or None for a hang."""
        began = time.monotonic()
        for worker in [*self._living]:
            self._farewell(worker)
        for key in list(self._selector.get_map().values()):
            if key.data is None and not select.select([key.fd], [], [], LIMIT)[0]:
                self._complain(f"still there after {LIMIT:.0f} s")
                return None
        return time.monotonic() - began

    def _welcome(self, listener: socket.socket) -> None:
        worker, _ = listener.accept()
        # What the worker takes for its pid is that of its own namespace.
        peer = worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("3i", peer)
        said = worker.recv(4096)
        if not said:
            worker.close()
            return
        rank, restarts, marks = json.loads(said)
        self._living[worker] = Report(pid, int(rank), int(restarts), marks)
        self._selector.register(worker, selectors.EVENT_READ, self._farewell)

    def _farewell(self, worker: socket.socket) -> None:
        self._selector.unregister(worker)
        del self._living[worker]
        worker.close()

    def _complain(self, what: str) -> None:
        self.has_failed = True
        said = (self.directory / "output").read_text(errors="replace").splitlines()
        print(f"{what}; its last lines:", *said[-5:], sep="\n  | ", file=sys.stderr)

    def end(self) -> None:
        """The workers go when their connections do; what does not is killed."""
        for open_one in (*self._living, self._listener):
            open_one.close()
        for key in list(self._selector.get_map().values()):
            if key.data is None:
                os.close(key.fd)
        self._selector.close()
        for launcher in self.launchers:
            try:
                launcher.wait(LIMIT / 4)
            except subprocess.TimeoutExpired:  # torchrun's workers outlive it when it is killed
                agent = psutil.Process(launcher.pid)
                for process in [*agent.children(recursive=True), agent]:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                launcher.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def running(*args, **kwargs) -> Iterator[Run]:
    """A `Run` that is ended, whatever happens."""
    run = Run(*args, **kwargs)
    try:
        yield run
    finally:
        run.end()


def timed(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Seconds that a command takes."""
    began = time.monotonic()
    subprocess.run(argv, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def median(values: Sequence[float | None]) -> float:
    """Of the runs that came to an end."""
    done = [v for v in values if v is not None]
    return statistics.median(done) if done else float("nan")
