"""Compare a training that saves on slow storage with one that saves in memory (--stage).

    python bench/staging.py [--only saves sharded trainer goodput] [--size 1000] [--saves 3]
        [--kills 2] [--ranks 4] [--minutes 5] [--fault-every 60] [--rate 100] [--latency 20]

All of it takes about 35 minutes. Each row runs hpclaunch on this machine with the same script,
saving_worker.py. The storage is that of slow_storage.py. In the first table, one row is one launch,
and figures are medians:

  stall        from the begin of a save to the next step
  steps        duration of the steps while the checkpoint is on its way to storage, compared to
               that of the others
  on storage   from the begin of a save until the checkpoint is on storage
  restart      from SIGKILL of one worker to the end of the first step after it, once the newest
               checkpoint is on storage

DCP's async_save without --stage is the peer: it copies the state within the worker, and writes it
in a thread. The second table is the goodput: the share of time in steps that counted, in a job of
which a worker is killed once a --fault-every, with a save every 10 s with --stage, and every 60 s
without. The storage does not cache what was written: a restart without --stage reads from it.
"""

import argparse
import importlib.util
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import measuring
from measuring import HPCLAUNCH, Run, command, median, running
from slow_storage import add_options, slow_storage, why_not

WORKER = Path(__file__).parent / "saving_worker.py"
STAGE = "--stage"
STEP = re.compile(r"(?:step|checkpoint)-(\d+)")
SHORT, LONG = 10.0, 60.0  # seconds between saves with --stage, and without, of the second table


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    how: str  # see saving_worker.py
    ranks: int = 1
    stages: bool = False

    @property
    def title(self) -> str:
        return f"{self.name} {STAGE}" if self.stages else self.name


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Events:
    """The events of rank 0, and the checkpoints that the launcher has copied to storage."""

    rounds: list[list[Step]] = field(default_factory=list)
    saves: dict[float, int] = field(default_factory=dict)  # the step, by begin
    stored: dict[int, tuple[float, float]] = field(default_factory=dict)  # begin, end; by step

    @classmethod
    def read(cls, run: Run) -> "Events":
        found = cls()
        for path in sorted(run.directory.glob("events-0-*"), key=lambda p: int(p.name[9:])):
            found.rounds.append([])
            for line in path.read_text().splitlines():
                match json.loads(line):
                    case "step", number, began, ended:
                        found.rounds[-1].append(Step(number, began, ended))
                    case "save", number, began:
                        found.saves[began] = number
                    case "stored", number, ended:
                        found.stored[number] = found.began(number), ended
        for at, fact in facts(run):
            if fact["fact"] == "CheckpointStored" and (step := STEP.search(fact["path"])):
                found.stored[int(step[1])] = at - fact["seconds"], at
        return found

    def began(self, number: int) -> float:
        """Return when the newest save after this step began."""
        return max(began for began, step in self.saves.items() if step == number)

    def stalls(self) -> Iterator[float]:
        """Yield the time from each save to the next step of its round."""
        for began in self.saves:
            for steps in self.rounds:
                after = [s.began for s in steps if s.began >= began]
                if after and steps[0].began < began:
                    yield min(after) - began

    def slowdown(self) -> float:
        """Return the duration of steps while a checkpoint is copied, compared to the others."""
        slow, others = [], []
        for step in (s for steps in self.rounds for s in steps[1:]):
            is_slow = any(a < step.ended and step.began < b for a, b in self.stored.values())
            (slow if is_slow else others).append(step.seconds)
        return median(slow) / median(others)

    def delays(self) -> list[float]:
        """Return the times from the begin of a save until it was on storage."""
        known = {*self.saves.values()}
        return [end - self.began(n) for n, (_, end) in self.stored.items() if n in known]

    def counted(self) -> float:
        """Return the seconds of all steps, without those that a later round has repeated."""
        kept: dict[int, float] = {}
        for steps in self.rounds:
            if steps:
                kept = {n: seconds for n, seconds in kept.items() if n < steps[0].number}
                kept |= {s.number: s.seconds for s in steps}
        return sum(kept.values())


def facts(run: Run) -> Iterator[tuple[float, dict]]:
    """Yield the launcher's facts with their times, of CLOCK_MONOTONIC."""
    offset = time.time() - time.monotonic()
    for path in run.logs.glob("facts*.jsonl"):
        for line in path.read_text().splitlines():
            fact = json.loads(line)
            if "fact" in fact:
                yield fact["time"] - offset, fact


@contextmanager
def training(case: Case, where: Path, size: int, every: float) -> Iterator[Run]:
    """Start a training that saves in this directory, and end it."""
    more = ["--checkpoint-dir", str(where), *[STAGE] * case.stages]
    script = (WORKER, where, "--how", case.how, "--size", size, "--every", every)
    start = command(HPCLAUNCH, case.ranks, max_restarts=1000, more=more)
    where.mkdir()
    with running([start], case.ranks, script=script) as run:
        yield run
    shutil.rmtree(where)


def finish(run: Run, case: Case) -> None:
    """End the training, and print what went wrong."""
    ended = run.finish()
    if ended is None:
        return
    for launcher in run.launchers:
        if code := launcher.wait():
            print(f"  {case.title}: exit code {code}")
    for _, fact in facts(run):
        if fact["fact"] in ("StageRefused", "StoringFailed", "StageLost"):
            print(f"  {case.title}: {fact}")
        if fact["fact"] == "StageBegan" and os.path.exists(fact["directory"]):
            print(f"  {case.title}: {fact['directory']} is left in memory")


def wait_for(condition, seconds: float) -> bool:
    """Wait until this holds, but at most so many seconds; return whether it does."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def stored(run: Run, case: Case) -> int:
    """Return the number of checkpoints that this training has brought to storage so far."""
    events = Events.read(run)
    in_background = case.stages or case.how == "async"
    return len(events.stored) if in_background else len([*events.stalls()])


@dataclass
class Row:
    stalls: list[float] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)


def measure(case: Case, where: Path, args: argparse.Namespace) -> Row:
    """Run one training: some saves, then some kills."""
    row, writes = Row(), args.size / args.rate  # seconds, at least, that storage needs
    every = 2 + 4 * writes  # so that most steps are not beside a copy
    with training(case, where, args.size, every) as run:
        if run.wait_until_ready(run.began) is None:
            return row
        if not wait_for(lambda: stored(run, case) >= args.saves, args.saves * (60 + 2 * every)):
            print(f"  {case.title}: only {stored(run, case)} checkpoints are on storage")
        before = Events.read(run)
        for _ in range(args.kills):
            killed = run.kill_worker(case.ranks - 1)
            ready = run.wait_until_ready(killed)
            if ready is None:
                return row
            row.restarts.append(max(report.ready_at for report in ready) - killed)
            time.sleep(1)
        row.stalls = [*before.stalls()]
        row.slowdowns = [before.slowdown()]
        row.delays = before.delays() if before.stored else row.stalls
        finish(run, case)
    return row


def compare_saves(title: str, cases: Sequence[Case], storage: Path, args) -> None:
    print(f"\n{title}: {args.size} MB; medians of {args.saves} saves and {args.kills} restarts")
    print(f"{'':28}{'stall':>10}{'steps':>10}{'on storage':>14}{'restart':>12}", flush=True)
    rows = []
    for number, case in enumerate(cases):
        row = measure(case, storage / f"{case.how}-{number}", args)
        rows.append(row)
        slower = median(row.slowdowns)
        print(
            f"{case.title:28}{median(row.stalls):8.2f} s"
            + (f"{slower:8.2f} x" if slower == slower else f"{'-':>10}")
            + f"{median(row.delays):12.2f} s{median(row.restarts):10.2f} s",
            flush=True,
        )
    plain, staged = rows[0], rows[1]
    print(
        f"{'without / with ' + STAGE:28}{median(plain.stalls) / median(staged.stalls):10.1f}"
        f"{'':24}{median(plain.restarts) / median(staged.restarts):12.1f}",
        flush=True,
    )


def goodput(case: Case, where: Path, every: float, faults: list[float], args) -> tuple:
    """Run a training with a kill at each of these times after its first step.

    Return its goodput, the number of kills, and the seconds of steps that were repeated.
    """
    seconds = 60 * args.minutes
    with training(case, where, args.size, every) as run:
        first = run.wait_until_ready(run.began)
        if first is None:
            return float("nan"), 0, float("nan")
        began, kills = first[0].ready_at, 0
        for at in faults:
            time.sleep(max(0.0, began + at - time.monotonic()))
            kills += 1
            if run.wait_until_ready(run.kill_worker(0)) is None:
                return float("nan"), kills, float("nan")
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        ended, events = time.monotonic(), Events.read(run)
        finish(run, case)
    done = sum(step.seconds for steps in events.rounds for step in steps)
    counted = events.counted()
    return counted / (ended - began), kills, done - counted


def compare_goodput(storage: Path, args: argparse.Namespace) -> None:
    rng, faults = random.Random(args.seed), []
    at = args.fault_every * rng.uniform(0.5, 1)
    while at < 60 * args.minutes:
        faults.append(at)
        at += args.fault_every * rng.uniform(0.5, 1.5)
    scale = args.fault_every / 60
    print(
        f"\ngoodput: {args.size} MB; {args.minutes:g} min, a fault every {args.fault_every:g} s "
        f"(--seed {args.seed})\n{'':42}{'goodput':>10}{'faults':>8}{'repeated':>12}",
        flush=True,
    )
    for stages, every in ((False, LONG * scale), (True, SHORT * scale)):
        case = Case("torch.save", "torch", stages=stages)
        share, kills, lost = goodput(case, storage / f"goodput-{stages}", every, faults, args)
        title = f"{case.title}, every {every:g} s"
        print(f"{title:42}{share:10.1%}{kills:8}{lost:10.1f} s", flush=True)


def pair(name: str, how: str, ranks: int = 1) -> list[Case]:
    return [Case(name, how, ranks, stages) for stages in (False, True)]


def main() -> None:
    kinds = ("saves", "sharded", "trainer", "goodput")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--size", type=int, default=1000, help="MB of a checkpoint")
    parser.add_argument("--saves", type=int, default=3, help="of each row")
    parser.add_argument("--kills", type=int, default=2, help="of each row")
    parser.add_argument("--ranks", type=int, default=4, help="that save with DCP")
    parser.add_argument("--minutes", type=float, default=5, help="of each job for the goodput")
    parser.add_argument("--fault-every", type=float, default=60, help="seconds, on average")
    add_options(parser)
    parser.add_argument("--seed", type=int, default=1, help="of the times of faults")
    args = parser.parse_args()
    if missing := why_not():
        print(f"not measured on slow storage: needs {missing}")
        return
    measuring.LIMIT = 60 + 4 * args.size / args.rate
    sharded = f"DCP, {args.ranks} ranks"
    directory = Path(tempfile.mkdtemp(prefix="bench-storage-"))
    print(
        f"storage of {args.rate:g} MB/s and {args.latency:g} ms a call; {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    try:
        with slow_storage(directory, args.rate, args.latency) as storage:
            if "saves" in args.only:
                cases = [*pair("torch.save", "torch"), Case("DCP async_save", "async")]
                compare_saves("1 rank", cases, storage, args)
            if "sharded" in args.only:
                peer = Case("DCP async_save", "async", args.ranks)
                cases = [*pair("DCP", "dcp", args.ranks), peer]
                compare_saves(sharded, cases, storage, args)
            if "trainer" in args.only:
                if importlib.util.find_spec("transformers"):
                    compare_saves("1 rank", pair("HF Trainer", "trainer"), storage, args)
                else:
                    print("\nHF Trainer: not measured, transformers is not installed")
            if "goodput" in args.only:
                compare_goodput(storage, args)
        print(f"\nload {os.getloadavg()[0]:.1f}")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
