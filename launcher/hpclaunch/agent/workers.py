"""The workers of a round: from this agent's assignment to requests for the fork server."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.placement import binding, devices, worker_environment
from ..core.protocol.model import PLACEHOLDER, Assignment, Share
from ..core.protocol.values import replace, value
from ..system.network.route import interface_of
from ..system.processes import affinity
from ..system.processes.fork_server_client import SITE, ForkServerClient
from ..worker.fork_server_messages import Prepare, Step, Worker
from .config import Config

if TYPE_CHECKING:  # needed only with --stage
    from .staged_paths import StagedPaths

LOCAL_RANK = "${local_rank}"  # torchrun's only macro in arguments
_topology = functools.cache(affinity.topology)


@value(frozen=True)
class Crew:
    """The workers to start, and their common environment."""

    workers: list[Worker]
    shared: dict[str, str]  # the environment of all
    placed: list[str]  # for the journal: `rank 0: GPU 0, CPUs 0-15, memory node 0`, then remarks


def workers_of(
    part: Assignment,
    config: Config,
    environ: Mapping[str, str],
    directory: Path,
    pipes: Mapping[str, str],
    stage: StagedPaths | None = None,
) -> Crew:
    """Return the workers of one agent in a round. For `pipes`, see `GpuSharing.directories`;
    `stage`: where they save in memory.
    """
    if stage is not None:
        part = replace(part, checkpoint=stage.staged(part.checkpoint))
    shared = worker_environment.common(
        part,
        environ,
        run_id=config.run_id,
        max_restarts=config.job.max_restarts,
        interface=interface_of(part.address),
        role=config.role,
        signals=config.signals,
        threads=config.threads,
    )
    shared |= _path(environ)
    if config.job.timing.notice:
        shared["HPCLAUNCH_NOTICE_FILE"] = str(notice_file(directory, config))
    if stage is not None:
        shared["HPCLAUNCH_STAGE"] = stage.stage
    program = config.command[: len(config.command) - len(config.arguments)]
    resume = config.resume_with if part.checkpoint else ()
    arguments = [*config.arguments, *(w.replace(PLACEHOLDER, part.checkpoint) for w in resume)]
    words = [*program, *(arguments if stage is None else map(stage.word, arguments))]
    bindings, localities = _bindings_of(part, config)
    each = binding.cpus_each(bindings)
    bound = config.bind is not binding.Mode.NONE and (part.local_world_size > 1 or config.gpus)
    workers = []
    for offset in range(part.nproc):
        rank = part.first_rank + offset
        stem = directory / f"rank-{rank}"
        virtual = part.shares.isolated or config.virtual_local_rank
        env = worker_environment.per_worker(
            part, offset, error_file=f"{stem}.error.json", virtual=virtual
        )
        env |= _of_gpus(part, offset, config, environ, pipes)
        if config.as_tasks:
            env |= worker_environment.of_slurm(part, offset, environ, cpus=each[offset])
        workers.append(
            Worker(
                rank=rank,
                argv=[word.replace(LOCAL_RANK, env["LOCAL_RANK"]) for word in words],
                env=env,
                out=f"{stem}.out",
                err=f"{stem}.err",
                stdin=config.stdin,
                cpus=[*bindings[offset].cpus] if bound else [],
            )
        )
    placed = binding.describe(bindings, localities, part.first_rank)
    placed += binding.remarks(bindings, localities, config.cpus)
    return Crew(workers, shared, placed)


def notice_file(directory: Path, config: Config) -> Path:
    """Return the file that exists once an agent's workers are given notice in the round of this
    directory. Each agent has its own file, since each may have another disk.
    """
    return directory / f"notice-{config.allocation.label}"


def prepare(server: ForkServerClient, config: Config, environ: Mapping[str, str]) -> None:
    """Have the template import torch while the agents still look for each other."""
    if config.trouble is not None:
        return
    start = config.start
    command = config.command if start.warm else (config.python, "-c", "")
    env = worker_environment.at_load(environ, threads=config.threads) | _path(environ)
    server.send(
        Prepare(
            argv=[*command],
            env=env,
            modules=[*start.modules],
            own=sorted(worker_environment.OWN),
            now=start.warm or start.ahead,
            steps=[Step(*step) for step in start.steps],
        )
    )


def is_warm(part: Assignment, config: Config, environ: Mapping[str, str]) -> bool:
    """Return whether the template was loaded with the environment that these workers need."""
    at_load = worker_environment.at_load
    mine = at_load(environ, threads=0 if part.local_world_size == 1 else config.threads)
    return config.start.warm and mine == at_load(environ, threads=config.threads)


def _path(environ: Mapping[str, str]) -> dict[str, str]:
    inherited = environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{SITE}{os.pathsep}{inherited}" if inherited else SITE}


def _bindings_of(
    part: Assignment, config: Config
) -> tuple[list[binding.Binding], list[binding.Locality]]:
    """Return the CPUs of each worker of this agent, and the devices that they should be near to."""
    if config.cpus_are_shared:  # all tasks of this node have the same CPUs
        localities = [binding.Locality()] * part.local_world_size
        mine = slice(part.first_local_rank, part.first_local_rank + part.nproc)
    else:
        of = part.shares.of or (Share(()),) * part.nproc
        localities = [binding.locality([config.gpus[i] for i in share.gpus]) for share in of]
        mine = slice(None)
    found = binding.bind(config.bind, config.cpus, _topology(config.cpus), localities)
    return list(found[mine]), localities[mine]


def _of_gpus(
    part: Assignment,
    offset: int,
    config: Config,
    environ: Mapping[str, str],
    pipes: Mapping[str, str],
) -> dict[str, str]:
    if part.shares.of:
        share = part.shares.of[offset]
        env = worker_environment.of_gpus(
            share,
            config.gpus,
            environ,
            isolated=part.shares.isolated,
            selector=config.selector,
            backend=config.shared_backend,
        )
        return env | (_of_mps(share, config, environ, pipes) if pipes else {})
    if not config.virtual_local_rank:
        return {}
    # The GPUs are not known: do as torchrun does.
    position = part.first_local_rank + offset
    selection = environ.get(worker_environment.CUDA)
    return {worker_environment.CUDA: devices.only_device(position, selection)}


def _of_mps(
    share: Share, config: Config, environ: Mapping[str, str], pipes: Mapping[str, str]
) -> dict[str, str]:
    from ..core.placement import mps_shares  # needed only with MPS

    directory = mps_shares.pipes_of(share, config.gpus, pipes)
    if not directory:
        return {}
    settings = mps_shares.Settings(*config.mps)
    return mps_shares.environment(settings, share, config.gpus, directory, environ)
