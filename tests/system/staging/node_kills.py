"""Kill nodes of a launch at random moments while a script saves, and compare every byte.

Each node is a real stager; they reach each other over sockets. Some nodes come back with nothing.
The time is shared by scripts that save under new names or under one name, each in a new launch.

python tests/system/staging/node_kills.py [--seconds 60] [--nodes 3] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
sys.path[:0] = map(str, (HERE, HERE.parent / "checkpoints", TESTS, TESTS.parent / "launcher"))

from looking import newest  # noqa: E402
from random_kills import wait_for  # noqa: E402
from saving_scripts import digest, picture, write  # noqa: E402
from test_led_stagers import Stagers  # noqa: E402

from hpclaunch.system.staging import messages  # noqa: E402
from hpclaunch.system.staging.client import StagingClient  # noqa: E402

KEEPS = 2  # checkpoints that the script keeps
SIZES = 10, 3 << 20  # bytes beside the weights, so that some files are larger than in the view
File = tuple[str, str]  # name and hash
Files = dict[str, str]  # hashes, by name
T = TypeVar("T")


class Script:
    """A script that saves on one or all nodes. `saved` has every checkpoint and its step, and
    `written` every file, also those of saves that were cut short.
    """

    may_mix = False  # whether files of a cut save may be left beside those of an earlier one

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.saved: list[tuple[int, Files]] = []
        self.written: set[File] = set()

    def begin(self, stages: list[Path]) -> None:
        """Begin a round on these nodes. The first one has the first rank."""
        self._stages = stages

    def save(self, step: int) -> None:
        """Save on the node of the first rank."""
        raise NotImplementedError

    def cut_short(self, step: int) -> None:
        """Begin a save, and leave it unfinished."""

    def _write(self, name: str, step: int) -> Path:
        path = self._stages[0] / name
        write(path, step, more=os.urandom(self._rng.choice(SIZES)))
        self._add(step, {name: digest(path)})
        return path

    def _add(self, step: int, files: Files) -> None:
        self.saved.append((step, files))
        self.written.update(files.items())


class NewNames(Script):
    """A script that saves under new names, and deletes older checkpoints."""

    def save(self, step: int) -> None:
        self._write(f"step-{step}.pt", step)
        for old in sorted(self._stages[0].glob("step-*.pt"), key=_number)[:-KEEPS]:
            old.unlink()


class OneName(Script):
    """A script that replaces its only checkpoint."""

    def save(self, step: int) -> None:
        self._write("snapshot.pt", step)


class LastBeside(NewNames):
    """A script that saves under new names, and replaces a copy of the last one."""

    def save(self, step: int) -> None:
        super().save(step)
        last = self._stages[0] / "last.pt"
        shutil.copyfile(self._stages[0] / f"step-{step}.pt", new := last.with_suffix(".tmp"))
        new.replace(last)
        self._add(step, {last.name: digest(last)})


class Shards(Script):
    """A script that saves with torch.distributed.checkpoint into one directory: each node writes a
    shard over the one before, then the first rank writes the metadata.
    """

    may_mix = True

    def save(self, step: int, most: int | None = None) -> None:
        """Save, or write only some of the files."""
        made = self._stages[0].parent / "made.tmp"
        _dcp(made, step, len(self._stages), self._rng.choice(SIZES))
        files = {f"last/{name}": each for name, each in picture(made).items()}
        names = sorted(files, reverse=True)  # the metadata comes last, on the first node
        # Shards may be 2 s newer than their metadata, and these saves are not so far apart.
        (self._stages[0] / "last" / ".metadata").unlink(missing_ok=True)
        for at, name in enumerate(names[:most]):
            stage = self._stages[(at + 1 - len(names)) % len(self._stages)]
            (stage / "last").mkdir(exist_ok=True)
            shutil.copyfile(made / Path(name).name, stage / name)
        self.written.update(files.items())
        if most is None:
            self._add(step, files)
        shutil.rmtree(made)

    def cut_short(self, step: int) -> None:
        self.save(step, self._rng.randint(0, len(self._stages)))


SCRIPTS = NewNames, OneName, LastBeside, Shards


class Job:
    """A job whose first rank moves from node to node, and saves step after step."""

    def __init__(self, scratch: Path, number: int, rng: random.Random, script: Script) -> None:
        self.nodes, self._number, self._rng = Stagers(scratch, number), number, rng
        self._script = script
        self._leader = self._step = 0
        self._drained = self._promised = 0  # the newest steps on storage, and there or kept
        self.restores = self.kills = self.fetched = self.from_memory = self.from_storage = 0

    def restore(self) -> StagingClient:
        """Let all nodes have the newest checkpoint, and check what they have got."""
        client = self.nodes.lead(self._leader)
        self.restores += 1
        client.send(messages.Restore(self.restores, nodes=tuple(sorted(self.nodes.living))))
        restored = wait_for(client, (messages.Restored, messages.Refused))
        assert isinstance(restored, messages.Restored), restored or "the leading stager was lost"
        self.fetched += restored.fetched > 0
        newest = {self._newest(self.nodes.stage(index)) for index in self.nodes.living}
        assert len(newest) == 1, f"the nodes resume from several steps: {newest}"
        (begun,) = newest
        assert begun >= self._promised, f"step {begun} is older than {self._promised}"
        self.from_storage += restored.path != ""
        self.from_memory += begun > 0 and not restored.path
        self._step = max(self._step, begun)
        return client

    def train(self, client: StagingClient) -> None:
        """Save for some time."""
        self._round = self._rng.sample(sorted(self.nodes.living), len(self.nodes.living))
        self._script.begin([self.nodes.stage(index) for index in self._round])
        until = time.monotonic() + self._rng.uniform(0.3, 4)
        while time.monotonic() < until:
            self._step += 1
            self._script.save(self._step)
            time.sleep(self._rng.uniform(0.05, 1.5))
            # A stager may have nothing to say: it does not copy a mixture of two saves.
            while select.select([client.fileno()], (), (), 0)[0] and not client.lost:
                for reply in client.replies():
                    if isinstance(reply, messages.Drained):
                        self._drained = max(self._drained, reply.step or 0)
        if self._rng.random() < 0.3:
            self._step += 1
            self._script.cut_short(self._step)

    def strike(self) -> None:
        """Kill some nodes, often the first rank's with its buddy. Let some come back."""
        nodes, rng = self.nodes, self._rng
        first = self._round[0]
        from_first = sorted(nodes.living, key=lambda index: (index < first, index))
        anywhere = rng.sample(from_first, len(from_first))
        most = min(len(nodes.living) - 1, rng.choice((0, 1, 1, 2)))
        for index in rng.choice((from_first, anywhere))[:most]:
            nodes.lose(index)
            self.kills += 1
        self._drained = max(self._drained, self._stored())
        self._promised = max(self._drained, _steady(self._kept))
        if self._leader not in nodes.living:
            self._leader = rng.choice(sorted(nodes.living))
        if rng.random() < 0.7:
            for index in set(range(self._number)) - nodes.living:
                nodes.join(index)

    def flush(self) -> None:
        client = self.nodes.lead(self._leader)
        client.send(messages.Flush(1))
        flushed = wait_for(client, messages.Flushed)
        assert isinstance(flushed, messages.Flushed), "the leading stager was lost"
        assert not flushed.missing, flushed
        assert self._script.may_mix or not flushed.unusable, flushed
        assert self._newest(self.nodes.storage) >= self._promised, "storage went back"

    def _stored(self) -> int:
        """Return the newest step on storage, where each checkpoint must be whole."""
        files = _steady(lambda: self._checked(self.nodes.storage))
        return max((self._whole(files, key) for key in _keys(files)), default=0)

    def _kept(self) -> int:
        """Return the newest step that the living nodes keep, together with what they have saved."""
        stages = [self.nodes.stage(index) for index in self.nodes.living]
        saved = {file for stage in stages for file in self._checked(stage)}
        kept: dict[str, set[File]] = {}
        for stage in stages:
            for generation in stage.parent.glob("kept/*/manifest"):
                files = self._checked(generation.parent / "files")
                kept.setdefault(generation.parent.name, set()).update(files)
        return max((self._step_of(saved | files) for files in kept.values()), default=0)

    def _newest(self, root: Path) -> int:
        """Return the step of the checkpoint from which a worker would resume."""
        path = newest(root)[0]
        if not path:
            return 0
        return self._whole(self._checked(root), os.path.relpath(path, root))

    def _whole(self, files: set[File], key: str) -> int:
        """Return the step of a checkpoint, by its path."""
        step = self._step_of({each for each in files if key in _keys([each])})
        assert step, f"{key} has files of several saves"
        return step

    def _step_of(self, files: set[File]) -> int:
        return max((step for step, each in self._script.saved if each.items() <= files), default=0)

    def _checked(self, root: Path) -> set[File]:
        """Return all files with their hashes. Each must be as it was written once."""
        hidden = re.compile(r"\.hpclaunch|.*\.tmp$")
        found = {each for each in picture(root).items() if not hidden.match(each[0])}
        assert found <= self._script.written, (
            f"{root} has wrong bytes in {sorted(name for name, _ in found - self._script.written)}"
        )
        return found

    def __str__(self) -> str:
        return (
            f"{self.kills} nodes killed in {self._step} steps; {self.restores} restores, "
            f"{self.from_memory} from memory and {self.from_storage} from storage, "
            f"{self.fetched} of them between nodes; nothing torn, mixed or lost"
        )


def _steady(look: Callable[[], T]) -> T:
    """Return what two looks agree on, since stagers may be at work."""
    last: T | None = None
    while True:
        try:
            now = look()
        except FileNotFoundError:
            continue
        if now == last:
            return now
        last = now


def _keys(files: Iterable[File]) -> set[str]:
    """Return the paths of the checkpoints with these files."""
    return {name.partition("/")[0] for name, _ in files}


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _dcp(directory: Path, step: int, shards: int, size: int) -> None:
    import torch
    from torch.distributed import checkpoint

    state = {f"layer.{i}": torch.full((size // 4 + 1,), step + i / 100) for i in range(shards)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process
        writer = checkpoint.FileSystemWriter(directory, thread_count=shards)
        checkpoint.save(state, storage_writer=writer)


def run(seconds: float, number: int, seed: int, kind: type[Script]) -> str:
    """Strike for some time. Raise AssertionError if anything is torn, mixed or lost."""
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm"))
    rng = random.Random(f"{seed} {kind.__name__}")
    job = Job(scratch, number, rng, kind(rng))
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
    failed = 0
    for kind in SCRIPTS:
        try:
            said = run(options.seconds / len(SCRIPTS), options.nodes, options.seed, kind)
        except AssertionError as e:
            failed += 1
            said = f"FAILED with --seed {options.seed}: {e}"
        print(f"{kind.__name__}: {said}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
