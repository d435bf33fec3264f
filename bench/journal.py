"""Measure the cost of the journal for the head of a training job: CPU time and bytes in the file.

    python bench/journal.py [--agents 2 1000] [--seconds 300]

The agents' cores are real; their clock is simulated, and there are no processes and no network. The
journal of the head is written as in a real agent. At the end, one agent is lost.
"""

import argparse
import heapq
import time
from collections.abc import Callable
from typing import Any

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.model import HEAD, Job, Place
from hpclaunch.system.logs.journal import Recorder

DELAY = 0.0002  # seconds until a message arrives


class Cluster:
    def __init__(self, agents: int) -> None:
        job = Job(tuple(Place(i, i, f"n{i}") for i in range(agents)), fewest=1)
        self.now = 1000.0
        self._queue: list[tuple[float, int, int, events.Event | None]] = []
        self._count = 0
        self.written = self.events = 0
        self.spent = self.slowest = 0.0
        self.recorder = Recorder(self._count_bytes)
        starts = [AgentStart(job, i, 8, "10.0.0.1", f"a{i}") for i in range(agents)]
        self.cores = {i: Control(start) for i, start in enumerate(starts)}
        self.recorder.began(starts[HEAD], self.now)
        for index in range(agents):
            self._later(index / agents, index, events.Started())

    def _count_bytes(self, line: bytes) -> None:
        self.written += len(line)

    def _later(self, seconds: float, index: int, event: events.Event | None) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, index, event))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] < end:
            self.now, _, index, event = heapq.heappop(self._queue)
            core = self.cores.get(index)
            if core is None or (event is None and self.now < core.next_deadline()):
                continue
            self._deliver(index, core, event or events.Tick())

    def _deliver(self, index: int, core: Control, event: events.Event) -> None:
        if index == HEAD:
            self.events += 1
            self._timed(lambda: self.recorder.event(event, self.now))
        requested = core.handle(event, self.now)
        if index == HEAD:
            self._timed(lambda: self.recorder.effects(requested, core))
        for effect in requested:
            self._perform(index, effect)
        self._later(max(0.0, core.next_deadline() - self.now) + 0.001, index, None)

    def _timed(self, act: Callable[[], Any]) -> None:
        began = time.thread_time()
        act()
        took = time.thread_time() - began
        self.spent += took
        self.slowest = max(self.slowest, took)

    def _perform(self, index: int, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(to=to, message=message):
                self._later(DELAY, to, events.Received(index, message, "10.0.0.1"))
            case effects.OpenStore():
                self._later(DELAY, index, events.StoreListening(40000))
            case effects.ChooseCheckpoint(number=number):
                self._later(DELAY, index, events.CheckpointChosen("", number=number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[2, 1000])
    parser.add_argument("--seconds", type=float, default=300.0)
    args = parser.parse_args()
    for agents in args.agents:
        cluster = Cluster(agents)
        cluster.run(150.0)  # until the start of the job is written and only beats follow
        written = cluster.written
        cluster.events = 0
        cluster.spent = cluster.slowest = 0.0
        cluster.run(args.seconds)
        hourly = 3600 / args.seconds
        print(
            f"{agents} agents: {cluster.events / args.seconds:,.0f} events/s; "
            f"{1e6 * cluster.spent / cluster.events:.1f} us of CPU each, "
            f"{cluster.spent / args.seconds:.2%} of a core; the slowest "
            f"{1000 * cluster.slowest:.1f} ms; in the file {written / 1000:,.0f} kB for the start, "
            f"then {(cluster.written - written) * hourly:.0f} B/h"
        )
        before = cluster.written
        del cluster.cores[agents - 1]
        cluster.run(10.0)
        print(f"  loss of an agent: {(cluster.written - before) / 1000:,.0f} kB in the file")


if __name__ == "__main__":
    main()
