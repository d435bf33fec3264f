"""Kill real stagers with SIGKILL at random moments while a script saves, and compare every byte.

python tests/system/staging/random_kills.py [SCRIPT...] [--kills 200] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "checkpoints"), str(HERE.parents[2] / "launcher")]

import saving_scripts  # noqa: E402
from kill_points import check_whole  # noqa: E402
from looking import newest  # noqa: E402
from saving_scripts import ROOT, SCRIPTS, picture  # noqa: E402

from hpclaunch.system.staging import messages  # noqa: E402
from hpclaunch.system.staging.client import StagingClient  # noqa: E402
from hpclaunch.system.staging.stage_directory import StageDirectory  # noqa: E402

LIMIT = 120.0  # seconds; far more than any of this takes


class Script(threading.Thread):
    """A script that saves in memory, step after step."""

    def __init__(self, name: str, stage: Path, rng: random.Random) -> None:
        super().__init__()
        self._save, self._stage, self._rng = SCRIPTS[name], stage, rng
        self.is_over = threading.Event()
        self.versions: list[dict[str, str]] = []
        self._saving = threading.Lock()

    def run(self) -> None:
        while not self.is_over.wait(self._rng.uniform(0, 0.2)):
            with self._saving:
                self._save(self._stage, len(self.versions) + 1)
                self.versions.append(picture(self._stage))

    def saved(self) -> list[dict[str, str]]:
        """Return all versions so far; the last one may have been drained before it was noted."""
        with self._saving:
            return list(self.versions)


def eventually(holds: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait until something holds."""
    until = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def wait_for(client: StagingClient, kind: type | tuple[type, ...], limit: float = LIMIT) -> object:
    """Return the next reply of a kind; None if the process is lost."""
    until, others = time.monotonic() + limit, list[object]()
    while time.monotonic() < until and not client.lost:
        if select.select([client], [], [], 0.1)[0]:
            for reply in client.replies():
                if isinstance(reply, kind):
                    return reply
                others.append(reply)
    assert client.lost, f"no {kind}, but {others}"
    return None


def run(name: str, kills: int, seed: int) -> str:
    """Kill so many stagers of one launch. Raise AssertionError if anything is torn or lost."""
    rng = random.Random(f"{seed} {name}")
    scratch = Path(tempfile.mkdtemp())
    storage = scratch / "storage" / ROOT.get(name, "ckpt")
    directory = StageDirectory("/dev/shm", str(storage))
    script = Script(name, Path(directory.path), rng)
    last = -1
    begun = 0

    def start() -> StagingClient:
        return StagingClient(
            messages.Settings(str(storage), directory.path, "launch", verify="structure")
        )

    client = start()
    script.start()
    try:
        for _ in range(kills):
            time.sleep(rng.uniform(0.1, 0.7))
            os.kill(client._process.pid, signal.SIGKILL)
            wait_for(client, type(None))
            client.close()
            begun += any(n.name.startswith(".hpclaunch-draft") for n in _listed(storage))
            if last >= 0 or newest(storage)[0]:  # else the first drain was not finished
                now = check_whole(storage, *script.saved())
                assert now >= last, f"storage went back from step {last + 1} to {now + 1}"
                last = now
            client = start()
        script.is_over.set()
        script.join()
        client.send(messages.Flush(1))
        flushed = wait_for(client, messages.Flushed)
        assert flushed == messages.Flushed(1, (), ""), flushed
        differing = {*picture(storage).items()} ^ {*picture(Path(directory.path)).items()}
        assert not differing, f"these files differ in the end: {sorted(differing)}"
        left = [path.name for path in storage.rglob("*") if "hpclaunch" in path.name]
        assert not left, left
    finally:
        script.is_over.set()
        script.join()
        client.close()
        directory.remove()
    shutil.rmtree(scratch)
    steps = len(script.versions)
    return f"{kills} kills in {steps} steps, {begun} of them during a drain; nothing torn or lost"


def _listed(storage: Path) -> list[Path]:
    return list(storage.iterdir()) if storage.is_dir() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help=", ".join(SCRIPTS))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options = parser.parse_args()
    saving_scripts.SIZE = 2_000_000
    failed = 0
    for name in options.names or SCRIPTS:
        try:
            said = run(name, options.kills, options.seed)
        except AssertionError as e:
            failed += 1
            said = f"FAILED with --seed {options.seed}: {e}"
        print(f"{name}: {said}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
