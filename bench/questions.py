"""Measure the delay of beats while many processes ask the head for the job's status.

    python bench/questions.py [--askers 4] [--seconds 10]

Two agents train together and hear from each other every half second. First nobody asks, then
--askers processes ask the head again and again, as `hpclaunch status` does. The table shows the
answers per second, the CPU share of the head and its helpers, and the longest time between two
beats that the head and the other agent have received from each other.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from idle_agent import SETTLE, cpu, family, step_environment
from measuring import BIN, HPCLAUNCH, Command, Run, running, standalone

from hpclaunch.system.network import view_client
from hpclaunch.system.network.view_socket import LOOK

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import timed

WITHIN = 5.0  # seconds for an answer


def ask(name: bytes, seconds: float) -> int:
    """Ask for so many seconds; return the number of answers."""
    answered, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        answered += len(view_client.ask(LOOK, [name], WITHIN))
    return answered


def beats(journal: Path) -> Iterator[float]:
    """Yield the times at which this agent has received a beat."""
    entries = map(json.loads, journal.read_text().splitlines())
    return (entry["now"] for entry in entries if entry.get("event") == "Received")


def longest(journal: Path, begin: float, end: float) -> float:
    """Return the longest time between two beats, in seconds."""
    moments = [begin, *(moment for moment in beats(journal) if begin <= moment <= end), end]
    return max(later - earlier for earlier, later in pairwise(moments))


def measure(run: Run, askers: int, seconds: float) -> None:
    head = run.launchers[0].pid
    agent = family(head, {report.pid for report in run.reports})
    [(name, _)] = view_client.looked(head)
    spans = []
    for asking in (0, askers):
        used, began = cpu([agent.agent, *agent.helpers]), time.monotonic()
        if asking:
            with multiprocessing.Pool(asking) as pool:
                answered = sum(pool.starmap(ask, [(name, seconds)] * asking))
        else:
            answered = 0
            time.sleep(seconds)
        ended = time.monotonic()
        share = (cpu([agent.agent, *agent.helpers]) - used) / (ended - began)
        spans.append((asking, answered / (ended - began), share, began, ended))
    for launcher in run.launchers:
        launcher.terminate()
        launcher.wait()  # from then on, the journals are complete
    [journal_of_head] = run.logs.rglob("journal.jsonl")
    journals = (journal_of_head, journal_of_head.with_name("journal-agent-1.jsonl"))
    print(f"{'askers':>6}{'answers/s':>11}{'CPU':>9}{'at the head':>17}{'at the other':>18}")
    for asking, rate, share, began, ended in spans:
        at_head, at_other = (longest(journal, began, ended) for journal in journals)
        print(f"{asking:6}{rate:11.0f}{100 * share:7.2f} %{at_head:15.2f} s{at_other:16.2f} s")


def recorded(index: int) -> Command:
    """Return the command of a launcher whose journal contains every beat."""
    usual = standalone(HPCLAUNCH, 1)
    whole = {"system.logs.journal.WHOLE": True}
    env = step_environment(index) | timed.variables(f"{BIN}:{os.environ['PATH']}", **whole)
    return replace(usual, argv=[str(timed.PROGRAM), *usual.argv[1:]], env=env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--askers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    with running([recorded(index) for index in range(2)], 2) as run:
        if run.wait_until_ready(run.began) is None:
            return
        time.sleep(SETTLE)
        measure(run, args.askers, args.seconds)


if __name__ == "__main__":
    main()
