"""From an assignment to the workers that the fork server is to start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .config import Config
from .core import contract, devices
from .core.model import PLACEHOLDER, Assignment
from .system import affinity
from .system.forkserver import SITE, ForkServer, Worker
from .system.route import interface_of

LOCAL_RANK = "${local_rank}"  # torchrun's only macro in arguments


def workers_of(
    part: Assignment, config: Config, environ: Mapping[str, str], directory: Path
) -> tuple[list[Worker], dict[str, str]]:
    """The workers of one agent in a round, and the environment that they share."""
    shared = contract.common(
        part,
        environ,
        run_id=config.run_id,
        max_restarts=config.job.max_restarts,
        interface=interface_of(part.address),
        role=config.role,
        signals=config.signals,
    )
    shared |= _path(environ)
    resume = [word.replace(PLACEHOLDER, part.checkpoint) for word in config.resume_with]
    command = [*config.command, *(resume if part.checkpoint else ())]
    workers = []
    for offset in range(part.nproc):
        rank = part.first_rank + offset
        stem = directory / f"rank-{rank}"
        local = devices.local_rank(
            part.first_local_rank, offset, part.nproc, visible=config.visible_gpus
        )
        cpus = _cpus_of(part, offset, config)
        env = contract.per_worker(
            part,
            offset,
            error_file=f"{stem}.error.json",
            local_rank=0 if config.virtual_local_rank else local,
        )
        if config.virtual_local_rank:
            selection = environ.get("CUDA_VISIBLE_DEVICES")
            env["CUDA_VISIBLE_DEVICES"] = devices.only_device(local, selection)
        if config.as_tasks:
            env |= contract.of_slurm(part, offset, environ, cpus=len(cpus) or 1)
        workers.append(
            Worker(
                rank=rank,
                argv=[word.replace(LOCAL_RANK, env["LOCAL_RANK"]) for word in command],
                env=env,
                out=f"{stem}.out",
                err=f"{stem}.err",
                cpus=cpus if config.bind else (),
            )
        )
    return workers, shared


def prepare(server: ForkServer, config: Config, environ: Mapping[str, str]) -> None:
    """Have the template import torch, while the agents still find each other."""
    if config.trouble is not None:
        return
    start = config.start
    command = config.command if start.warm else (config.python, "-c", "")
    env = _at_load(config, environ) | _path(environ)
    server.prepare(command, env, start.modules, now=start.warm or start.ahead)


def is_warm(part: Assignment, config: Config, environ: Mapping[str, str]) -> bool:
    """Whether the template was loaded with what these workers are to see."""
    mine = contract.at_load(environ, alone=part.local_world_size == 1)
    return config.start.warm and mine == _at_load(config, environ)


def _at_load(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """As far as this agent can know it before it has heard of the others."""
    return contract.at_load(environ, alone=config.allocation.tasks_here * config.nproc == 1)


def _path(environ: Mapping[str, str]) -> dict[str, str]:
    inherited = environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{SITE}{os.pathsep}{inherited}" if inherited else SITE}


def _cpus_of(part: Assignment, offset: int, config: Config) -> tuple[int, ...]:
    """A worker's share of the CPUs, all of them for a worker that is alone."""
    if config.cpus_are_shared:  # all tasks of this node have the same ones
        return affinity.share(config.cpus, part.first_local_rank + offset, part.local_world_size)
    return affinity.share(config.cpus, offset, part.nproc)
