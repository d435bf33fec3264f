"""Is a step lost when a job ends? Every way in which Slurm ends one, in five frameworks.

    python bench/endings.py [--seeds 1 2 3] [--kinds ddp fsdp ...] [--ends limit drain ...]
                            [--launcher torchrun]

Jobs on two nodes of a real Slurm cluster train with the scripts of `workers/`, slowed down
(`paced_training.py`), with two ranks: so the sums of gradients come out the same in any order. Each
job ends in the midst of its training, at a time that the seed gives, and goes on in another run, or
on a spare. The table has for each framework and end: how many came to the weights of a training
that nothing disturbs, bit for bit; the most steps that one has done twice; how often Slurm has
started it again; and in how many all ranks left at the same step.

The nodes are network namespaces of this machine and share its CPUs; as root only.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measuring import HPCLAUNCH, TORCHRUN
from on_slurm import cluster_of, why_not

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from slurm.cluster import CONTROLLER, GOING_ON, Cluster, Job, eventually

HERE = Path(__file__).parent
PACED = HERE / "paced_training.py"
WORKERS = HERE.parent / "workers"
BIN = Path(sys.executable).parent
KINDS = {
    "ddp": ("ddp.py", "--epochs", "8"),
    "lightning": ("lightning_ddp.py", "--epochs", "8"),
    "trainer": ("hf_trainer.py", "--epochs", "2"),
    "elastic": ("elastic.py", "--epochs", "8"),
    "fsdp2": ("fsdp.py", "--steps", "150"),
}
# Those of a group come at the same time: as many as two CPUs can start within a time limit.
GROUPS = (("limit", "signal"), ("array", "requeue"), ("bare",), ("preemption",), ("drain",))
ENDS = tuple(end for group in GROUPS for end in group)
RANKS = range(2)
ENVIRON = {"OMP_NUM_THREADS": "1"}  # else a sum may come out otherwise with more CPUs
OPTIONS = ("--checkpoint-dir", "saved", "--grace", "10", "--notice", "25", "--nproc", "1")
LASTS = 200.0  # seconds of a training, at first; it ends earlier
LIMIT = 600.0  # seconds for a job
MOST_RUNS = 4


@dataclass(frozen=True, slots=True)
class Told:
    """What has become of a job."""

    same: bool  # the weights
    twice: int
    runs: int
    together: bool
    state: str = ""  # as Slurm calls it
    wrong: str = ""


def results(directory: Path) -> list[str]:
    files = [directory / f"result-{rank}" for rank in RANKS]
    return [file.read_text() for file in files if file.exists()]


def steps(directory: Path) -> list[list[int]]:
    """Of each rank, in each of its runs."""
    runs = [sorted(directory.glob(f"steps-{rank}-*")) for rank in RANKS]
    return [[int(file.read_text()) for file in files] for files in runs]


def undisturbed(kind: str, directory: Path) -> None:
    """Trains in one run on this machine."""
    directory.mkdir()
    command = [BIN / HPCLAUNCH, "--nproc", "2", PACED, WORKERS / KINDS[kind][0], *KINDS[kind][1:]]
    command += ["--dir", "saved"]
    environ = os.environ | ENVIRON
    subprocess.run(command, cwd=directory, env=environ, check=True, capture_output=True)


def begin(
    cluster: Cluster, launcher: str, kind: str, end: str, directory: Path, reference: Path
) -> Job:
    directory.mkdir()
    (directory / "pause").write_text(str(LASTS / steps(reference)[0][0]))
    nodes, options = 2, [*OPTIONS, "--requeue"]
    srun, after, asked = "srun", "", ["--requeue"]
    if end in ("limit", "array", "bare"):
        asked.append("--time=2")
    if end == "array":
        asked.append("--array=7-7")
    if end == "bare":  # as in a container
        path = f"PATH={BIN}"
        limit = "${SLURM_RESTART_COUNT:+9}120"  # seconds; the next run is given more
        srun = f"SLURM_JOB_END_TIME=$(($(date +%s) + {limit})) srun env {path}"
        after = "code=$?; [ $code = 75 ] && scontrol requeue $SLURM_JOB_ID; exit $code"
    if end == "drain":
        nodes, options = 3, [*OPTIONS, "--nnodes", "2"]
    script = [PACED, WORKERS / KINDS[kind][0], *KINDS[kind][1:], "--dir", "saved"]
    if launcher == TORCHRUN:
        nodes, srun, after = 2, "srun", ""
        meet = "--rdzv-backend=c10d --rdzv-endpoint=$SLURMD_NODENAME:$((20000 + SLURM_JOB_ID))"
        options = ["--nnodes=2", "--nproc-per-node=1", meet, "--max-restarts=3"]
        # As users of torchrun do: go on from whatever is newest.
        srun = f"export HPCLAUNCH_CHECKPOINT=$(ls -td $PWD/saved/* 2>/dev/null | head -1)\n{srun}"
    body = " ".join(map(str, [srun, launcher, *options, *script]))
    where = {"directory": directory, "nodes": nodes, "env": ENVIRON}
    return cluster.sbatch(f"{body}\n{after}", options=asked, **where)


@contextmanager
def with_console(job: Job) -> Iterator[None]:
    """Add the job's console to the message of an AssertionError."""
    try:
        yield
    except AssertionError as e:
        raise AssertionError(f"{e}\n{job.output}") from None


def trains(job: Job) -> bool:
    return all((job.directory / f"trains-{rank}").exists() for rank in RANKS)


def strike(cluster: Cluster, end: str, jobs: Sequence[Job], rng: random.Random) -> None:
    """The end comes to all of them."""
    if end in ("limit", "array", "bare"):
        return
    for job in jobs:
        with with_console(job):
            eventually("the training", lambda job=job: trains(job), timeout=LIMIT / 2)
    time.sleep(rng.uniform(0.0, 10.0))
    ids = [str(job.id) for job in jobs]
    if end == "signal":
        cluster.on(CONTROLLER, ["scancel", "--signal=USR1", *ids])
    elif end == "requeue":
        cluster.on(CONTROLLER, ["scontrol", "requeue", ",".join(ids)])
    elif end == "preemption":
        urgent = ["--partition=urgent", "--exclusive"]
        cluster.sbatch("true", directory=jobs[0].directory, nodes=3, options=urgent)
    else:
        update = ["scontrol", "update", "NodeName=n2"]
        cluster.on(CONTROLLER, [*update, "State=DRAIN", "Reason=bench"])
        try:
            for job in jobs:
                with with_console(job):
                    job.says("a spare takes the place of n2", timeout=LIMIT / 2)
        finally:
            cluster.on(CONTROLLER, [*update, "State=RESUME"])


def is_struck(job: Job) -> bool:
    """Its first run is over: until then, it is not to go on faster."""
    fields = job.fields()
    is_again = fields["Restarts"] != "0" and fields["JobState"] != "COMPLETING"
    return is_again or fields["JobState"] not in GOING_ON


def outcome(cluster: Cluster, launcher: str, end: str, job: Job, reference: Path) -> Told:
    if launcher == HPCLAUNCH and end != "drain":
        job.starts_again(1, timeout=LIMIT)
        if end in ("limit", "array", "bare"):  # one limit is enough
            update = ["scontrol", "update", f"JobId={job.id}", "TimeLimit=UNLIMITED"]
            cluster.on(CONTROLLER, update)
    elif end != "drain":
        eventually("what comes of it", lambda: is_struck(job), timeout=LIMIT)
    (job.directory / "pause").unlink()
    ended = job.wait(timeout=LIMIT, runs=MOST_RUNS)
    restarts = int(job.fields()["Restarts"])
    counts = steps(job.directory)
    return Told(
        same=results(job.directory) == results(reference),
        twice=max(map(sum, counts)) - steps(reference)[0][0],
        runs=restarts,
        together=counts[0] == counts[1],
        state=ended.state,
        wrong="" if ended.code == 0 else f"{ended}:\n{ended.output}",
    )


def group_of(
    cluster: Cluster,
    launcher: str,
    ends: Sequence[str],
    kinds: Sequence[str],
    seed: int,
    directory: Path,
) -> Iterator[tuple[str, str, Told]]:
    """(kind, end, what has become of it) of each."""
    rng = random.Random(f"{seed} {ends}")
    begun: dict[tuple[str, str], Job] = {}
    for kind in kinds:
        for end in ends:
            place = directory / f"{launcher}-{kind}-{end}-{seed}"
            begun[kind, end] = begin(cluster, launcher, kind, end, place, directory / kind)

    def fate(which: tuple[str, str]) -> Told:
        kind, end = which
        try:
            return outcome(cluster, launcher, end, begun[which], directory / kind)
        except (AssertionError, OSError, ValueError) as e:
            wrong = f"{e}\n{begun[which].output}"
            return Told(same=False, twice=0, runs=0, together=False, wrong=wrong)

    with ThreadPoolExecutor(len(begun)) as pool:  # one that is not looked at goes on and on
        struck = [
            pool.submit(strike, cluster, end, [begun[kind, end] for kind in kinds], rng)
            for end in ends
        ]
        for done in struck:
            done.result()
        for which, told in zip(begun, pool.map(fate, begun), strict=True):
            yield *which, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--launcher", choices=(HPCLAUNCH, TORCHRUN), default=HPCLAUNCH)
    parser.add_argument("--ends", choices=ENDS, nargs="+", default=list(ENDS))
    args = parser.parse_args()
    if why_not():
        print(f"not measured: needs {why_not()}")
        return
    found: dict[tuple[str, str], list[Told]] = {}
    with tempfile.TemporaryDirectory(prefix="endings-") as name, cluster_of(3) as cluster:
        directory = Path(name)
        for kind in args.kinds:
            undisturbed(kind, directory / kind)
        for seed in args.seeds:
            for group in GROUPS:
                ends = [end for end in group if end in args.ends]
                if not ends:
                    continue
                for kind, end, told in group_of(
                    cluster, args.launcher, ends, args.kinds, seed, directory
                ):
                    found.setdefault((end, kind), []).append(told)
                    if told.wrong:
                        print(f"{kind}, {end}, seed {seed}: {told.wrong}", flush=True)
            print_table(found)


def print_table(found: dict[tuple[str, str], list[Told]]) -> None:
    print(f"\n{'':22} {'same weights':>12} {'twice':>6} {'requeued':>9} {'one step':>9}  state")
    for (end, kind), all_told in sorted(found.items()):
        same, together = (
            sum(getattr(told, what) for told in all_told) for what in ("same", "together")
        )
        requeued = ",".join(sorted({str(told.runs) for told in all_told}))
        of = len(all_told)
        print(
            f"{end:10} {kind:11} {same:9}/{of:<2} {max(t.twice for t in all_told):6} "
            f"{requeued:>9} {together:6}/{of:<2}  {' '.join(sorted({t.state for t in all_told}))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
