"""Thirty random faults in one job, which comes to the right result: `make soak`.

HPCLAUNCH_SOAK_SEED chooses the faults; the seed of a run is printed at its beginning. Not one of
the ordinary tests, since it takes several minutes.
"""
# ruff: noqa: T201 -- it tells what it does

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

from .cluster import Cluster, eventually
from .conftest import AGENT, FORK_SERVER, WORKER, Launch
from .test_surroundings import ELASTIC, expected

FAULTS = 30
EPOCHS = 600


class Faults:
    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.kinds = (self.worker, self.fork_server, self.stop, self.cut, self.cut, self.blip)

    def strike(self) -> str:
        host = self.rng.choice(list(self.cluster.nodes))
        return f"{host}: {self.rng.choice(self.kinds)(host)}"

    def worker(self, host: str) -> str:
        found = self.cluster.processes(WORKER, host=host)
        for process in found[:1]:
            process.kill()
        return f"{len(found[:1])} worker killed"

    def fork_server(self, host: str) -> str:
        for process in self.cluster.processes(FORK_SERVER, host=host):
            process.kill()
        return "fork server killed"

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

    def blip(self, host: str) -> str:
        with self.cluster.nodes[host].without_network():
            time.sleep(0.2)
        return "no network for a moment"


def newest(directory: Path) -> int:
    return max((int(p.stem.partition("-")[2]) for p in directory.glob("epoch-*.pt")), default=-1)


def test_thirty_faults(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    seed = int(os.environ.get("HPCLAUNCH_SOAK_SEED", random.randrange(10000)))
    print(f"\nHPCLAUNCH_SOAK_SEED={seed}")
    faults = Faults(cluster, random.Random(seed))
    saved = tmp_path / "saved"
    options = ("--nproc", 1, "--nnodes", "2:3", "--max-restarts", 100, "--checkpoint-dir", saved)
    job = launch(*options, ELASTIC, "--dir", saved, "--epochs", EPOCHS)
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
    assert ended.code == 0, str(ended)
    assert re.findall(r"^final (\d+)$", ended.output, re.MULTILINE) == [expected(EPOCHS)]
    print(f"the right result; {most} s at most from the end of a fault to the next checkpoint")
