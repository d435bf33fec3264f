"""Training on all nodes that continues through all faults until the test ends it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

from .cluster import Cluster, JobResult, eventually
from .conftest import SCRIPTS
from .stand_in_gpus import Gpus
from .training import ELASTIC, expected, newest, saves

PATIENCE = 180  # seconds for each thing that must happen, even on a busy machine


class Endless:
    """A training that starts at once in its own `directory`, and whose agents can be restarted.

    Each node has a GPU with MPS, which the workers do not use.
    """

    def __init__(self, cluster: Cluster, directory: Path, workers: int = 1) -> None:
        """`workers` is the number per node."""
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

    def wait_for_progress(self, epochs: int) -> None:
        """Wait until so many more epochs are saved."""
        wanted = newest(self.saved) + epochs
        eventually("progress", lambda: newest(self.saved) >= wanted, PATIENCE)

    def wait_for_all_nodes(self) -> None:
        """Wait until all nodes take part in an epoch."""
        self.wait_for_progress(2)  # after the second, the first is recorded in `writers`
        world = self._workers * len(self.cluster.nodes)
        eventually("all nodes", lambda: saves(self.saved)[-1][2] == world, PATIENCE)

    def end(self) -> JobResult:
        self._over.touch()
        return self.job.wait(PATIENCE)

    def problems(self, ended: JobResult) -> list[str]:
        """Return all faults of the result, as text."""
        found = []
        codes = {host: self.job.codes.get(task) for task, host in enumerate(self.cluster.nodes)}
        if any(code != 0 for code in codes.values()):
            found.append(f"the agents' exit codes are {codes}")
        times = Counter(epoch for epoch, _, _ in saves(self.saved))
        if twice := [epoch for epoch, number in times.items() if number > 1]:
            found.append(f"epochs {twice} were saved more than once")
        epochs = newest(self.saved) + 1
        # A worker may have been killed after it saved an epoch and before it recorded that.
        is_saved = [epoch in times or self.file(epoch).exists() for epoch in range(epochs)]
        if not all(is_saved):
            found.append(f"epochs {[e for e in range(epochs) if not is_saved[e]]} were not saved")
        result = re.findall(r"^final (\d+)$", ended.output, re.MULTILINE)
        if result != [expected(epochs)]:
            found.append(f"the result is {result}, but should be {expected(epochs)}")
        if left := self._gpus.left():
            found.append(f"files of MPS are left: {left}")
        return found

    def file(self, epoch: int) -> Path:
        return self.saved / f"epoch-{epoch}.pt"
