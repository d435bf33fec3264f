"""What a launcher costs while its workers train: memory and CPU.

    python bench/idle_agent.py [--workers 8] [--seconds 5] [--cold]

hpclaunch alone, hpclaunch as head and as member of two agents (which hear from each other every
2 s) with half of the workers each, and torchrun. The workers have imported torch, met in one
all-reduce, and sleep. PSS counts a page that several processes share in equal parts: what processes
cost together is the sum. Helpers are all processes below the agent but the workers.
"""

import argparse
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from measuring import COLD, HPCLAUNCH, TORCHRUN, Command, alone, running

REST = 2.0  # seconds until what is done ahead of need is done


def step(index: int) -> dict[str, str]:
    """The environment of one of two tasks of a Slurm step on this machine."""
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
    """An agent and what it has started."""

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
    """Megabytes."""
    return sum(p.memory_full_info().pss for p in processes) / 1e6


def cpu(processes: Iterable[psutil.Process]) -> float:
    """Seconds so far, which the kernel counts to the nanosecond here."""
    tasks = [task for p in processes for task in Path(f"/proc/{p.pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure(commands: Mapping[str, Command], workers: int, seconds: float) -> None:
    """Prints a line for each of the agents, which belong to one job."""
    with running(list(commands.values()), workers) as run:
        if run.met(run.began) is None:
            return
        time.sleep(REST)
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
                print(f"    {pss([helper]):6.1f} MB  {said_by(helper)}", flush=True)


def said_by(helper: psutil.Process) -> str:
    """Its command line, without directories and the benchmark's own arguments."""
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
        measure({name: alone(name, args.workers)}, args.workers, args.seconds)
    half = alone(HPCLAUNCH, args.workers // 2)
    names = (f"{HPCLAUNCH}, head", f"{HPCLAUNCH}, member")
    pair = {name: replace(half, env=step(index)) for index, name in enumerate(names)}
    measure(pair, 2 * (args.workers // 2), args.seconds)


if __name__ == "__main__":
    main()
