"""The configuration of an agent, from the command line, Slurm and this machine.

All that can be checked before the start of workers is checked here. A mistake on one node only (a
missing file, no GPU) is sent to the head as trouble, and the head ends the job on all nodes with
one message. If this agent just exited, the others would wait for it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpclaunch.agent.config import Checkpoints, Config, Start
from hpclaunch.core.health.host_rules import files_needed
from hpclaunch.core.placement import binding, worker_environment
from hpclaunch.core.protocol import wording
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import (
    HEAD,
    Allocation,
    Grow,
    Job,
    Origin,
    Requeueing,
    Trouble,
)
from hpclaunch.core.protocol.node_facts import ColdStart, LaunchNote, LaunchNoteKind
from hpclaunch.core.protocol.timing import BEATS, DEFAULTS, LEARNED, PATIENT_LOSS, Timing
from hpclaunch.core.protocol.values import field, replace, value
from hpclaunch.system.logs import log_directory
from hpclaunch.system.logs.log_directory import LogDirectory
from hpclaunch.system.processes import affinity
from hpclaunch.system.shared import open_file_limit, slurm_steps, standard_input

from .place import HONOURED, MEETING_BACKENDS, SLURM_HONOURED, locate
from .program import Program, program, torchrun_of_unknown_python
from .run import (
    another_run,
    beyond_the_usual,
    check_stage_on,
    ends_before,
    rdzv_seconds,
    streams_of,
)
from .warm_start import start
from .worker_count import Count, count_workers

if TYPE_CHECKING:
    from hpclaunch.system.metrics_target import MetricsTarget

SUBMITIT = "SUBMITIT_EXECUTOR"  # a variable of jobs that submitit has started


@value()
class TaskSettings:
    """The settings of this agent's task. After trouble, those not known yet keep their defaults."""

    cpus: tuple[int, ...]
    bind: binding.Mode
    program: Program = field(default_factory=lambda: Program((), sys.executable))
    count: Count = field(default_factory=lambda: Count(1))
    threads: int = 0
    start: Start = field(default_factory=lambda: Start(warm=False, ahead=False))
    cold: str = ""  # why workers start cold, if the user may not expect it
    logs: LogDirectory | None = None
    elsewhere: LaunchNote | None = None  # where the logs are, if the user would not look there
    trouble: Trouble | None = None


def configure(options: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """Return the configuration. Raises UsageError for mistakes that concern the whole job, and in a
    job of one agent for any mistake.
    """
    started = time.strftime("%Y%m%d-%H%M%S")
    where, notes = locate(options, environ, unique=f"{started}-{os.getpid()}")
    open_file_limit.raise_to(files_needed(len(where.places), 0))  # for the others' connections
    task = _examine(options, environ, where)
    host = where.places[where.index].host
    facts: list[LaunchNote | ColdStart] = [*notes]
    facts += [task.elsewhere] if task.elsewhere else []
    if where.index == HEAD:
        facts += [ColdStart(host, task.cold)] if task.cold else []
        facts += _notes(options, environ, where, task)
    arguments = tuple(options.training_script_args)
    resume_with = tuple(shlex.split(options.resume_with or ""))
    return Config(
        allocation=where if task.logs is None else replace(where, name=task.logs.launch),
        job=_job(options, environ, where, task.logs),
        nproc=task.count.nproc,
        command=task.program.command,
        arguments=arguments,
        stdin=standard_input.PATH if task.program.on_stdin else "",
        python=task.program.python,
        start=task.start,
        run_id=options.rdzv_id or (where.name if where.is_step else "none"),
        role=options.role,
        signals=",".join(s.name for s in options.signals_to_handle),
        handled=beyond_the_usual(options),
        as_tasks=not (options.standalone and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"),
        cpus=task.cpus,
        cpus_are_shared=_are_shared(len(task.cpus), where, environ),
        bind=task.bind,
        threads=task.threads,
        gpus=task.count.gpus,
        broken=task.count.broken,
        selector=task.count.selector,
        virtual_local_rank=options.virtual_local_rank,
        mps=(options.mps, options.mps_threads, options.mps_memory or ""),
        shared_backend=options.shared_backend or "",
        local_addr=options.local_addr or "",
        checkpoints=_checkpoints(options, (*arguments, *resume_with)),
        resume_with=resume_with,
        logs=task.logs,
        anew=_is_anew(where, task.logs),
        progress=options.progress == "on",
        streams=streams_of(options, environ),
        as_torchrun=bool(options.in_place_of),
        metrics=options.metrics,
        notify=options.notify or "",
        trouble=task.trouble,
        notes=tuple(facts),
    )


# The job


def _job(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    where: Allocation,
    logs: LogDirectory | None,
) -> Job:
    """Return the settings of the job, which are the same for all of its agents."""
    fewest, most = options.nnodes or (where.nodes, where.nodes)
    fixed, saves = fewest >= where.nodes, options.checkpoint_dir is not None
    loss = options.loss_timeout or (PATIENT_LOSS if fixed else DEFAULTS.loss)
    return Job(
        where.places,
        fewest=min(fewest, where.nodes),
        most=min(most, where.nodes),
        max_restarts=options.max_restarts,
        gpus_per_worker=options.gpus_per_worker,
        # Each worker sees only its own GPUs. MPS requires it.
        isolate=options.virtual_local_rank or options.gpus_per_worker > 1 or options.mps == "on",
        health=options.health == "on",
        replaces_stragglers=options.replace_stragglers,
        saves=saves,
        local=options.checkpoint_local,
        stages=options.stage is not None,
        slurm_id=environ.get("SLURM_JOB_ID", ""),
        grow=Grow(options.grow or ("checkpoint" if saves else "never")),
        elects=where.is_step,
        notice_signal=options.notice_signal or 0,
        requeueing=_requeueing(options, environ),
        first_round=0 if logs is None else logs.first_round,
        timing=Timing(
            join=rdzv_seconds(options, "join_timeout", DEFAULTS.join),
            last_call=rdzv_seconds(options, "last_call_timeout", DEFAULTS.last_call),
            wait=options.wait_for_nodes,
            grace=options.shutdown_timeout,
            hang=LEARNED if options.hang_timeout is None else options.hang_timeout,
            notice=LEARNED if options.notice is None else options.notice,
            loss=loss,
            beat=min(DEFAULTS.beat, loss / BEATS),
        ),
    )


def _requeueing(options: argparse.Namespace, environ: Mapping[str, str]) -> Requeueing:
    if not another_run(options) or "SLURM_JOB_ID" not in environ or SUBMITIT in environ:
        return Requeueing()
    if options.chain:
        before, after = slurm_steps.other_elements(environ)
        most = before + after
    else:
        before, most = slurm_steps.runs_before(environ), options.max_requeues
    return Requeueing(ends_before(options), most, before, is_chain=options.chain)


def _checkpoints(options: argparse.Namespace, words: tuple[str, ...]) -> Checkpoints | None:
    """Return the settings for checkpoints. `words`: the script's arguments."""
    if options.checkpoint_dir is None:
        return None
    others: tuple[str, ...] = ()
    if options.stage is not None:
        # Most launches do not need these.
        from hpclaunch.agent.staged_paths import aliases
        from hpclaunch.system.checkpoints import split

        storage, _ = split(str(options.checkpoint_dir))
        others = aliases(storage, words)
    return Checkpoints(
        where=str(options.checkpoint_dir),
        exclude=options.checkpoint_exclude,
        complete=options.checkpoint_complete or "",
        verify=options.verify,
        stage="" if options.stage is None else os.path.abspath(options.stage),
        aliases=others,
    )


# This task


def _examine(
    options: argparse.Namespace, environ: Mapping[str, str], where: Allocation
) -> TaskSettings:
    """Return the settings of this task. A UsageError is raised only if this agent is alone;
    otherwise it becomes the task's trouble.
    """
    task = TaskSettings(affinity.available(), binding.Mode(options.numa_binding or options.bind))
    try:
        task.program = program(options, environ)
        _check_checkpoint_dir(options.checkpoint_dir)
        check_stage_on(options, where.nodes, len(where.places))
        if options.stage is not None and not os.path.isdir(options.stage):
            raise UsageError(f"--stage={options.stage}: there is no such directory")
        if where.index == HEAD:
            _check_metrics(options.metrics)
        task.count = count_workers(
            options.nproc_per_node,
            where,
            environ,
            python=task.program.python,
            cpus=len(task.cpus),
            per_worker=options.gpus_per_worker,
        )
        _allow_files(len(where.places), task.count.nproc)
        workers = where.tasks_here * task.count.nproc
        if workers > 1:
            shared = _are_shared(len(task.cpus), where, environ)
            sharing = workers if shared else task.count.nproc
            task.threads = _threads(task.bind, task.cpus, sharing)
        at_load = {**environ, **worker_environment.at_load(environ, threads=task.threads)}
        head = where.index == HEAD
        task.start, task.cold = start(options, task.program, at_load, head=head)
        task.logs, task.elsewhere = _logs(options, environ, where)
    except UsageError as e:
        if where.alone:
            raise
        host = where.places[where.index].host
        task.trouble = Trouble(Origin.USAGE, f"on {host}: {e}")
    return task


def _check_checkpoint_dir(directory: Path | None) -> None:
    """Raise UsageError if the directory exists but cannot be read."""
    if directory is None or not os.path.lexists(directory):
        return
    if not os.path.isdir(directory):
        raise UsageError(f"--checkpoint-dir {directory} is not a directory")
    if not os.access(directory, os.R_OK | os.X_OK):
        raise UsageError(f"cannot read the checkpoint directory {directory}: permission denied")


def _check_metrics(target: MetricsTarget | None) -> None:
    """Raise UsageError if the target's directory is missing, which is most likely a mistake. Call
    this on the first node only: on others, a missing directory is no reason not to train.
    """
    if target is None or target.port:
        return
    directory = target.directory or os.path.dirname(target.file) or "."
    if not os.path.isdir(directory):
        raise UsageError(f"--metrics: there is no directory {directory}")


def _allow_files(agents: int, workers: int) -> None:
    needed = files_needed(agents, workers)
    if (most := open_file_limit.raise_to(needed)) < needed:
        others = f" in a job of {agents}" if agents > 1 else ""
        raise UsageError(
            f"a launcher of {wording.count(workers, 'worker')}{others} has up to {needed} files "
            f"open, but only {most} are allowed: start fewer workers here, or ask for a higher "
            "hard limit (ulimit -Hn)"
        )


def _are_shared(cpus: int, where: Allocation, environ: Mapping[str, str]) -> bool:
    """Return whether all tasks of this node may use all CPUs that the step has here."""
    on_node = environ.get("SLURM_CPUS_ON_NODE", "")
    there = os.cpu_count() or 1
    return where.tasks_here > 1 and cpus >= min(
        int(on_node) if on_node.isdecimal() else there, there
    )


def _threads(mode: binding.Mode, cpus: tuple[int, ...], workers: int) -> int:
    """Return OMP_NUM_THREADS: the number of cores in an equal share of the CPUs.

    It is 1, as under torchrun, if workers are not bound to CPUs of their own. All workers of a node
    get the same number, since they may be forked from one process that has loaded torch with it.
    """
    if mode not in (binding.Mode.AUTO, binding.Mode.EXCLUSIVE):
        return 1
    there = affinity.topology(cpus)
    return binding.threads(binding.bind(mode, cpus, there, [binding.Locality()] * workers), there)


def _logs(
    options: argparse.Namespace, environ: Mapping[str, str], where: Allocation
) -> tuple[LogDirectory, LaunchNote | None]:
    """Return the log directory, and a note if it is not where the user would look for it. After a
    requeue, the numbers of rounds continue from the last run.

    In place of torchrun, if the working directory is not writable, the log directory is temporary.
    """
    first, host = where.index == HEAD, where.places[where.index].host
    again = where.name if slurm_steps.runs_before(environ) else ""
    if options.log_dir is not None:
        path, name = log_directory.unused(options.log_dir, where.name, where.identity)
        paths = {"asked": str(options.log_dir), "directory": str(path)}
        used = LaunchNote(host, LaunchNoteKind.LOGS_IN_USE, {**paths})
        return LogDirectory(path, name, again), used if first and path != options.log_dir else None
    try:
        # A batch script without srun may have several launches, even at the same time.
        path = log_directory.default(where.name, alone=where.alone)
        logs = LogDirectory(path, where.name, again)
        theirs = LaunchNote(host, LaunchNoteKind.LOGS_FOREIGN, {"directory": str(logs.path)})
        usual = logs.path.parent.name == "hpclaunch-logs"
        return logs, theirs if first and not usual else None
    except UsageError as e:
        if not options.in_place_of:
            raise UsageError(f"{e}; give another directory with --log-dir") from e
        try:
            path = log_directory.make_temporary(f"hpclaunch-{where.name}-")
            logs = LogDirectory(path, where.name)
        except OSError:
            raise e from None
        paths = {"why": str(e), "directory": str(logs.path)}
        return logs, LaunchNote(host, LaunchNoteKind.LOGS_TEMPORARY, {**paths})


def _is_anew(where: Allocation, logs: LogDirectory | None) -> bool:
    """Return whether this is the first agent of its step, and was started before. Other launches
    have no unique name that would show this.
    """
    is_first = where.index == HEAD and where.is_step and not where.alone
    return is_first and logs is not None and logs.was_begun(where.identity)


# Notes for the user


def _notes(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    where: Allocation,
    task: TaskSettings,
) -> list[LaunchNote]:
    """Return what the user should know before the workers start."""
    count, cpus, host = task.count, len(task.cpus), where.places[HEAD].host
    notes = [*count.notes]
    if command := task.program.note:
        notes.insert(0, LaunchNote(host, LaunchNoteKind.PYTHON, {"command": command}))
    if torchrun := torchrun_of_unknown_python(options, environ):
        paths = {"torchrun": torchrun, "python": task.program.python}
        notes.append(LaunchNote(host, LaunchNoteKind.TORCHRUN, {**paths}))
    if idle := _without_effect(options, environ, where):
        notes.append(LaunchNote(host, LaunchNoteKind.WITHOUT_EFFECT, {**idle}))
    workers = where.tasks_here * count.nproc
    shared = _are_shared(cpus, where, environ) or where.tasks_here == 1
    if "SLURM_JOB_ID" not in environ or not shared:
        return notes
    if cpus < workers:
        numbers = {"workers": workers, "cpus": cpus}
        notes.append(LaunchNote(host, LaunchNoteKind.CPUS, {**numbers}))
    elif count.gpus and (cores := cpus // workers) < binding.FEW_CORES:
        notes.append(LaunchNote(host, LaunchNoteKind.CORES, {"cores": cores}))
    return notes


def _without_effect(
    options: argparse.Namespace, environ: Mapping[str, str], where: Allocation
) -> dict[str, str]:
    """Return the given options that have no effect here, each with the reason."""
    idle = {}
    if options.monitor_interval is not None:
        idle["--monitor-interval"] = "failures are seen at once"
    if options.start_method not in (None, "spawn"):
        idle["--start-method"] = "scripts are programs of their own, under torchrun too"
    if options.event_log_handler not in (None, "null"):
        idle["--event-log-handler"] = "the journal in the log directory has the events"
    asked = another_run(options)
    if asked and "SLURM_JOB_ID" not in environ:
        idle[asked] = "there is no Slurm"
    elif asked and SUBMITIT in environ:
        idle[asked] = "submitit requeues this job"
    if options.rdzv_backend not in MEETING_BACKENDS:
        why = "this launch is on one machine" if where.alone else "Slurm knows all machines"
        idle[f"--rdzv-backend {options.rdzv_backend}"] = why
    honoured = SLURM_HONOURED if where.is_step else HONOURED
    if conf := [key for key in options.rdzv_conf or {} if key not in honoured]:
        idle[f"--rdzv-conf {', '.join(conf)}"] = ""
    return idle
