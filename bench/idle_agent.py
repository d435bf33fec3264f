"""What an agent costs while its workers train: memory, CPU, and how soon it starts them.

    python bench/idle_agent.py [--seconds 10]

hpclaunch alone, hpclaunch as head and as member of two agents (which hear from each other every
second), and torchrun's agent; two workers each that only sleep.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from measuring import BIN

WORKER = "import os, sys, time; open(sys.argv[1] + os.environ['RANK'], 'w'); time.sleep(600)"


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


def measure(commands: list[tuple[str, list[str], dict[str, str]]], seconds: float) -> None:
    """Prints a line for each of the agents, which belong to one job."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "worker.py"
        script.write_text(WORKER)
        marks = str(Path(directory) / "rank-")
        began = time.monotonic()
        agents = [
            subprocess.Popen(
                [*command, str(script), marks],
                cwd=directory,
                env={**os.environ, **env},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _, command, env in commands
        ]
        while len(list(Path(directory).glob("rank-*"))) < 2:
            time.sleep(0.002)
        started = time.monotonic() - began
        time.sleep(2)  # what is imported ahead of need is done
        before = [sum(psutil.Process(a.pid).cpu_times()[:2]) for a in agents]
        time.sleep(seconds)
        for (name, _, _), agent, used in zip(commands, agents, before, strict=True):
            process = psutil.Process(agent.pid)
            memory = process.memory_full_info()
            cpu = (sum(process.cpu_times()[:2]) - used) / seconds
            print(
                f"{name:20}{memory.rss / 1e6:7.1f} MB RSS{memory.pss / 1e6:7.1f} MB PSS"
                f"{100 * cpu:7.3f} % CPU   workers up after {started:.2f} s",
                flush=True,
            )
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    seconds = parser.parse_args().seconds
    ours = [str(BIN / "hpclaunch")]
    theirs = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    measure([("hpclaunch", [*ours, "--nproc=2"], {})], seconds)
    pair = [(name, [*ours, "--nproc=1"], step(i)) for i, name in enumerate(("head", "member"))]
    measure([(f"hpclaunch, {name}", *rest) for name, *rest in pair], seconds)
    measure([("torchrun", theirs, {})], seconds)


if __name__ == "__main__":
    main()
