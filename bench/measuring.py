"""Runs of a launcher: start it, wait until all workers are ready, kill one, wait again.

Nothing here polls: the workers report over a Unix socket, and during a measurement the benchmark
sleeps until it receives their reports.
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
SOCKET = "BENCH_SOCKET"  # the variable with the path of the benchmark's socket
LOGS = "logs"  # hpclaunch's, with its journals, in the directory of a run
LIMIT = 60.0  # seconds until a start or a restart counts as hung
BURN = (sys.executable, "-c", "while True: pass")  # the command of a process that only computes

HPCLAUNCH = "hpclaunch"
COLD = "hpclaunch --cold"  # every worker is a new interpreter
TORCHRUN = "torchrun"
# By default, torchrun's restarts in place often hang: its store outlives the round and gives new
# ranks the addresses of dead ones. Without the shared store it performs best.
BEST_OF_TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True, slots=True)
class Command:
    """The command line of a launcher, without the script; `env` extends the inherited one."""

    argv: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)


def command(
    launcher: str, workers: int, *, max_restarts: int = 3, more: Sequence[str] = ()
) -> Command:
    """Return the command for `workers` per node; `more` are other options of this launcher."""
    program, *options = launcher.split()
    options += [f"--max-restarts={max_restarts}", f"--nproc-per-node={workers}", *more]
    if launcher == TORCHRUN:
        return Command([str(BIN / program), *options], BEST_OF_TORCHRUN)
    return Command([str(BIN / program), *options, f"--log-dir={LOGS}"])


def standalone(launcher: str, workers: int, *, max_restarts: int = 3) -> Command:
    """Return the command for a job on this machine only."""
    more = ["--standalone"] if launcher == TORCHRUN else []
    return command(launcher, workers, max_restarts=max_restarts, more=more)


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's report: the times are its own, the pid is that in this process's namespace."""

    pid: int
    rank: int
    restarts: int
    marks: Mapping[str, float]  # the time of each stage, in order

    @property
    def ready_at(self) -> float:
        """The time of the last stage, after a collective with all ranks."""
        return max(self.marks.values())


class Run:
    """One run of a launcher in a directory of its own.

    The `script`, with its arguments, sends reports as `worker.py` does. `where` turns a command
    line into one that runs on other hosts, which must have the same files.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        workers: int,
        where: Callable[[list[str], Path], list[str]] = lambda argv, _: argv,
        script: Sequence[object] = (WORKER,),
    ) -> None:
        self.workers = workers
        self.has_failed = False  # the launcher ended too early, or a start hung
        self.directory = Path(tempfile.mkdtemp(prefix="bench-"))
        self._selector = selectors.DefaultSelector()
        self._living: dict[socket.socket, Report] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = str(self.directory / "socket")
        self._listener.bind(path)
        self._listener.listen(256)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
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
        """The newest report of each rank whose worker is alive, by rank."""
        newest = {r.rank: r for r in sorted(self._living.values(), key=lambda r: r.ready_at)}
        return [newest[rank] for rank in sorted(newest)]

    def wait_until_ready(self, after: float) -> list[Report] | None:
        """Wait until all ranks are ready, later than `after`; return their reports.

        Return None for a hang.
        """
        while True:
            ready = [r for r in self.reports if r.ready_at > after]
            if len(ready) == self.workers:
                return ready
            events = self._selector.select(after + LIMIT - time.monotonic())
            for key, _ in events:
                if key.data is None:
                    self._report_failure("the launcher ended too early")
                    return None
                key.data(key.fileobj)
            if not events:
                self._report_failure(f"no report within {LIMIT:.0f} s")
                return None

    def kill_worker(self, rank: int) -> float:
        """Send SIGKILL to a worker; return the time."""
        moment = time.monotonic()
        os.kill(self.reports[rank].pid, signal.SIGKILL)
        return moment

    def finish(self) -> float | None:
        """Let the workers reach the end of their script; return the seconds from then until the
        launchers have ended, or None for a hang."""
        began = time.monotonic()
        for worker in [*self._living]:
            self._disconnect(worker)
        for key in list(self._selector.get_map().values()):
            if key.data is None and not select.select([key.fd], [], [], LIMIT)[0]:
                self._report_failure(f"the launcher has not ended within {LIMIT:.0f} s")
                return None
        return time.monotonic() - began

    def _accept(self, listener: socket.socket) -> None:
        worker, _ = listener.accept()
        # The worker itself only knows its pid in its own namespace.
        peer = worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("3i", peer)
        message = worker.recv(4096)
        if not message:
            worker.close()
            return
        rank, restarts, marks = json.loads(message)
        self._living[worker] = Report(pid, int(rank), int(restarts), marks)
        self._selector.register(worker, selectors.EVENT_READ, self._disconnect)

    def _disconnect(self, worker: socket.socket) -> None:
        self._selector.unregister(worker)
        del self._living[worker]
        worker.close()

    def _report_failure(self, what: str) -> None:
        self.has_failed = True
        lines = (self.directory / "output").read_text(errors="replace").splitlines()
        print(f"{what}; its last lines:", *lines[-5:], sep="\n  | ", file=sys.stderr)

    def end(self) -> None:
        """Close the connections, so that the workers end; kill processes that remain."""
        for connection in (*self._living, self._listener):
            connection.close()
        for key in list(self._selector.get_map().values()):
            if key.data is None:
                os.close(key.fd)
        self._selector.close()
        for launcher in self.launchers:
            try:
                launcher.wait(LIMIT / 4)
            except subprocess.TimeoutExpired:  # torchrun's workers survive when it is killed
                agent = psutil.Process(launcher.pid)
                for process in [*agent.children(recursive=True), agent]:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                launcher.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def running(*args, **kwargs) -> Iterator[Run]:
    """Start a `Run`, and end it in any case."""
    run = Run(*args, **kwargs)
    try:
        yield run
    finally:
        run.end()


@contextmanager
def busy(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Run these commands, which never end by themselves."""
    processes = [subprocess.Popen(argv) for argv in commands]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def timed(argv: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Return the duration of a command, in seconds."""
    began = time.monotonic()
    subprocess.run(argv, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def import_torch() -> float:
    return timed([sys.executable, "-c", "import torch"])


def median(values: Sequence[float | None]) -> float:
    """Return the median of the values that are not None, or NaN."""
    done = [v for v in values if v is not None]
    return statistics.median(done) if done else float("nan")
