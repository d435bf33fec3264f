"""Slurm's jobs of this user, and steps in them that take nothing from the steps that run there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LIMIT = 60.0  # seconds; srun waits for its nodes
SQUEUE = ("squeue", "--noheader", "--format=%A %D %T %j")
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
    "--export=ALL",  # with the path to the libraries of a Python from a module
    "--kill-on-bad-exit=0",
    "--wait=0",
)
# Else the options of the job, or of the step that this is called in, would hold for srun as well.
KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")


class SlurmJob(NamedTuple):
    id: str
    nodes: str  # how many
    state: str
    name: str


class Ended(NamedTuple):
    lines: Sequence[str]
    complaint: str  # "" unless it failed


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For Slurm's commands."""
    return {k: v for k, v in environ.items() if k in KEPT or not k.startswith(("SLURM_", "SRUN_"))}


def jobs_of(which: str, env: Mapping[str, str]) -> tuple[list[SlurmJob], str]:
    """The jobs that squeue shows with the option `which`, and the last line of its complaint. An
    array has several. OSError without Slurm's commands.
    """
    known = run([*SQUEUE, which], env)
    words = (line.split(maxsplit=3) for line in known.lines)
    jobs = [SlurmJob(*(*w, "")[:4]) for w in words if len(w) >= 3]
    return jobs, known.complaint.rpartition("\n")[2]


def srun(job: str, nodes: str, *options: str) -> list[str]:
    """The beginning of a command line: one task on each of so many of its nodes."""
    return [*SRUN, f"--jobid={job}", f"--nodes={nodes}", f"--ntasks={nodes}", *options]


def run(command: Sequence[str], env: Mapping[str, str] | None) -> Ended:
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT
        )
        out, complaint = done.stdout, ""
        if done.returncode:  # otherwise it has only warned
            complaint = done.stderr.decode(errors="replace").strip()
            complaint = complaint or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as e:
        out, complaint = e.stdout or b"", f"{command[0]} did not end within {LIMIT:.0f} s"
    return Ended(out.decode(errors="replace").splitlines(), complaint)
