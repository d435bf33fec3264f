"""Thirty random faults in one job, which comes to the right result: `make soak`.

HPCLAUNCH_SOAK_SEED chooses the faults; the seed of a run is printed at its beginning. Not one of
the ordinary tests, since it takes several minutes.
"""
# ruff: noqa: T201 -- it tells what it does

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import AGENT, FORK_SERVER, WORKER, Launch, cluster_of
from .training import ELASTIC, assert_right, writers

NODES = 6
DEATHS = 3  # of agents: whoever is left makes do
FAULTS = 30
TEMPLATE = r"\(template\)"
EPOCHS = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_of(NODES) as it:
        yield it


class Faults:
    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.kinds = [self.worker, self.fork_server, self.template, self.stop, self.agent]
        self.kinds += [self.cut, self.parts, self.blip]
        self.deaths = 0

    def strike(self) -> str:
        there = [h for h in self.cluster.nodes if self.cluster.processes(AGENT, host=h)]
        host = self.rng.choice(there)
        return f"{host}: {self.rng.choice(self.kinds)(host)}"

    def agent(self, host: str) -> str:
        self.deaths += 1
        if self.deaths == DEATHS:
            self.kinds.remove(self.agent)
        for process in self.cluster.processes(AGENT, host=host):
            process.kill()
        return "agent killed"

    def worker(self, host: str) -> str:
        found = self.cluster.processes(WORKER, host=host)
        for process in found[:1]:
            process.kill()
        return f"{len(found[:1])} worker killed"

    def fork_server(self, host: str) -> str:
        for process in self.cluster.processes(FORK_SERVER, host=host):
            process.kill()
        return "fork server killed"

    def template(self, host: str) -> str:
        """The youngest of this name is the round's store, on the node that has it."""
        found = sorted(self.cluster.processes(TEMPLATE, host=host), key=lambda p: p.pid)
        for process in found[-1:]:
            process.kill()
        return f"{len(found[-1:])} template or store killed"

    def stop(self, host: str) -> str:
        lasts = self.rng.uniform(0.5, 8.0)
        agents = self.cluster.processes(AGENT, host=host)
        for agent in agents:
            agent.kill(signal.SIGSTOP)
        time.sleep(lasts)
        for agent in agents:
            agent.kill(signal.SIGCONT)
        return f"agent stopped for {lasts:.1f} s"

    def cut(self, host: str) -> str:
        lasts = self.rng.uniform(0.5, 10.0)
        with self.cluster.nodes[host].without_network():
            time.sleep(lasts)
        return f"no network for {lasts:.1f} s"

    def parts(self, host: str) -> str:
        lasts = self.rng.uniform(0.5, 10.0)
        others = [name for name in self.cluster.nodes if name != host]
        away = [host, *self.rng.sample(others, self.rng.randrange(1, len(others)))]
        with self.cluster.parted(away):
            time.sleep(lasts)
        return f"with {', '.join(away[1:])} without the rest for {lasts:.1f} s"

    def blip(self, host: str) -> str:
        with self.cluster.nodes[host].without_network():
            time.sleep(0.2)
        return "no network for a moment"


def newest(directory: Path) -> int:
    return max((int(p.stem.partition("-")[2]) for p in directory.glob("epoch-*.pt")), default=-1)


@pytest.mark.timeout(1800)
def test_thirty_faults(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    seed = int(os.environ.get("HPCLAUNCH_SOAK_SEED", random.randrange(10000)))
    print(f"\nHPCLAUNCH_SOAK_SEED={seed}")
    faults = Faults(cluster, random.Random(seed))
    saved = tmp_path / "saved"
    options = ("--nproc", 1, "--nnodes", f"1:{NODES}", "--max-restarts", 100)
    training = ("--checkpoint-dir", saved, ELASTIC, "--dir", saved, "--epochs", EPOCHS)
    job = launch(*options, *training, nodes=NODES)
    most = 0
    for number in range(FAULTS):
        at = newest(saved)
        eventually("progress", lambda at=at: newest(saved) >= at + 2, timeout=120)  # type: ignore[misc]
        before = newest(saved)
        what = faults.strike()
        print(f"{number + 1:3}. after epoch {before}: {what}", flush=True)
        went = time.monotonic()
        eventually("a checkpoint", lambda at=before: newest(saved) > at, timeout=120)  # type: ignore[misc]
        most = max(most, round(time.monotonic() - went))
    ended = job.wait(timeout=EPOCHS)
    codes = list(job.codes.values())
    assert codes.count(0) == NODES - faults.deaths, str(ended)
    assert [epoch for epoch, _ in writers(saved)] == list(range(EPOCHS)), str(ended)
    assert_right(ended, EPOCHS)
    print(f"the right result, every epoch saved once, by {sorted({h for _, h in writers(saved)})}")
    print(f"{most} s at most from the end of a fault to the next checkpoint")
