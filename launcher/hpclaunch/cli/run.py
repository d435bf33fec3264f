"""The command itself: check what can be checked before anybody is started, then be an agent."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpclaunch.core.placement import streams
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import (
    ENDING,
    EXIT_USAGE,
    FORWARDED,
    HEAD,
    PLACEHOLDER,
    Allocation,
    Grow,
    Job,
    Trouble,
)
from hpclaunch.core.protocol.timing import DEFAULTS, Timing

if TYPE_CHECKING:
    from hpclaunch.agent.config import Checkpoints, Config
    from hpclaunch.core.placement import binding
    from hpclaunch.system.logs.log_directory import LogDirectory

    from .program import Program
    from .worker_count import Count


def _log_dir(where: Allocation) -> Path:
    """Of this launch alone: a batch script without srun may have several, at once too."""
    directory = Path("hpclaunch-logs") / where.name
    for number in itertools.count(2) if where.alone else ():
        try:
            directory.mkdir(mode=0o700, parents=True)
            break
        except FileExistsError:
            directory = directory.with_name(f"{where.name}-{number}")
        except OSError:
            break  # LogDirectory has the words for it
    return directory


def _logs(options: argparse.Namespace, where: Allocation) -> tuple[LogDirectory, str]:
    """And a line when it is not where the user would look for it.

    torchrun's is a temporary one: its callers may stand where nothing can be written.
    """
    from hpclaunch.system.logs.log_directory import LogDirectory

    if options.log_dir is not None:
        return LogDirectory(options.log_dir), ""
    try:
        return LogDirectory(_log_dir(where)), ""
    except UsageError as e:
        if not options.in_place_of:
            raise
        import tempfile

        try:
            logs = LogDirectory(Path(tempfile.mkdtemp(prefix=f"hpclaunch-{where.name}-")))
        except OSError:
            raise e from None
        return logs, f"{e}: those of {where.places[where.index].host} are in {logs.path}"


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that are wrong whatever the machine is like."""
    if options.logs_specs not in (None, "default"):
        raise UsageError(
            f"--logs-specs {options.logs_specs}: torchrun's plugins are classes of torch, which "
            "the agent never loads; omit it, and see -r, -t and --log-dir"
        )
    _streams(options, {})
    _seconds(options, "join_timeout", DEFAULTS.join)
    _seconds(options, "last_call_timeout", DEFAULTS.last_call)
    _check_checkpoint_options(options)
    if options.resume_with is None:
        return
    if PLACEHOLDER not in options.resume_with:
        raise UsageError(
            f"--resume-with {options.resume_with!r} has no {PLACEHOLDER} in it: write for example "
            f"--resume-with '--resume {PLACEHOLDER}'"
        )
    if options.checkpoint_dir is None:
        raise UsageError("--resume-with needs --checkpoint-dir, to know what to resume from")
    try:
        shlex.split(options.resume_with)
    except ValueError as e:
        raise UsageError(f"--resume-with {options.resume_with!r}: {e}") from e


def _check_checkpoint_options(options: argparse.Namespace) -> None:
    """What has no effect without a directory is most likely a mistake."""
    if options.checkpoint_dir is not None:
        return
    for name, given in (
        ("--checkpoint-local", options.checkpoint_local),
        ("--checkpoint-exclude", options.checkpoint_exclude),
        ("--checkpoint-complete", options.checkpoint_complete),
        ("--verify", options.verify != "auto"),
    ):
        if given:
            raise UsageError(f"{name} needs --checkpoint-dir, to know where the script saves")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from hpclaunch.system.processes.fork_server_client import ForkServerClient
    from hpclaunch.system.processes.signals import Signals

    try:
        os.getcwd()
    except OSError as e:
        raise UsageError(
            "the directory in which hpclaunch was started is gone: cd elsewhere"
        ) from e
    more = _beyond_the_usual(options)
    signals = Signals(more)
    server = ForkServerClient(
        more
    )  # should we not get as far as the agent, it ends with this process
    config = configure(options, environ)
    from hpclaunch.agent.workers import prepare

    prepare(server, config, environ)
    from hpclaunch.agent import loop

    return loop.run(config, signals, server)


def _beyond_the_usual(options: argparse.Namespace) -> tuple[int, ...]:
    return tuple(s for s in options.signals_to_handle if s not in (*ENDING, *FORWARDED))


def configure(options: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """Check everything that can be checked before anybody is started.

    What is wrong on one node only (a missing file, no GPU) does not end this agent: the others
    would wait for it. It is brought to the head, which ends the job everywhere with one line.
    """
    from hpclaunch.agent.config import Config, Start
    from hpclaunch.core.health.host_rules import files_needed
    from hpclaunch.core.placement import binding, contract
    from hpclaunch.system.processes import affinity
    from hpclaunch.system.shared import open_file_limit

    from .place import locate
    from .program import Program, program
    from .warm_start import start
    from .worker_count import Count, count_workers

    started = time.strftime("%Y%m%d-%H%M%S")
    where, notes = locate(options, environ, unique=f"{started}-{os.getpid()}")
    cpus = affinity.available()
    trouble, logs, what, count = None, None, Program((), sys.executable), Count(1)
    begin, why = Start(warm=False, ahead=False), ""
    mode, threads = binding.Mode(options.numa_binding or options.bind), 0
    open_file_limit.raise_to(
        files_needed(len(where.places), 0)
    )  # the others come, whatever is wrong here
    try:
        what = program(options, environ)
        _check_checkpoint_dir(options.checkpoint_dir)
        count = count_workers(
            options.nproc_per_node,
            where,
            environ,
            python=what.python,
            cpus=len(cpus),
            per_worker=options.gpus_per_worker,
        )
        _take_files(len(where.places), count.nproc)
        workers = where.tasks_here * count.nproc
        if workers > 1:
            sharing = workers if _are_shared(len(cpus), where, environ) else count.nproc
            threads = _threads(mode, cpus, sharing)
        at_load = contract.at_load(environ, threads=threads)
        begin, why = start(options, what, {**environ, **at_load}, head=where.index == HEAD)
        logs, elsewhere = _logs(options, where)
        notes += [elsewhere] if elsewhere else []
    except UsageError as e:
        if where.alone:
            raise
        host = where.places[where.index].host
        trouble = Trouble(EXIT_USAGE, f"on {host}: {e}")
    if where.index == HEAD:
        notes += [why] if why else []
        notes += _notes(options, environ, where, what, count, cpus=len(cpus))
    return Config(
        allocation=where,
        job=Job(
            where.places,
            **_size(options, where),
            max_restarts=options.max_restarts,
            gpus_per_worker=options.gpus_per_worker,
            isolate=_isolate(options),
            health=options.health == "on",
            preflight=options.preflight,
            saves=options.checkpoint_dir is not None,
            local=options.checkpoint_local,
            slurm_id=environ.get("SLURM_JOB_ID", ""),
            grow=_grow(options),
            one_head=where.endpoint is not None,
            timing=Timing(
                join=_seconds(options, "join_timeout", DEFAULTS.join),
                last_call=_seconds(options, "last_call_timeout", DEFAULTS.last_call),
                wait=options.wait_for_nodes,
                grace=options.shutdown_timeout,
            ),
        ),
        nproc=count.nproc,
        command=what.command,
        python=what.python,
        start=begin,
        run_id=options.rdzv_id or (where.name if where.endpoint is None else "none"),
        role=options.role,
        signals=",".join(s.name for s in options.signals_to_handle),
        handled=_beyond_the_usual(options),
        as_tasks=not (options.standalone and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"),
        cpus=cpus,
        cpus_are_shared=_are_shared(len(cpus), where, environ),
        bind=mode,
        threads=threads,
        gpus=count.gpus,
        broken=count.broken,
        cuda=count.cuda,
        selector=count.selector,
        virtual_local_rank=options.virtual_local_rank,
        mps=(options.mps, options.mps_threads, options.mps_memory or ""),
        shared_backend=options.shared_backend or "",
        local_addr=options.local_addr or "",
        checkpoints=_checkpoints(options),
        resume_with=tuple(shlex.split(options.resume_with or "")),
        logs=logs,
        streams=_streams(options, environ),
        as_torchrun=bool(options.in_place_of),
        trouble=trouble,
        notes=tuple(notes),
    )


def _take_files(agents: int, workers: int) -> None:
    from hpclaunch.core.health.host_rules import files_needed
    from hpclaunch.core.protocol.wording import count
    from hpclaunch.system.shared import open_file_limit

    needed = files_needed(agents, workers)
    if (most := open_file_limit.raise_to(needed)) < needed:
        others = f" in a job of {agents}" if agents > 1 else ""
        raise UsageError(
            f"a launcher of {count(workers, 'worker')}{others} has up to {needed} files open, and "
            f"no more than {most} are allowed: start fewer workers here, or ask for a higher hard "
            "limit (ulimit -Hn)"
        )


def _isolate(options: argparse.Namespace) -> bool:
    """Whether every worker is to see its own GPUs only: under MPS it has to."""
    own = options.virtual_local_rank or options.gpus_per_worker > 1
    return bool(own or options.mps == "on")


def _size(options: argparse.Namespace, where: Allocation) -> dict[str, int]:
    """Of --nnodes MIN:MAX, as far as there are so many."""
    fewest, most = options.nnodes or (where.nodes, where.nodes)
    return {"fewest": min(fewest, where.nodes), "most": min(most, where.nodes)}


def _grow(options: argparse.Namespace) -> Grow:
    if options.grow == "checkpoint" and options.checkpoint_dir is None:
        raise UsageError("--grow checkpoint needs --checkpoint-dir")
    saves = options.checkpoint_dir is not None
    return Grow(options.grow or ("checkpoint" if saves else "never"))


def _threads(mode: binding.Mode, cpus: tuple[int, ...], workers: int) -> int:
    """Of an equal share of the CPUs, which is about what each worker will have.

    1 as under torchrun for workers that are not kept apart. One number for all of a node, since
    they may be forked from one process, whose threads were counted when it loaded torch.
    """
    from hpclaunch.core.placement import binding
    from hpclaunch.system.processes import affinity

    if mode not in (binding.Mode.AUTO, binding.Mode.EXCLUSIVE):
        return 1
    there = affinity.topology(cpus)
    return binding.threads(binding.bind(mode, cpus, there, [binding.Locality()] * workers), there)


def _seconds(options: argparse.Namespace, key: str, default: float) -> float:
    """Of --rdzv-conf."""
    said = (options.rdzv_conf or {}).get(key, default)
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"--rdzv-conf {key}={said}: not a number of seconds")
    return seconds


def _streams(options: argparse.Namespace, environ: Mapping[str, str]) -> streams.Streams:
    return streams.Streams(
        redirects=streams.parse_selection("--redirects", options.redirects),
        tee=streams.parse_selection("--tee", options.tee),
        local_ranks=streams.parse_local_ranks("--local-ranks-filter", options.local_ranks_filter),
        stdout_filters=tuple(options.duplicate_stdout_filters),
        stderr_filters=tuple(options.duplicate_stderr_filters),
        prefix_template=options.log_line_prefix_template
        or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
    )


def _are_shared(cpus: int, where: Allocation, environ: Mapping[str, str]) -> bool:
    """Whether the tasks of this node were all given the same CPUs: all that the step has here."""
    on_node = environ.get("SLURM_CPUS_ON_NODE", "")
    there = os.cpu_count() or 1
    return where.tasks_here > 1 and cpus >= min(int(on_node) if on_node.isdigit() else there, there)


def _checkpoints(options: argparse.Namespace) -> Checkpoints | None:
    from hpclaunch.agent.config import Checkpoints

    if options.checkpoint_dir is None:
        return None
    return Checkpoints(
        where=str(options.checkpoint_dir),
        exclude=options.checkpoint_exclude,
        complete=options.checkpoint_complete or "",
        verify=options.verify,
    )


def _check_checkpoint_dir(directory: Path | None) -> None:
    """One that is not there yet is fine, and so is a pattern: the script makes it."""
    if directory is None or not os.path.exists(directory):
        return
    if not os.path.isdir(directory):
        raise UsageError(f"--checkpoint-dir {directory} is not a directory")
    if not os.access(directory, os.R_OK | os.X_OK):
        raise UsageError(f"cannot read the checkpoint directory {directory}: permission denied")


def _notes(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    where: Allocation,
    what: Program,
    count: Count,
    *,
    cpus: int,
) -> list[str]:
    """What the user should know before the workers start."""
    from hpclaunch.core.placement import binding

    notes = [note for note in (what.note, *count.notes) if note]
    if idle := _without_effect(options):
        notes.append("without effect here: " + "; ".join(idle))
    workers = where.tasks_here * count.nproc
    shared = _are_shared(cpus, where, environ) or where.tasks_here == 1
    if "SLURM_JOB_ID" not in environ or not shared:
        return notes
    if cpus < workers:
        notes.append(
            f"{workers} workers on {where.places[0].host} share {cpus} CPU"
            f"{'' if cpus == 1 else 's'}: ask Slurm for more with --cpus-per-task=N, on the "
            "#SBATCH line and on srun"
        )
    elif count.gpus and (few := binding.advice(cpus // workers)):
        notes.append(few)
    return notes


def _without_effect(options: argparse.Namespace) -> list[str]:
    """Options of torchrun's that were given and have nothing to do here, and why."""
    from .place import HONOURED

    idle = []
    if options.monitor_interval is not None:
        idle.append("--monitor-interval (failures are seen at once)")
    if options.start_method not in (None, "spawn"):
        idle.append("--start-method (scripts are programs of their own, under torchrun too)")
    if options.event_log_handler not in (None, "null"):
        idle.append("--event-log-handler (the journal in the log directory has the events)")
    if conf := [key for key in options.rdzv_conf or {} if key not in HONOURED]:
        idle.append(f"--rdzv-conf {', '.join(conf)}")
    return idle
