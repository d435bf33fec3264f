"""Measure the CPU time of the head of a large job, and the size of its messages.

    python bench/head_scale.py [--agents 256 1024 4096]

The agents are simulated, one per node with 8 workers each, without processes and network. A round
is the time from the first report until all agents have their orders; a failure, from its report
until all have the orders of the next round; a beat, one report of each agent and its answer.
"""

import argparse
import time

from hpclaunch.core.head.head import Head
from hpclaunch.core.protocol.effects import ChooseCheckpoint, Effect, Send
from hpclaunch.core.protocol.events import CheckpointChosen, Received, Started, Tick
from hpclaunch.core.protocol.messages import Report
from hpclaunch.core.protocol.model import Job, Phase, Place, WorkerExit
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.network import wire

WORKERS = 8
BEATS = 4


class Cluster:
    def __init__(self, agents: int) -> None:
        self.head = Head(Job(tuple(Place(i, i, f"n{i}") for i in range(agents)), most=agents))
        self.reports = [
            Report(f"n{i}", f"a{i}", 0, WORKERS, "10.0.0.1", "", 4000, -1, Phase.IDLE, (), 0, None)
            for i in range(agents)
        ]
        self.heard = [-1] * agents  # the serial number of each agent's newest order
        self.versions = [-1] * agents  # of each agent's configuration
        self.now = 0.0
        self.bytes = 0
        self.search = 0  # the number of the newest checkpoint search
        self.handle(Started())

    def handle(self, event: object) -> list[Effect]:
        effects = self.head.handle(event, self.now)
        self.head.next_deadline()
        for effect in effects:
            if isinstance(effect, ChooseCheckpoint):
                self.search = effect.number
            if isinstance(effect, Send):
                self.bytes += len(wire.encode(effect.message))
                self.heard[effect.to] = effect.message.serial
                if effect.message.configuration is not None:
                    self.versions[effect.to] = effect.message.configuration.version
        return effects

    def report(self, **news: object) -> None:
        """Send a report of each agent to the head, with these fields changed."""
        self.now += 0.5
        for index, last in enumerate(self.reports):
            known = {"heard": self.heard[index], "version": self.versions[index]}
            report = replace(last, serial=last.serial + 1, **known, **news)
            self.reports[index] = report
            self.handle(Received(index, report))

    def start(self, number: int) -> None:
        self.handle(CheckpointChosen("", number=self.search))
        self.report(phase=Phase.RUNNING, round=number)


def cost(act: object) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[256, 1024, 4096])
    args = parser.parse_args()
    print(
        f"{'agents':>8}{'round':>12}{'failure':>12}{'beat':>12}{'CPU share':>12}{'bytes/beat':>14}"
    )
    for agents in args.agents:
        cluster = Cluster(agents)

        def begin(cluster: Cluster = cluster) -> None:
            cluster.report()
            cluster.start(0)

        def fail(cluster: Cluster = cluster) -> None:
            exits = (WorkerExit(0, 1, 0, 0.0, stopped=False, tail="oops"),)
            cluster.reports[0] = replace(cluster.reports[0], exits=exits)
            cluster.report(phase=Phase.STOPPING)
            cluster.report(phase=Phase.IDLE)
            cluster.start(1)
            assert cluster.head.state.round == 1, "the failure leads to another round"

        agreed = cost(begin)
        cluster.bytes = 0
        beats = cost(lambda c=cluster: [(c.report(), c.handle(Tick())) for _ in range(BEATS)])
        size = cluster.bytes / BEATS
        failed = cost(fail)
        share = beats / BEATS / cluster.head.timing.beat
        print(
            f"{agents:8}{agreed:10.3f} s{failed:10.3f} s{beats / BEATS:10.3f} s{share:11.1%}"
            f"{size:14,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
