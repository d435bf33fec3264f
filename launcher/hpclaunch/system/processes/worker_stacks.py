"""Asks where workers are, on this node or on all nodes of a Slurm job: `worker/stack_reader.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..shared.helper import ROOT

MARK = "hpclaunch-stacks"  # begins each of the reader's lines; a site's prolog may print others
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from hpclaunch.worker.stack_reader import main; main(*sys.argv[2:])"
)
LIMIT = 60.0  # seconds; srun waits for its nodes
SQUEUE = ("squeue", "--noheader", "--format=%A %D %T")  # the job's number, its nodes, its state
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


class Asked(NamedTuple):
    workers: Sequence[Mapping[str, Any]]  # as `stack_reader.py` tells, each with its "host"
    complaint: str  # about what did not answer


class _Ended(NamedTuple):
    lines: Sequence[str]
    complaint: str


def here(whole: str) -> Asked:
    """This user's. `whole` is as for `stack_reader.py`."""
    return _answers(_run(_reader("", whole), None))


def of_job(job: str, whole: str, environ: Mapping[str, str]) -> Asked:
    """OSError without Slurm's commands. An array of jobs has several that run."""
    env = {k: v for k, v in environ.items() if k in KEPT or not k.startswith(("SLURM_", "SRUN_"))}
    known = _run([*SQUEUE, f"--jobs={job}"], env)
    jobs = [line.split() for line in known.lines]
    asked = [
        _of_running(number, nodes, whole, env) for number, nodes, state in jobs if state == RUNNING
    ]
    if not asked:
        state = jobs[0][2] if jobs else "over"
        return Asked([], known.complaint or f"it is {state}")
    workers = [worker for each in asked for worker in each.workers]
    return Asked(workers, "\n".join(each.complaint for each in asked if each.complaint))


def _of_running(job: str, nodes: str, whole: str, env: Mapping[str, str]) -> Asked:
    size = (f"--jobid={job}", f"--nodes={nodes}", f"--ntasks={nodes}")
    return _answers(_run([*SRUN, *size, *_reader("job", whole)], env))


def _reader(job: str, whole: str) -> Sequence[str]:
    return (sys.executable, "-I", "-S", "-c", PROGRAM, ROOT, MARK, job, whole)


def _run(command: Sequence[str], env: Mapping[str, str] | None) -> _Ended:
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
    return _Ended(out.decode(errors="replace").splitlines(), complaint)


def _answers(told: _Ended) -> Asked:
    pieces: dict[str, str] = {}
    for line in told.lines:
        mark, host, piece = (*line.split(" ", 2), "", "")[:3]
        if mark == MARK:
            pieces[host] = pieces.get(host, "") + piece
    workers: list[Mapping[str, Any]] = []
    complaint = told.complaint
    for host, text in pieces.items():
        try:
            workers += [worker | {"host": host} for worker in json.loads(text)]
        except ValueError:
            complaint = complaint or f"{host} did not tell all"
    return Asked(workers, complaint)
