"""This user's Slurm jobs, their runs, and steps in them that take no resources from other steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpclaunch.core.protocol.errors import UsageError

from .helper import ROOT

LIMIT = 60.0  # seconds; srun waits for its nodes
SQUEUE = ("squeue", "--noheader", "--format=%A %D %T %i")
RUNNING = "RUNNING"
SRUN = (
    "srun",
    "--overlap",  # the job's own steps have its CPUs, memory and GPUs
    "--ntasks-per-node=1",
    "--cpus-per-task=1",
    "--mem=0",  # older Slurms do not share memory between steps that overlap
    "--gres=none",
    "--cpu-bind=none",
    "--mpi=none",
    "--input=none",
    "--export=ALL",  # with LD_LIBRARY_PATH, for a Python from an environment module
    "--kill-on-bad-exit=0",
    "--wait=0",
)
# Slurm's commands would take these as options: those of this job or step, or of the user.
OPTIONS = ("SLURM_", "SRUN_", "SQUEUE_", "SCANCEL_")
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


class Part(NamedTuple):
    """The nodes of a job, or of one component of a heterogeneous job."""

    job: str
    component: str  # "" if the job has only one
    nodes: str  # how many


class SlurmJob(NamedTuple):
    """A job as squeue shows it. The components of a heterogeneous job are one job."""

    id: str
    name: str  # as squeue shows it: 71_3 for an element of an array
    state: str
    parts: tuple[Part, ...]


class Ended(NamedTuple):
    """The output of a command that has ended."""

    lines: Sequence[str]
    complaint: str  # "" unless it failed


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm's commands."""
    return {k: v for k, v in environ.items() if k in KEPT or not k.startswith(OPTIONS)}


def jobs_of(which: str, env: Mapping[str, str]) -> tuple[list[SlurmJob], str]:
    """Return the jobs that squeue shows with the option `which` (an array has several), and the
    last line of its errors. Raises OSError without Slurm's commands.
    """
    known = run([*SQUEUE, which], env)
    jobs: dict[str, SlurmJob] = {}
    for words in map(str.split, known.lines):
        if len(words) < 4:
            continue
        number, nodes, state, shown = words[:4]
        name, _, component = shown.partition("+")  # 71+1, in a heterogeneous job
        job_id = name if component else number
        job = jobs.get(job_id, SlurmJob(job_id, name, state, ()))
        jobs[job_id] = job._replace(parts=(*job.parts, Part(job_id, component, nodes)))
    return list(jobs.values()), known.complaint.rpartition("\n")[2]


def without_component(which: str) -> str:
    """Return the id of the job of a component: 71 of 71+1, which squeue shows but does not take."""
    return which.partition("+")[0]


def reader(module: str, *words: str) -> list[str]:
    """Return a command line that runs `main` of a module with the standard library only."""
    program = (
        f"import sys; sys.path.append(sys.argv[1]); from {module} import main; main(*sys.argv[2:])"
    )
    return [sys.executable, "-I", "-S", "-c", program, ROOT, *words]


def srun(part: Part, nodes: str, *options: str) -> list[str]:
    """Return the beginning of a command line that runs a task on each of `nodes` nodes of a part
    of a job.
    """
    group = [f"--het-group={part.component}"] if part.component else []
    where = [f"--jobid={part.job}", *group, f"--nodes={nodes}", f"--ntasks={nodes}"]
    return [*SRUN, *where, *options]


def run(command: Sequence[str], env: Mapping[str, str] | None, limit: float = LIMIT) -> Ended:
    """Run a command for at most `limit` seconds. Raises OSError if it cannot be started."""
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit
        )
        out, complaint = done.stdout, ""
        if done.returncode:  # otherwise it has only warned
            complaint = done.stderr.decode(errors="replace").strip()
            complaint = complaint or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as e:
        out, complaint = e.stdout or b"", f"{command[0]} did not end within {limit:.0f} s"
    return Ended(out.decode(errors="replace").splitlines(), complaint)


def runs_before(environ: Mapping[str, str]) -> int:
    """Return how often Slurm has started this job again before this run. Raises UsageError."""
    text = environ.get("SLURM_RESTART_COUNT", "0")
    if not text.isdecimal():
        raise UsageError(f"SLURM_RESTART_COUNT={text} makes no sense: it is no number of restarts")
    return int(text)


def other_elements(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return how far the index of this element of an array is from the lowest and the highest one.
    Both are 0 if this job is no element of an array.
    """
    first, this, last = (
        _number(environ.get(f"SLURM_ARRAY_TASK_{name}", "")) for name in ("MIN", "ID", "MAX")
    )
    return max(0, this - first), max(0, last - this)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
