"""A launch: checks the options, then runs an agent."""

from __future__ import annotations

import argparse
import gc
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from hpclaunch.core.placement import streams
from hpclaunch.core.protocol import wording
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import (
    END_SIGNALS,
    FORWARDED,
    PLACEHOLDER,
    REQUEUED_ENDS,
    EndKind,
)
from hpclaunch.core.protocol.timing import DEFAULTS

from .values import number

if TYPE_CHECKING:
    from hpclaunch.agent.config import Config

FROM_SLURM = {EndKind.TIME_LIMIT, EndKind.PREEMPTION}  # ends that only Slurm knows beforehand
IN_BRACES = re.compile(r"(?<!\$)\{[\w -]*\}")  # without ${NAME}, which is for the script


def check(options: argparse.Namespace) -> None:
    """Raise UsageError for options that are wrong on any machine."""
    if options.logs_specs not in (None, "default"):
        raise UsageError(
            f"--logs-specs {options.logs_specs}: torchrun's plugins are classes of torch, which "
            "the agent never loads; omit it, and see -r, -t and --log-dir"
        )
    streams_of(options, {})
    rdzv_seconds(options, "join_timeout", DEFAULTS.join)
    rdzv_seconds(options, "last_call_timeout", DEFAULTS.last_call)
    _check_checkpoint_options(options)
    _check_stage(options)
    if options.requeue and options.chain:
        raise UsageError("--requeue and --chain contradict each other: a chain is one of jobs")
    asked = another_run(options)
    if options.requeue_on and not asked:
        raise UsageError("--requeue-on says when another run follows: add --requeue or --chain")
    if asked and options.notice == 0.0 and not FROM_SLURM.isdisjoint(ends_before(options)):
        raise UsageError(
            f"{asked} with --notice off: without asking Slurm when it ends the job, and why, no "
            "other run could follow a time limit or a preemption; omit --notice off"
        )
    if options.resume_with is None:
        return
    if PLACEHOLDER not in options.resume_with and (other := IN_BRACES.search(options.resume_with)):
        raise UsageError(
            f"--resume-with {options.resume_with!r}: {other[0]} is not replaced: write "
            f"{PLACEHOLDER} for the path of the checkpoint"
        )
    if options.checkpoint_dir is None:
        raise UsageError("--resume-with needs --checkpoint-dir, to know what to resume from")
    try:
        shlex.split(options.resume_with)
    except ValueError as e:
        raise UsageError(f"--resume-with {options.resume_with!r}: {e}") from e


def check_directory() -> None:
    """Raise UsageError if the working directory is gone."""
    try:
        os.getcwd()
    except OSError as e:
        raise UsageError(
            "the directory in which hpclaunch was started no longer exists: cd elsewhere"
        ) from e


def _check_checkpoint_options(options: argparse.Namespace) -> None:
    """Raise UsageError for an option that needs --checkpoint-dir, if that is missing."""
    if options.checkpoint_dir is not None:
        return
    for name, given in (
        ("--checkpoint-local", options.checkpoint_local),
        ("--checkpoint-exclude", options.checkpoint_exclude),
        ("--checkpoint-complete", options.checkpoint_complete),
        ("--verify", options.verify != "auto"),
        ("--stage", options.stage is not None),
        (another_run(options), another_run(options)),
        ("--replace-stragglers", options.replace_stragglers),
        ("--grow checkpoint", options.grow == "checkpoint"),
    ):
        if given:
            raise UsageError(f"{name} needs --checkpoint-dir, to know where the script saves")


def _check_stage(options: argparse.Namespace) -> None:
    """Raise UsageError if --stage cannot work with this --checkpoint-dir."""
    if options.stage is None:
        return
    check_directory()
    from hpclaunch.system.checkpoints import split  # most launches do not need it

    path, _ = split(str(options.checkpoint_dir))
    real = os.path.realpath(path)
    if os.path.commonpath([real, os.path.realpath(".")]) == real:
        raise UsageError(
            f"--stage: --checkpoint-dir {path} contains the working directory, so every file "
            "would belong to it: use a directory for checkpoints only"
        )


def check_stage_on(options: argparse.Namespace, nodes: int, tasks: int) -> None:
    """Raise UsageError if --stage cannot work on so many nodes, with so many tasks."""
    if options.stage is None:
        return
    if tasks > nodes:
        names = f"{wording.count(tasks, 'task')} on {wording.count(nodes, 'node')}"
        raise UsageError(
            f"--stage needs one task on each node, not {names}: add --ntasks-per-node=1 to srun; "
            "the launcher starts the workers of all GPUs"
        )
    if nodes > 1 and options.checkpoint_local:
        raise UsageError(
            "--stage on several nodes needs a --checkpoint-dir that all of them see, without "
            "--checkpoint-local: each node has its checkpoints in memory instead"
        )


def run(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    begun: Callable[[Config], None] = lambda _: None,
) -> int:
    """Run an agent and return its exit code. After `begun` was called, no UsageError is raised."""
    from hpclaunch.system.logs.log_client import LogServiceClient
    from hpclaunch.system.processes.fork_server_client import ForkServerClient
    from hpclaunch.system.processes.signals import Signals

    from . import program

    check_directory()
    if program.is_on_stdin(options):
        from hpclaunch.system.shared import standard_input

        try:
            standard_input.keep()
        except OSError as e:
            raise UsageError(f"cannot read the script from standard input: {e.strerror}") from e
    more = beyond_the_usual(options)
    with closing(Signals(more)) as signals, ExitStack() as unless_begun:
        try:
            server = ForkServerClient(more)
            unless_begun.callback(server.close)
            logs = LogServiceClient()
            unless_begun.callback(logs.close)
        except OSError as e:
            raise UsageError(
                f"cannot start the launcher's own processes: {e.strerror}: see ulimit -u, and "
                "whether other processes of yours run here"
            ) from e
        with _without_collections():
            from .agent_config import configure

            config = configure(options, environ)
            from hpclaunch.agent.workers import prepare

            prepare(server, config, environ)
            from hpclaunch.agent import assembly

        def has_begun() -> None:
            unless_begun.pop_all()  # from now on, the agent closes both
            begun(config)

        return assembly.run(config, signals, server, logs, has_begun)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Import without garbage collections, which would scan all modules again and again."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def beyond_the_usual(options: argparse.Namespace) -> tuple[int, ...]:
    """Return the signals of --signals-to-handle that an agent would not handle without it."""
    return tuple(s for s in options.signals_to_handle if s not in (*END_SIGNALS, *FORWARDED))


def another_run(options: argparse.Namespace) -> str:
    """Return the option that asks for another run of the job, or ""."""
    if options.requeue:
        return "--requeue"
    return "--chain" if options.chain else ""


def ends_before(options: argparse.Namespace) -> tuple[EndKind, ...]:
    """Return the ends that `another_run` follows."""
    ends: tuple[EndKind, ...] = options.requeue_on or REQUEUED_ENDS
    return ends


def rdzv_seconds(options: argparse.Namespace, key: str, default: float) -> float:
    """Return the time-out under this key of --rdzv-conf, in seconds."""
    said = (options.rdzv_conf or {}).get(key, default)
    seconds = number(said)
    if not 0 < seconds < math.inf:
        raise UsageError(f"--rdzv-conf {key}={said}: not a number of seconds")
    return seconds


def streams_of(options: argparse.Namespace, environ: Mapping[str, str]) -> streams.Streams:
    return streams.Streams(
        redirects=streams.parse_selection("--redirects", options.redirects),
        tee=streams.parse_selection("--tee", options.tee),
        local_ranks=streams.parse_local_ranks("--local-ranks-filter", options.local_ranks_filter),
        stdout_filters=tuple(options.duplicate_stdout_filters),
        stderr_filters=tuple(options.duplicate_stderr_filters),
        prefix_template=options.log_line_prefix_template
        or environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
    )
