"""Asks where workers are, on this node or on all nodes of a Slurm job: `worker/stack_reader.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..shared import slurm_steps
from ..shared.helper import ROOT

MARK = "hpclaunch-stacks"  # begins each of the reader's lines; a site's prolog may print others
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from hpclaunch.worker.stack_reader import main; main(*sys.argv[2:])"
)


class Asked(NamedTuple):
    workers: Sequence[Mapping[str, Any]]  # as `stack_reader.py` tells, each with its "host"
    complaint: str  # about what did not answer


def here(whole: str) -> Asked:
    """This user's. `whole` is as for `stack_reader.py`."""
    return _answers(slurm_steps.run(_reader("", whole), None))


def of_job(job: str, whole: str, environ: Mapping[str, str]) -> Asked:
    """OSError without Slurm's commands. An array of jobs has several that run."""
    env = slurm_steps.environment(environ)
    jobs, complaint = slurm_steps.jobs_of(f"--jobs={job}", env)
    asked = [_of_running(j, whole, env) for j in jobs if j.state == slurm_steps.RUNNING]
    if not asked:
        state = jobs[0].state if jobs else "over"
        return Asked([], complaint or f"it is {state}")
    workers = [worker for each in asked for worker in each.workers]
    return Asked(workers, "\n".join(each.complaint for each in asked if each.complaint))


def _of_running(job: slurm_steps.SlurmJob, whole: str, env: Mapping[str, str]) -> Asked:
    command = [*slurm_steps.srun(job.id, job.nodes), *_reader("job", whole)]
    return _answers(slurm_steps.run(command, env))


def _reader(job: str, whole: str) -> Sequence[str]:
    return (sys.executable, "-I", "-S", "-c", PROGRAM, ROOT, MARK, job, whole)


def _answers(told: slurm_steps.Ended) -> Asked:
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
