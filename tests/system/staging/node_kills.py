"""Kill nodes of a launch at random moments while a script saves, and compare every byte.

Each node is a real stager; they reach each other over sockets. Some nodes come back with nothing.

python tests/system/staging/node_kills.py [--seconds 60] [--nodes 3] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "checkpoints"), str(HERE.parents[2] / "launcher")]

from random_kills import wait_for  # noqa: E402
from saving_scripts import digest, write  # noqa: E402
from test_led_stagers import Stagers  # noqa: E402

from hpclaunch.system.staging import messages  # noqa: E402
from hpclaunch.system.staging.client import StagingClient  # noqa: E402

KEEPS = 2  # checkpoints that the script keeps
SIZES = 10, 3 << 20  # bytes beside the weights, so that some files are larger than in the view


class Job:
    """A job whose first rank moves from node to node, and saves step after step."""

    def __init__(self, scratch: Path, number: int, rng: random.Random) -> None:
        self.nodes, self._number, self._rng = Stagers(scratch, number), number, rng
        self._leader = self._step = self._promised = 0  # the newest step that was drained
        self._saved: dict[int, str] = {}  # hashes, by step
        self.restores = self.kills = self.fetched = 0

    def _steps(self, index: int) -> dict[int, Path]:
        """Return the checkpoints in the memory of a node."""
        return _steps(self.nodes.stage(index))

    def restore(self) -> StagingClient:
        """Let all nodes have the newest checkpoint, and check what they have got."""
        client = self.nodes.lead(self._leader)
        self.restores += 1
        client.restore(self.restores, nodes=tuple(sorted(self.nodes.living)))
        restored = wait_for(client, messages.Restored)
        assert isinstance(restored, messages.Restored), "the stager that leads was lost"
        self.fetched += restored.fetched > 0
        newest = {max(self._steps(index), default=0) for index in self.nodes.living}
        assert len(newest) == 1, f"the nodes resume from several steps: {newest}"
        (begun,) = newest
        assert begun >= self._promised, f"step {begun} is older than {self._promised}"
        for index in self.nodes.living:
            self._check(self._steps(index))
        self._step = max(self._step, begun)
        return client

    def train(self, client: StagingClient) -> None:
        """Save on one node for some time."""
        stage = self.nodes.stage(self._rng.choice(sorted(self.nodes.living)))
        until = time.monotonic() + self._rng.uniform(0.3, 4)
        while time.monotonic() < until:
            self._step += 1
            path = stage / f"step-{self._step}.pt"
            write(path, self._step, more=os.urandom(self._rng.choice(SIZES)))
            self._saved[self._step] = digest(path)
            for _, old in sorted(_steps(stage).items())[:-KEEPS]:
                old.unlink()
            time.sleep(self._rng.uniform(0.05, 1.5))
            for reply in client.replies():
                if isinstance(reply, messages.Drained):
                    self._promised = max(self._promised, reply.step or 0)

    def strike(self) -> None:
        """Kill some nodes, and let some come back."""
        nodes, rng = self.nodes, self._rng
        most = min(len(nodes.living) - 1, rng.choice((0, 1, 1, 1, 2)))
        for index in rng.sample(sorted(nodes.living), most):
            nodes.lose(index)
            self.kills += 1
        if self._leader not in nodes.living:
            self._leader = rng.choice(sorted(nodes.living))
        if rng.random() < 0.7:
            for index in set(range(self._number)) - nodes.living:
                nodes.join(index)

    def flush(self) -> None:
        client = self.nodes.lead(self._leader)
        client.flush(1)
        assert wait_for(client, messages.Flushed) == messages.Flushed(1, (), "")
        self._check(found := _steps(self.nodes.storage))
        assert max(found, default=0) >= self._promised, "storage went back"

    def _check(self, found: dict[int, Path]) -> None:
        for step, path in found.items():
            assert digest(path) == self._saved[step], f"{path} has wrong bytes"

    def __str__(self) -> str:
        return (
            f"{self.kills} nodes killed in {self._step} steps; {self.fetched} of {self.restores} "
            "restores have fetched something; nothing torn or lost"
        )


def _steps(root: Path) -> dict[int, Path]:
    found = ((re.fullmatch(r"step-(\d+)\.pt", path.name), path) for path in root.iterdir())
    return {int(match[1]): path for match, path in found if match}


def run(seconds: float, number: int, seed: int) -> str:
    """Strike for some time. Raise AssertionError if anything is torn or lost."""
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm"))
    job = Job(scratch, number, random.Random(seed))
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            job.train(job.restore())
            job.strike()
        job.flush()
    finally:
        job.nodes.close()
        shutil.rmtree(scratch)
    return str(job)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options = parser.parse_args()
    try:
        print(run(options.seconds, options.nodes, options.seed))
    except AssertionError as e:
        print(f"FAILED with --seed {options.seed}: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
