"""Count false alarms of the hang detection in jobs that are slow but do not hang.

    python bench/false_hangs.py [--seconds 60] [--jobs 1] [--cases CASE ...]
    python bench/false_hangs.py --recipes [NAME ...] [--minutes 4]

Each case is a job on this machine with the default --hang-timeout, which does something slow for
--seconds, such as an evaluation, between steps of 0.1 s (`slow_worker.py`). "load" lasts twice as
long, beside 20 processes that do nothing but compute. A recipe is a script of `workers/`, which
trains for --minutes. The last line has the sums.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from measuring import BIN, BURN, busy

ROOT = Path(__file__).parent.parent
WORKER = Path(__file__).parent / "slow_worker.py"
STALLING = ROOT / "tests" / "slurm" / "scripts" / "stalling.py"
HPCLAUNCH = BIN / "hpclaunch"
ON_STORAGE = ("save", "sync")  # needs root and FUSE
CASES = ("first-step", "evaluation", *ON_STORAGE, "compile", "load", "callback")
# With its caches, torch.compile would compile each model only once.
ENVIRON = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
BURNERS = 20
WORKERS = 3
MORE = 300.0  # seconds that a case may take besides its slow part
# Recipes with `--steps` instead of `--epochs`, and with other numbers of processes than 2.
STEPS = ("fsdp", "fsdp_tp", "pipeline")
PROCESSES = {"data_parallel": 1, "single": 1, "fsdp_tp": 2, "mps_replicas": 4, "rpc": 3}
COMPILED = "deepspeed_zero3"  # a recipe for which something must be built first
RECIPES = sorted({p.stem for p in (ROOT / "workers").glob("*.py")} - {COMPILED})


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job, from its output and its journal."""

    name: str
    seconds: float
    alarms: int
    steps: int  # the fewest of any worker
    still: float  # the longest time without a sign of life, in seconds
    wrong: str  # exit code and output, if the job failed or was thought to hang

    def __str__(self) -> str:
        text = f"{self.name:20} {self.seconds:6.0f} s, {self.steps:6} steps, "
        text += f"at most {self.still:5.1f} s without a sign of life, {self.alarms} false alarms"
        return text + (f"; {self.wrong}" if self.wrong else "")


class Job:
    """A job of hpclaunch in a directory of its own."""

    def __init__(self, directory: Path, argv: list[object]) -> None:
        self._directory = directory
        self._began = time.monotonic()
        with (directory / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [str(HPCLAUNCH), *map(str, argv)],
                cwd=directory,
                env=os.environ | ENVIRON | {"STALLING": str(directory)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def outcome(self, name: str, *, was_ended: bool = False) -> JobOutcome:
        """Return the outcome of the job, which has ended."""
        seconds = time.monotonic() - self._began
        output = (self._directory / "output").read_text(errors="replace")
        journals = (self._directory / "hpclaunch-logs").glob("*/journal.jsonl")
        events = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
        seen = [event["with"] for event in events if event.get("event") == "WorkersSeen"]
        code = self.process.returncode
        alarms = output.count("the workers hang")
        wrong = f"exit code {code}: {output[-500:]}" if (code and not was_ended) or alarms else ""
        steps = max((min(each["steps"]) for each in seen), default=0)
        still = max((each["still"] for each in seen), default=0.0)
        return JobOutcome(name, seconds, alarms, steps, still, wrong)


@contextmanager
def storage(directory: Path) -> Iterator[None]:
    """Mount a file system in the directory; it stalls while the file `stalls` exists."""
    mounted, source = directory / "storage", directory / "source"
    mounted.mkdir()
    source.mkdir()
    stalls = directory / "stalls"
    subprocess.run([sys.executable, STALLING, source, mounted, stalls], check=True)
    try:
        yield
    finally:
        stalls.unlink(missing_ok=True)
        subprocess.run(["umount", "--lazy", mounted], check=True)


def run(case: str, seconds: float) -> JobOutcome:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="false-hangs-")))
        if case in ON_STORAGE:
            stack.enter_context(storage(directory))
        if case == "load":
            seconds *= 2
            stack.enter_context(busy([BURN] * BURNERS))
        job = Job(directory, ["--nproc", WORKERS, WORKER, case, seconds])
        stalls, limit = directory / "stalls", time.monotonic() + seconds + MORE
        while job.process.poll() is None and time.monotonic() < limit:
            if stalls.exists() and time.time() > stalls.stat().st_mtime + seconds:
                stalls.unlink()
            time.sleep(0.2)
        job.process.kill()  # has an effect only if the job has exceeded its limit
        job.process.wait()
        return job.outcome(case)


def train(name: str, seconds: float) -> JobOutcome:
    with tempfile.TemporaryDirectory(prefix="false-hangs-") as directory:
        length = "--steps" if name in STEPS else "--epochs"
        script = [ROOT / "workers" / f"{name}.py", length, 1_000_000, "--dir", "checkpoints"]
        job = Job(Path(directory), ["--nproc", PROCESSES.get(name, 2), *script])
        try:
            job.process.wait(seconds)
            was_ended = False
        except subprocess.TimeoutExpired:
            was_ended = True
            job.process.send_signal(signal.SIGTERM)
            job.process.wait()
        return job.outcome(name, was_ended=was_ended)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1, help="at a time")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--recipes", nargs="*", choices=RECIPES)
    parser.add_argument("--minutes", type=float, default=4, help="for each recipe")
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        if args.recipes is None:
            able = os.geteuid() == 0 and Path("/dev/fuse").exists()
            cases = [case for case in args.cases if able or case not in ON_STORAGE]
            done = pool.map(lambda case: run(case, args.seconds), cases)
        else:
            names = args.recipes or RECIPES
            done = pool.map(lambda name: train(name, 60 * args.minutes), names)
        outcomes = []
        for outcome in done:
            outcomes.append(outcome)
            print(outcome, flush=True)
    minutes = sum(outcome.seconds for outcome in outcomes) / 60
    alarms = sum(outcome.alarms for outcome in outcomes)
    print(f"{minutes:.1f} min in all, {alarms} false alarms")


if __name__ == "__main__":
    main()
