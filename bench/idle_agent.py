"""Measure the memory and CPU time of a launcher while its workers train.

    python bench/idle_agent.py [--workers 8] [--seconds 5] [--cold]

Measured are a single agent of hpclaunch, the head and the member of a job of two agents (which hear
from each other every 2 s) with half of the workers each, and torchrun. The workers have imported
torch and done one all-reduce, and sleep. PSS divides a shared page equally among its processes, so
the memory of several processes is the sum. Helpers are the agent's child processes, without the
workers.
"""

import argparse
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from measuring import COLD, HPCLAUNCH, TORCHRUN, Command, running, standalone

SETTLE = 2.0  # seconds for the agent's background preparations


def step_environment(index: int) -> dict[str, str]:
    """Return the environment of one of two tasks of a Slurm step on this machine."""
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": socket.gethostname(),
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
        "SLURM_LOCALID": str(index),
        "SLURM_PROCID": str(index),
    }


@dataclass(frozen=True, slots=True)
class Family:
    """An agent and its child processes."""

    agent: psutil.Process
    helpers: list[psutil.Process]
    workers: list[psutil.Process]


def family(pid: int, workers: set[int]) -> Family:
    agent = psutil.Process(pid)
    below = agent.children(recursive=True)
    return Family(
        agent,
        [p for p in below if p.pid not in workers],
        [p for p in below if p.pid in workers],
    )


def pss(processes: Iterable[psutil.Process]) -> float:
    """Return the proportional set size of the processes, in MB."""
    return sum(p.memory_full_info().pss for p in processes) / 1e6


def cpu(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds of the processes so far, with the kernel's nanosecond resolution."""
    tasks = [task for p in processes for task in Path(f"/proc/{p.pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(commands: Mapping[str, Command], workers: int, seconds: float) -> None:
    """Run one job and print a line for each of its agents."""
    with running(list(commands.values()), workers) as run:
        if run.wait_until_ready(run.began) is None:
            return
        time.sleep(SETTLE)
        pids = {report.pid for report in run.reports}
        families = [family(launcher.pid, pids) for launcher in run.launchers]
        before = [cpu([f.agent, *f.helpers]) for f in families]
        time.sleep(seconds)
        for name, f, used in zip(commands, families, before, strict=True):
            share = (cpu([f.agent, *f.helpers]) - used) / seconds
            parts = [pss([f.agent]), pss(f.helpers), pss(f.workers)]
            print(
                f"{name:18}{f.agent.memory_info().rss / 1e6:11.1f}{parts[0]:11.1f}"
                f"{parts[1]:9.1f}{parts[0] + parts[1]:16.1f}{parts[2]:9.1f}{sum(parts):12.1f}"
                f"{100 * share:9.3f} %",
                flush=True,
            )
            for helper in f.helpers:
                print(f"    {pss([helper]):6.1f} MB  {short_command(helper)}", flush=True)


def short_command(helper: psutil.Process) -> str:
    """Return the helper's command line without directories, cut to 60 characters."""
    words = [Path(word).name for word in helper.cmdline()]
    return " ".join(words)[:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    print(
        f"{args.workers} idle workers; MB\n{'':18}  agent RSS  agent PSS  helpers  agent + helpers"
        "  workers  everything      CPU"
    )
    for name in (HPCLAUNCH, *([COLD] if args.cold else []), TORCHRUN):
        measure({name: standalone(name, args.workers)}, args.workers, args.seconds)
    half = standalone(HPCLAUNCH, args.workers // 2)
    names = (f"{HPCLAUNCH}, head", f"{HPCLAUNCH}, member")
    pair = {name: replace(half, env=step_environment(index)) for index, name in enumerate(names)}
    measure(pair, 2 * (args.workers // 2), args.seconds)


if __name__ == "__main__":
    main()
