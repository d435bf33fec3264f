# ruff: noqa: T201 -- a command that talks to its user
"""Stories of a job with faults, as an operator sees it: `python tests/sim/stories.py [NAME ...]`.

The cores are real and everything else is simulated, as in all of this directory; nothing here is
drawn from a seed but the small accidents of the way.
"""

from __future__ import annotations

import argparse
import re

from cluster_sim import Simulation
from sim_plan import Fault, Kind, Plan

from hpclaunch.core.protocol.model import Grow, Job, Place
from hpclaunch.core.protocol.timing import Timing
from hpclaunch.core.protocol.values import replace

FOR_EVER = 1e6


def calm(nodes: int, *faults: Fault, **job: object) -> Plan:
    """Two workers on each node, which train for 40 s and save now and then."""
    places = tuple(Place(i, i, f"n{i + 1}") for i in range(nodes))
    settings = Job(places, fewest=1, saves=True, timing=Timing(stuck=1.0))
    return Plan(
        seed=0,
        job=replace(settings, **job),
        nprocs=(2,) * nodes,
        gpus=((),) * nodes,
        starts=(0.0,) * nodes,
        clocks=tuple(1000.0 * i for i in range(nodes)),
        rates=(1.0,) * nodes,
        faults=faults,
        crashes=0,
        work=40.0,
        coupled=True,
        saves=True,
        stubborn=0.0,
        savers=0.0,
        sweep=0.001,
        delay=0.0002,
        slow=0.0,
        drop=0.0,
        duplicate=0.0,
    )


STORIES = {
    "a worker dies": replace(calm(3), crashes=1),
    "a node dies": calm(3, Fault(10.0, Kind.KILL_AGENT, 2)),
    "a spare takes over": calm(3, Fault(10.0, Kind.KILL_AGENT, 1), most=2),
    "the head dies": calm(3, Fault(10.0, Kind.KILL_AGENT, 0)),
    "the head is cut off and returns": calm(
        3, Fault(10.0, Kind.CUT, 0, lasts=15.0), grow=Grow.CHECKPOINT
    ),
    "one head after the other": calm(
        4, *(Fault(8.0 * (i + 1), Kind.KILL_AGENT, i) for i in range(3))
    ),
    "a partition heals": calm(
        5, Fault(10.0, Kind.PARTITION, 0, lasts=12.0, groups=(0, 0, 1, 1, 1)), grow=Grow.NOW
    ),
    "two halves": calm(
        4, Fault(10.0, Kind.PARTITION, 0, lasts=12.0, groups=(0, 0, 1, 1)), grow=Grow.NOW
    ),
    # Its fork server is killed as well, so that nobody can say that it was dead.
    "the head of two is started again": calm(
        2, Fault(10.0, Kind.RESTART_AGENT, 0, lasts=2.0), timing=Timing(stuck=1.0, join=90.0)
    ),
    "a node returns": calm(3, Fault(10.0, Kind.CUT, 2, lasts=15.0), grow=Grow.NOW),
}

_STARTS = re.compile(
    r"agent (\d+) -> StartWorkers\(.*?round=(\d+), .*?first_rank=(\d+), nproc=(\d+), "
    r"world_size=(\d+)"
)
_SAYS = re.compile(r"agent (\d+) says: (.*)")
_FAULT = re.compile(r"agent (\d+): (.*)")


def transcript_of(plan: Plan) -> list[str]:
    """Return the lines of one story; raise an exception if a law was broken in it."""
    sim = Simulation(plan, record=True)
    sim.run()
    lines = []
    for entry in sim.transcript:
        when, text = entry[:10].strip(), entry[12:]
        if fault := _FAULT.fullmatch(text):
            what = Kind[fault[2].split()[0]].value
            lines.append(f"{float(when):6.2f} s  ! n{int(fault[1]) + 1}: {what}")
        elif says := _SAYS.match(text):
            lines.append(f"{float(when):6.2f} s    n{int(says[1]) + 1} says: {says[2]}")
        elif starts := _STARTS.match(text):
            agent, number, first, nproc, world = map(int, starts.groups())
            ranks = f"ranks {first} to {first + nproc - 1} of {world}"
            lines.append(f"{float(when):6.2f} s    n{agent + 1} starts {ranks} in round {number}")
        elif "LeaseOver()" in text and "<-" in text:
            agent = int(text.split()[1])
            lines.append(f"{float(when):6.2f} s    n{agent + 1} holds its workers: no lease")
    codes = {f"n{a.index + 1}": a.verdict.code for a in sim.agents if a.verdict is not None}
    return [*lines, f"{sim.now:6.2f} s    the end; exit codes {codes}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STORIES)}")
    names = parser.parse_args().names
    if unknown := set(names) - STORIES.keys():
        parser.error(f"no story {', '.join(sorted(unknown))}")
    for name in names or STORIES:
        print(f"{name}\n" + "\n".join(transcript_of(STORIES[name])) + "\n")


if __name__ == "__main__":
    main()
