"""Start a launcher, see its workers meet, kill one, see them meet again."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
LIMIT = 60.0  # seconds until a start or restart counts as hung

HPCLAUNCH = "hpclaunch"
TORCHRUN = "torchrun"
# As shipped, torchrun's restarts in place often hang: its store outlives the round and hands new
# ranks the addresses of dead ones. With sharing off it does its best.
BEST_OF_TORCHRUN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def command(launcher: str, workers: int, max_restarts: int) -> list[str]:
    if launcher == HPCLAUNCH:
        options = [f"--nproc={workers}", f"--max-restarts={max_restarts}"]
    else:
        options = ["--standalone", f"--nproc-per-node={workers}", f"--max-restarts={max_restarts}"]
    return [str(BIN / launcher), *options]


class Run:
    """A launcher at work on `bench/worker.py` in a directory of its own."""

    def __init__(self, argv: list[str], workers: int, env: dict[str, str]) -> None:
        self.workers = workers
        self.directory = Path(tempfile.mkdtemp(prefix="bench-"))
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*argv, str(HERE / "worker.py"), str(self.directory)],
            cwd=self.directory,
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def met(self, after: float) -> float | None:
        """Seconds from `after` to the last rank's first all-reduce after it; None for a hang."""
        while time.monotonic() < after + LIMIT and self.process.poll() is None:
            found = {}
            for path in self.directory.glob("[0-9]*-[0-9]*"):
                if path.suffix:
                    continue
                moment, _ = path.read_text().split()
                if float(moment) > after:
                    found[path.name.partition("-")[2]] = float(moment)
            if len(found) == self.workers:
                return max(found.values()) - after
            time.sleep(0.01)
        return None

    def restarts(self) -> int:
        """How many restarts have been used so far."""
        return max(int(p.name.partition("-")[0]) for p in self.directory.glob("[0-9]*-[0-9]*"))

    def kill_worker(self) -> float:
        """SIGKILL to the worker with the highest rank; returns the moment."""
        newest = self.directory / f"{self.restarts()}-{self.workers - 1}"
        pid = int(newest.read_text().split()[1])
        moment = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        return moment

    def end(self) -> None:
        (self.directory / "end").touch()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:  # hung; torchrun's workers outlive it when it is killed
            agent = psutil.Process(self.process.pid)
            for process in [*agent.children(recursive=True), agent]:
                process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def running(launcher: str, workers: int, *, max_restarts: int = 3, as_shipped: bool = False):
    env = BEST_OF_TORCHRUN if launcher == TORCHRUN and not as_shipped else {}
    run = Run(command(launcher, workers, max_restarts), workers, env)
    try:
        yield run
    finally:
        run.end()


def median(values: list[float | None]) -> float:
    """Of the runs that came to an end."""
    done = [v for v in values if v is not None]
    return statistics.median(done) if done else float("nan")
