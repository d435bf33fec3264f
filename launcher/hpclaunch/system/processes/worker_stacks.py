"""Asks for the stacks of workers, on this node or on all nodes of a Slurm job
(`worker/stack_reader.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..shared import slurm_steps

MARK = "hpclaunch-stacks"  # begins each of the reader's lines; a site's prolog may print others
READER = "hpclaunch.worker.stack_reader"


class WorkerStacks(NamedTuple):
    """The answers of several nodes."""

    workers: Sequence[Mapping[str, Any]]  # as `stack_reader.py` prints them, each with its "host"
    complaint: str  # about nodes that did not answer


def here(whole: str) -> WorkerStacks:
    """Ask the workers of this user on this node. `whole` is as for `stack_reader.py`."""
    return _answers(slurm_steps.run(slurm_steps.reader(READER, MARK, "", whole), None))


def of_job(job: str, whole: str, environ: Mapping[str, str]) -> WorkerStacks:
    """Ask all nodes of a Slurm job, or of an array's jobs. Raises OSError without Slurm."""
    env = slurm_steps.environment(environ)
    jobs, complaint = slurm_steps.jobs_of(f"--jobs={slurm_steps.without_component(job)}", env)
    running = [each for each in jobs if each.state == slurm_steps.RUNNING]
    asked = [_of_part(part, whole, env) for each in running for part in each.parts]
    if not asked:
        state = jobs[0].state if jobs else "over"
        return WorkerStacks([], complaint or f"it is {state}")
    workers = [worker for each in asked for worker in each.workers]
    return WorkerStacks(workers, "\n".join(each.complaint for each in asked if each.complaint))


def _of_part(part: slurm_steps.Part, whole: str, env: Mapping[str, str]) -> WorkerStacks:
    reader = slurm_steps.reader(READER, MARK, "job", whole)
    return _answers(slurm_steps.run([*slurm_steps.srun(part, part.nodes), *reader], env))


def _answers(ended: slurm_steps.Ended) -> WorkerStacks:
    pieces: dict[str, str] = {}
    for line in ended.lines:
        mark, host, piece = (*line.split(" ", 2), "", "")[:3]
        if mark == MARK:
            pieces[host] = pieces.get(host, "") + piece
    workers: list[Mapping[str, Any]] = []
    complaint = ended.complaint
    for host, text in pieces.items():
        try:
            workers += [worker | {"host": host} for worker in json.loads(text)]
        except ValueError:
            complaint = complaint or f"{host}: incomplete answer"
    return WorkerStacks(workers, complaint)
