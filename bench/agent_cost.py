"""Measure the CPU time and memory of an agent, in an earlier version of hpclaunch and in this one.

    git worktree add /tmp/before COMMIT
    python bench/agent_cost.py --before /tmp/before [--rounds 9] [--seconds 30] [--age 2]

The two versions run in turn. `start` is the CPU time of the agent and its helpers from the command
to the worker's first line. `idle` is their CPU time in a job that is `--age` seconds old; in the
first minute the history is recorded more often than later. `watched` is the same while `hpclaunch
status --watch` asks once a second, without the CPU time of that command. The worker is a script
without torch. Only CPU time is measured: other programs on this machine affect it less than they
affect elapsed time.
"""

import argparse
import compileall
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from idle_agent import cpu, pss

HERE = Path(__file__).parents[1]
SETTLE = 2.0  # seconds for the agent's background preparations
WORKER = "import sys, time; print('here', flush=True); time.sleep(3600)"
RUN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from hpclaunch.cli import main; sys.exit(main())"
)
LIMIT = 60.0  # seconds


def command(tree: Path, *words: str) -> list[str]:
    return [sys.executable, "-c", RUN, str(tree / "launcher"), *words]


@contextmanager
def launched(tree: Path) -> Iterator[psutil.Process]:
    """Start an agent; yield it after its worker's first line."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        Path(directory, "worker.py").write_text(WORKER)
        agent = subprocess.Popen(
            command(tree, "--nproc", "1", "worker.py"),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            ready, _, _ = select.select([agent.stdout], [], [], LIMIT)
            if not ready or agent.stdout.readline() != b"here\n":
                sys.exit(f"{tree}: the worker did not start within {LIMIT:.0f} s")
            yield psutil.Process(agent.pid)
        finally:
            agent.terminate()
            agent.communicate()


def family(agent: psutil.Process) -> list[psutil.Process]:
    """Return the agent and its helpers, without the worker."""
    below = agent.children(recursive=True)
    return [agent, *(p for p in below if "worker.py" not in p.cmdline())]


def cpu_per_hour(processes: list[psutil.Process], seconds: float) -> float:
    """Return the CPU seconds per hour, extrapolated from so many seconds."""
    before = cpu(processes)
    time.sleep(seconds)
    return (cpu(processes) - before) * 3600 / seconds


def measure(tree: Path, age: float, seconds: float) -> dict[str, float]:
    with launched(tree) as agent:
        found = {
            "start, agent, CPU s": cpu([agent]),
            "start, all, CPU s": cpu(family(agent)),
        }
        time.sleep(age)
        members = family(agent)
        found |= {
            "agent PSS, MB": pss([agent]),
            "agent USS, MB": agent.memory_full_info().uss / 1e6,
            "all PSS, MB": pss(members),
            "idle, CPU s/h": cpu_per_hour(members, seconds),
        }
        if (
            "status"
            in subprocess.run(
                command(tree, "--help"), capture_output=True, text=True, check=True
            ).stdout
        ):
            found["watched, CPU s/h"] = watched(tree, agent, members, seconds)
        return found


def watched(
    tree: Path, agent: psutil.Process, members: list[psutil.Process], seconds: float
) -> float:
    pattern = f"local-*-{agent.pid}"
    (logs,) = Path(agent.cwd(), "hpclaunch-logs").glob(pattern)
    leader, follower = os.openpty()  # on a terminal, the command asks once a second
    watch = subprocess.Popen(
        command(tree, "status", "--watch", logs.name), stdout=follower, stderr=follower
    )
    try:
        time.sleep(SETTLE)
        assert watch.poll() is None, "hpclaunch status --watch is running"
        before, limit = cpu(members), time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            if select.select([leader], [], [], left)[0]:
                os.read(leader, 1 << 16)
        return (cpu(members) - before) * 3600 / seconds
    finally:
        watch.kill()
        watch.wait()
        os.close(leader)
        os.close(follower)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--age", type=float, default=SETTLE)
    args = parser.parse_args()
    trees = {"before": args.before.resolve(), "now": HERE}
    for tree in trees.values():  # an installed package is compiled as well
        compileall.compile_dir(tree / "launcher", quiet=1)
    found: dict[str, dict[str, list[float]]] = {name: {} for name in trees}
    for number in range(args.rounds):
        for name in sorted(trees, reverse=bool(number % 2)):
            for what, value in measure(trees[name], args.age, args.seconds).items():
                found[name].setdefault(what, []).append(value)
    print(f"medians of {args.rounds}, and the range\n{'':24}{'before':>26}{'now':>26}   ratio")
    for what, now in found["now"].items():
        before = found["before"].get(what)
        known = statistics.median(before or [0.0])
        ratio = f"{statistics.median(now) / known:8.3f}" if known else ""
        print(f"{what:24}{spread(before):>26}{spread(now):>26}{ratio}")


def spread(values: list[float] | None) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


if __name__ == "__main__":
    main()
