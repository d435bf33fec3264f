"""Training on all nodes that goes on until it is told to end, whatever strikes it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

from .cluster import Cluster, Ended, eventually
from .conftest import SCRIPTS
from .stand_in_gpus import Gpus
from .training import ELASTIC, expected, newest, saves

PATIENCE = 180  # seconds for anything that must come in the end, however busy this machine is


class Endless:
    """It begins at once. `directory` is its own; agents that are killed can be started anew.

    Each node has a GPU with MPS, which its workers do not use.
    """

    def __init__(self, cluster: Cluster, directory: Path, workers: int = 1) -> None:
        """`workers` are those of one node."""
        self.cluster = cluster
        self.saved, self.logs = directory / "saved", directory / "logs"
        self._over = directory / "over"
        self._workers = workers
        for path in (self.saved, self.logs):
            path.mkdir()
        self._gpus = Gpus(cluster, directory, Path(mkdtemp(prefix="gpu-", dir=cluster.directory)))
        nnodes = f"1:{len(cluster.nodes)}"
        options = ["--nproc", workers, "--nnodes", nnodes, "--grow", "now", "--max-restarts", 100]
        options += ["--wait-for-nodes", PATIENCE, "--mps", "on", "--log-dir", self.logs]
        script = [ELASTIC, "--dir", self.saved, "--until", self._over]
        self.job = self._gpus.launch(
            *options,
            "--checkpoint-dir",
            self.saved,
            *script,
            gres="gpu:1",
            srun=f"--no-kill {SCRIPTS}/again.sh",
            nodes=len(cluster.nodes),
            options=["--no-kill"],
        )

    def progress(self, epochs: int) -> None:
        """Wait until so many more are saved."""
        wanted = newest(self.saved) + epochs
        eventually("progress", lambda: newest(self.saved) >= wanted, PATIENCE)

    def all_take_part(self) -> None:
        """Wait until all nodes do."""
        self.progress(2)  # so the first of them is noted
        world = self._workers * len(self.cluster.nodes)
        eventually("all nodes", lambda: saves(self.saved)[-1][2] == world, PATIENCE)

    def end(self) -> Ended:
        self._over.touch()
        return self.job.wait(PATIENCE)

    def wrong(self, ended: Ended) -> list[str]:
        """What is, in words."""
        found = []
        codes = {host: self.job.codes.get(task) for task, host in enumerate(self.cluster.nodes)}
        if any(code != 0 for code in codes.values()):
            found.append(f"the agents' exit codes are {codes}")
        times = Counter(epoch for epoch, _, _ in saves(self.saved))
        if twice := [epoch for epoch, number in times.items() if number > 1]:
            found.append(f"epochs {twice} were saved more than once")
        epochs = newest(self.saved) + 1
        # A worker may have been killed when it had saved an epoch, and not noted that yet.
        there = [epoch in times or self.file(epoch).exists() for epoch in range(epochs)]
        if not all(there):
            found.append(f"epochs {[e for e in range(epochs) if not there[e]]} were not saved")
        said = re.findall(r"^final (\d+)$", ended.output, re.MULTILINE)
        if said != [expected(epochs)]:
            found.append(f"the result is {said}, and {expected(epochs)} is right")
        if left := self._gpus.left():
            found.append(f"of MPS there are still {left}")
        return found

    def file(self, epoch: int) -> Path:
        return self.saved / f"epoch-{epoch}.pt"
