"""From an assignment to the workers that the fork server is to start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .config import Config
from .core import contract
from .core.model import PLACEHOLDER, Assignment
from .system.forkserver import Worker
from .system.route import interface_of


def workers_of(
    part: Assignment, config: Config, environ: Mapping[str, str], directory: Path
) -> tuple[list[Worker], dict[str, str]]:
    """The workers of one agent in a round, and the environment that they share."""
    shared = contract.common(
        part,
        environ,
        run_id=config.allocation.name,
        max_restarts=config.job.max_restarts,
        interface=interface_of(part.address),
    )
    resume = [word.replace(PLACEHOLDER, part.checkpoint) for word in config.resume_with]
    argv = [config.python, "-u", *config.script, *(resume if part.checkpoint else ())]
    workers = []
    for offset in range(part.nproc):
        rank = part.first_rank + offset
        stem = directory / f"rank-{rank}"
        env = contract.per_worker(part, offset, error_file=f"{stem}.error.json")
        workers.append(Worker(rank, argv, env, out=f"{stem}.out", err=f"{stem}.err"))
    return workers, shared
