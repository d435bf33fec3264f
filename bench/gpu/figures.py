"""Measure on the first GPU of this machine; print the figures and keep them in bench/results.

    python bench/gpu/figures.py [--only throughput restart ...] [--runs 3] [--workers 2 8]

All sections together take about eight minutes. The docstrings of their functions describe them. The
results of a day are one file, to which every run adds.
"""

import argparse
import contextlib
import datetime
import functools
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pynvml

sys.path.insert(0, str(Path(__file__).parent.parent))
from measuring import BIN, HPCLAUNCH, TORCHRUN, WORKER, Run, import_torch, running, standalone
from side_by_side import compare

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RESULTS = HERE.parent / "results"
LIMIT = 180  # seconds for one job
OFF = "--mps off"
EPOCHS = 60  # of the recipe: long enough to measure its speed
failures: list[str] = []  # launchers that failed or hung; then the exit code is 1
_ASK_TORCH = """
import torch
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else "none"
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")
"""


def job(*words: object, may_fail: bool = False) -> str:
    """Run hpclaunch; return its output, or "" with a message if it fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        command = [BIN / HPCLAUNCH, "--log-dir", "logs", *map(str, words)]
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            print(f"not ended within {LIMIT} s: {' '.join(map(str, words))}")
            failures.append(HPCLAUNCH)
            return ""
    if done.returncode:
        print(f"exit code {done.returncode} from {' '.join(map(str, words))}; its last lines:")
        print(*done.stdout.splitlines()[-8:], sep="\n  | ")
        failures.extend([] if may_fail else [HPCLAUNCH])
        return ""
    return done.stdout


def speeds(output: str) -> list[float]:
    """Return the numbers of the line "images/s ..."."""
    found = re.search(r"^images/s (.*)$", output, re.MULTILINE)
    return [float(word) for word in found[1].split()] if found else []


# Sections


def gpu(_: argparse.Namespace) -> None:
    """Return the output of nvidia-smi and of hpclaunch doctor."""
    for command in (["nvidia-smi"], [str(BIN / HPCLAUNCH), "doctor"]):
        if shutil.which(command[0]) is None:
            print(f"{command[0]} is not installed")
            continue
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        print(done.stdout + done.stderr, end="")


def throughput(args: argparse.Namespace) -> None:
    """Images per second of a small CNN, batch 512 for each worker, of all workers together."""
    print("workers  MPS     by themselves   to one   averaging over gloo   to one")
    ones: list[float] = []
    for workers, mps in itertools.product(args.workers or (1, 2, 4, 8), ("off", "on")):
        found = speeds(job("--nproc", workers, "--mps", mps, HERE / "cnn.py"))
        if not found:
            continue
        ones = ones or found
        by_itself, averaged = (f"{f:15.0f} {f / o:8.2f}" for f, o in zip(found, ones, strict=True))
        print(f"{workers:7}  {mps:4}{by_itself}     {averaged}", flush=True)


def recipe(_: argparse.Namespace) -> None:
    """workers/mps_replicas.py, 8 replicas on one GPU, images per second."""
    seen = {}
    for mps in ("off", "on"):
        script = [ROOT / "workers" / "mps_replicas.py", "--epochs", EPOCHS, "--dir", "saved"]
        output = job("--nproc", 8, "--mps", mps, *script)
        reached = re.findall(r"^accuracy (.*)$", output, re.MULTILINE)
        if found := speeds(output):
            seen[mps] = found[0]
            print(f"MPS {mps:4}{found[0]:10.0f} images/s, accuracy {reached[0]}", flush=True)
    if len(seen) == 2:
        print(f"with MPS / without: {seen['on'] / seen['off']:.2f}")


def restart(args: argparse.Namespace) -> None:
    """Launch, and SIGKILL of a worker, to the first all-reduce of CUDA tensors (over gloo)."""
    for workers in args.workers or (2, 8):
        commands = {HPCLAUNCH: HPCLAUNCH, OFF: f"{HPCLAUNCH} {OFF}", TORCHRUN: TORCHRUN}
        launchers = {
            name: functools.partial(with_cuda, launcher, workers)
            for name, launcher in commands.items()
        }
        title = f"{workers} workers on one GPU ({HPCLAUNCH}: with MPS)"
        compare(title, launchers, import_torch, runs=args.runs, stages=True)


def memory(_: argparse.Namespace) -> None:
    """The GPU's memory in MiB before, with 8 workers, after a restart, and after the end; then its
    changes after SIGKILL of a worker, as seconds:MiB."""
    for name in (HPCLAUNCH, f"{HPCLAUNCH} {OFF}"):
        seen, samples = [used()], Samples()
        with with_cuda(name, 8) as run:
            if run.wait_until_ready(run.began) is not None:
                seen.append(used())
                with samples:
                    if run.wait_until_ready(run.kill_worker(7)) is not None:
                        seen.append(used())
        seen.append(used())
        print(f"{name:20}" + "".join(f"{mib:10.0f}" for mib in seen))
        print("  after the kill: " + " ".join(samples.changes()), flush=True)


def nccl(_: argparse.Namespace) -> None:
    """Two ranks on one GPU in a script that asks for nccl."""
    script = ROOT / "tests" / "gpu" / "scripts" / "nccl.py"
    for options in ([], ["--shared-backend", "gloo"]):
        print(f"hpclaunch --nproc 2 {' '.join(options)}")
        began = time.monotonic()
        print(job("--nproc", 2, "--max-restarts", 0, *options, script, may_fail=True), end="")
        print(f"({time.monotonic() - began:.1f} s)", flush=True)


def staging(_: argparse.Namespace) -> None:
    """A save of 1 GB from the GPU, and a restart, with and without --stage (bench/staging.py)."""
    fast = ["--rate", "400", "--latency", "5", "--saves", "2", "--kills", "1"]
    command = [sys.executable, HERE.parent / "staging.py", "--only", "saves", *fast]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    failures.extend([HPCLAUNCH] * (done.returncode != 0))


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    f.__name__: f for f in (gpu, throughput, recipe, restart, memory, nccl, staging)
}


@contextlib.contextmanager
def with_cuda(launcher: str, workers: int) -> Iterator[Run]:
    """Start a run whose workers use the GPU."""
    with running([standalone(launcher, workers)], workers, script=(WORKER, "cuda")) as run:
        yield run
    if run.has_failed and launcher != TORCHRUN:
        failures.append(launcher)


def used() -> float:
    first = pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetMemoryInfo(first).used / 2**20


class Samples:
    """A context manager whose thread samples the used memory of the GPU every 10 ms."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []  # (seconds since the start, MiB)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        began = time.monotonic()
        while not self._over.wait(0.01):
            self._samples.append((time.monotonic() - began, used()))

    def changes(self) -> list[str]:
        """Return each change by 50 MiB or more, such as "0.31:4210"."""
        found, last = [], float("inf")
        for at, mib in self._samples:
            if abs(mib - last) >= 50:
                last = mib
                found.append(f"{at:.2f}:{mib:.0f}")
        return found or ["not sampled"]


# Output


class Tee(io.TextIOBase):
    """Standard output that also keeps what is written to it."""

    def __init__(self) -> None:
        self.kept = ""
        self._shown = sys.stdout

    def write(self, text: str) -> int:
        self.kept += text
        return self._shown.write(text)

    def flush(self) -> None:
        self._shown.flush()


@contextlib.contextmanager
def first_gpu() -> Iterator[str]:
    """Let child processes see only the first GPU; yield its model."""
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ["CUDA_VISIBLE_DEVICES"] = pynvml.nvmlDeviceGetUUID(handle)
        yield pynvml.nvmlDeviceGetName(handle)
    finally:
        pynvml.nvmlShutdown()


def describe_machine(model: str) -> str:
    torch = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True)
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = ""
    with contextlib.suppress(OSError):  # git may not be installed
        commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    return (
        f"{datetime.datetime.now():%Y-%m-%d %H:%M}. {model}, driver "
        f"{pynvml.nvmlSystemGetDriverVersion()}; {torch.stdout.strip() or 'no torch'}; "
        f"{cores} CPUs, {memory:.0f} GiB; hpclaunch {commit or 'of an unknown commit'}."
    )


def measure(args: argparse.Namespace, path: Path) -> None:
    """Run the sections; keep the output of each as soon as it has ended."""
    for name in args.only:
        section = SECTIONS[name]
        print(f"\n{section.__doc__}", flush=True)
        began = time.monotonic()
        with contextlib.redirect_stdout(Tee()) as tee:
            section(args)
        with path.open("a") as results:
            output = tee.kept.strip("\n")
            results.write(f"\n## {name}\n\n{section.__doc__}\n\n```\n{output}\n```\n")
        print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--runs", type=int, default=3, help="of each restart; medians are shown")
    parser.add_argument("--workers", type=int, nargs="+", help="of throughput and restart")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory to keep them in")
    args = parser.parse_args()
    try:
        with first_gpu() as model:
            args.results.mkdir(parents=True, exist_ok=True)
            short = re.sub(r"[^a-z0-9]+", "-", model.lower())
            path = args.results / f"{datetime.date.today()}-{short}.md"
            title = describe_machine(model)
            print(title, flush=True)
            with path.open("a") as results:
                results.write(f"# {title}\n")
            measure(args, path)
            print(f"kept in {path}")
    except pynvml.NVMLError as e:
        print(f"nothing measured: no GPU was found ({e})")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
