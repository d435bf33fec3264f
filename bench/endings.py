"""Count the training steps that are lost for each way in which Slurm ends a job, in 5 frameworks.

    python bench/endings.py [--seeds 1 2 3] [--kinds ddp fsdp ...] [--ends limit drain ...]
                            [--launcher torchrun]

Jobs on two nodes of a real Slurm cluster train with the scripts of `workers/`, slowed down by
`paced_training.py`. They have two ranks, so the sums of gradients do not depend on their order.
Each job ends in the middle of its training, at a time that depends on the seed, and continues in
another run or on a spare. The table shows for each framework and end: how many jobs reached the
weights of an undisturbed training, bit for bit; the most steps that were repeated; how often Slurm
requeued the job; and in how many jobs all ranks left at the same step.

The nodes are network namespaces of this machine and share its CPUs. Needs root.
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
from slurm.cluster import CONTROLLER, UNFINISHED, Cluster, Job, eventually

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
# The ends of one group happen at the same time: as many jobs as two CPUs can start in time.
GROUPS = (("limit", "signal"), ("array", "requeue"), ("bare",), ("preemption",), ("drain",))
ENDS = tuple(end for group in GROUPS for end in group)
RANKS = range(2)
ENVIRON = {"OMP_NUM_THREADS": "1"}  # with more threads, sums may differ
OPTIONS = ("--checkpoint-dir", "saved", "--grace", "10", "--notice", "25", "--nproc", "1")
LASTS = 200.0  # planned seconds of a training; it is speeded up after the end
LIMIT = 600.0  # seconds for a job
MOST_RUNS = 4


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job, compared with an undisturbed one."""

    has_same_weights: bool
    repeated_steps: int
    requeues: int
    left_together: bool  # all ranks left at the same step
    state: str = ""  # Slurm's
    wrong: str = ""


def results(directory: Path) -> list[str]:
    files = [directory / f"result-{rank}" for rank in RANKS]
    return [file.read_text() for file in files if file.exists()]


def steps(directory: Path) -> list[list[int]]:
    """Return the number of steps of each rank in each of its runs."""
    runs = [sorted(directory.glob(f"steps-{rank}-*")) for rank in RANKS]
    return [[int(file.read_text()) for file in files] for files in runs]


def undisturbed(kind: str, directory: Path) -> None:
    """Train in one run on this machine."""
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
    srun, after, sbatch_options = "srun", "", ["--requeue"]
    if end in ("limit", "array", "bare"):
        sbatch_options.append("--time=2")
    if end == "array":
        sbatch_options.append("--array=7-7")
    if end == "bare":  # without Slurm's commands, as in a container
        path = f"PATH={BIN}"
        limit = "${SLURM_RESTART_COUNT:+9}120"  # seconds; longer in the next run
        srun = f"SLURM_JOB_END_TIME=$(($(date +%s) + {limit})) srun env {path}"
        after = "code=$?; [ $code = 75 ] && scontrol requeue $SLURM_JOB_ID; exit $code"
    if end == "drain":
        nodes, options = 3, [*OPTIONS, "--nnodes", "2"]
    script = [PACED, WORKERS / KINDS[kind][0], *KINDS[kind][1:], "--dir", "saved"]
    if launcher == TORCHRUN:
        nodes, srun, after = 2, "srun", ""
        meet = "--rdzv-backend=c10d --rdzv-endpoint=$SLURMD_NODENAME:$((20000 + SLURM_JOB_ID))"
        options = ["--nnodes=2", "--nproc-per-node=1", meet, "--max-restarts=3"]
        # Resume from the newest checkpoint, as users of torchrun do.
        srun = f"export HPCLAUNCH_CHECKPOINT=$(ls -td $PWD/saved/* 2>/dev/null | head -1)\n{srun}"
    body = " ".join(map(str, [srun, launcher, *options, *script]))
    where = {"directory": directory, "nodes": nodes, "env": ENVIRON}
    return cluster.sbatch(f"{body}\n{after}", options=sbatch_options, **where)


@contextmanager
def with_console(job: Job) -> Iterator[None]:
    """Add the job's console to the message of an AssertionError."""
    try:
        yield
    except AssertionError as e:
        raise AssertionError(f"{e}\n{job.output}") from None


def trains(job: Job) -> bool:
    return all((job.directory / f"trains-{rank}").exists() for rank in RANKS)


def end_jobs(cluster: Cluster, end: str, jobs: Sequence[Job], rng: random.Random) -> None:
    """Wait until all jobs train, then end them in this way."""
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


def has_ended_once(job: Job) -> bool:
    """Return whether the job's first run is over. Until then, the training must stay slow."""
    fields = job.fields()
    is_again = fields["Restarts"] != "0" and fields["JobState"] != "COMPLETING"
    return is_again or fields["JobState"] not in UNFINISHED


def outcome(cluster: Cluster, launcher: str, end: str, job: Job, reference: Path) -> JobOutcome:
    """Speed the training up in its next run, wait for its end and compare it with the reference."""
    if launcher == HPCLAUNCH and end != "drain":
        job.wait_for_requeue(1, timeout=LIMIT)
        if end in ("limit", "array", "bare"):  # no second time limit
            update = ["scontrol", "update", f"JobId={job.id}", "TimeLimit=UNLIMITED"]
            cluster.on(CONTROLLER, update)
    elif end != "drain":
        eventually("the end of the first run", lambda: has_ended_once(job), timeout=LIMIT)
    (job.directory / "pause").unlink()
    ended = job.wait(timeout=LIMIT, runs=MOST_RUNS)
    restarts = int(job.fields()["Restarts"])
    counts = steps(job.directory)
    return JobOutcome(
        has_same_weights=results(job.directory) == results(reference),
        repeated_steps=max(map(sum, counts)) - steps(reference)[0][0],
        requeues=restarts,
        left_together=counts[0] == counts[1],
        state=ended.state,
        wrong="" if ended.code == 0 else f"{ended}:\n{ended.output}",
    )


def run_group(
    cluster: Cluster,
    launcher: str,
    ends: Sequence[str],
    kinds: Sequence[str],
    seed: int,
    directory: Path,
) -> Iterator[tuple[str, str, JobOutcome]]:
    """Run one job for each kind and end, at the same time; yield (kind, end, outcome) for each."""
    rng = random.Random(f"{seed} {ends}")
    jobs: dict[tuple[str, str], Job] = {}
    for kind in kinds:
        for end in ends:
            place = directory / f"{launcher}-{kind}-{end}-{seed}"
            jobs[kind, end] = begin(cluster, launcher, kind, end, place, directory / kind)

    def outcome_of(which: tuple[str, str]) -> JobOutcome:
        kind, end = which
        try:
            return outcome(cluster, launcher, end, jobs[which], directory / kind)
        except (AssertionError, OSError, ValueError) as e:
            wrong = f"{e}\n{jobs[which].output}"
            return JobOutcome(
                has_same_weights=False,
                repeated_steps=0,
                requeues=0,
                left_together=False,
                wrong=wrong,
            )

    with ThreadPoolExecutor(len(jobs)) as pool:  # an unwatched job would be requeued for ever
        ended = [
            pool.submit(end_jobs, cluster, end, [jobs[kind, end] for kind in kinds], rng)
            for end in ends
        ]
        for done in ended:
            done.result()
        for which, result in zip(jobs, pool.map(outcome_of, jobs), strict=True):
            yield *which, result


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
    outcomes: dict[tuple[str, str], list[JobOutcome]] = {}
    with tempfile.TemporaryDirectory(prefix="endings-") as name, cluster_of(3) as cluster:
        directory = Path(name)
        for kind in args.kinds:
            undisturbed(kind, directory / kind)
        for seed in args.seeds:
            for group in GROUPS:
                ends = [end for end in group if end in args.ends]
                if not ends:
                    continue
                for kind, end, result in run_group(
                    cluster, args.launcher, ends, args.kinds, seed, directory
                ):
                    outcomes.setdefault((end, kind), []).append(result)
                    if result.wrong:
                        print(f"{kind}, {end}, seed {seed}: {result.wrong}", flush=True)
            print_table(outcomes)


def print_table(outcomes: dict[tuple[str, str], list[JobOutcome]]) -> None:
    print(f"\n{'':22} {'same weights':>12} {'repeated':>8} {'requeued':>9} {'one step':>9}  state")
    for (end, kind), jobs in sorted(outcomes.items()):
        same = sum(job.has_same_weights for job in jobs)
        together = sum(job.left_together for job in jobs)
        requeued = ",".join(sorted({str(job.requeues) for job in jobs}))
        of = len(jobs)
        print(
            f"{end:10} {kind:11} {same:9}/{of:<2} {max(job.repeated_steps for job in jobs):8} "
            f"{requeued:>9} {together:6}/{of:<2}  {' '.join(sorted({job.state for job in jobs}))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
