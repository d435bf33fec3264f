"""Launch the workers of a distributed training, restart them when one fails.

    srun hpclaunch --nproc auto train.py ARGS      on all nodes of a Slurm step
    hpclaunch --nproc 2 train.py ARGS              on this machine

train.py sees the environment that torchrun gives it. When a worker fails, all are stopped and
started again from the newest complete checkpoint (HPCLAUNCH_CHECKPOINT, or --resume-with).
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpclaunch.core.errors import UsageError
from hpclaunch.core.model import EXIT_USAGE, PLACEHOLDER, Job, Trouble

if TYPE_CHECKING:
    from hpclaunch.config import Config

KINDS = ("auto", "gpu", "cpu")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nproc",
        default="auto",
        metavar="N|auto|gpu|cpu",
        help="workers per task of the step: a number; gpu: one per visible GPU; cpu: one per CPU "
        "that this task may use; auto: gpu if there is one, else cpu (default: %(default)s)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=3,
        metavar="N",
        help="restarts after failures, for the job as a whole (default: %(default)s)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="time that a worker has between SIGTERM and SIGKILL (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="where train.py saves with torch.save; at every start all workers get the newest "
        "complete file in HPCLAUNCH_CHECKPOINT. Nothing in DIR is ever changed",
    )
    parser.add_argument(
        "--resume-with",
        metavar="TEMPLATE",
        help="arguments to append when there is a checkpoint: '--resume {checkpoint}'",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="workers' output and the journal (default: hpclaunch-logs/<job>.<step>)",
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments, passed on verbatim")


def check(options: argparse.Namespace) -> None:
    """Raises UsageError for options that are wrong whatever the machine is like."""
    if options.nproc not in KINDS and not (options.nproc.isdigit() and int(options.nproc) > 0):
        raise UsageError(
            f"--nproc {options.nproc}: not a number of workers above 0, nor one of "
            f"{', '.join(KINDS)}"
        )
    if options.max_restarts < 0:
        raise UsageError(f"--max-restarts {options.max_restarts}: less than none")
    if not 0 <= options.grace < math.inf:
        raise UsageError(f"--grace {options.grace}: not a number of seconds")
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


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from hpclaunch.system.forkserver import ForkServer
    from hpclaunch.system.signals import Signals

    signals = Signals()
    server = ForkServer()  # should we not get as far as the agent, it ends with this process
    config = configure(options, environ)
    from hpclaunch import agent

    return agent.run(config, signals, server)


def configure(options: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """Check everything that can be checked before anybody is started.

    What is wrong on one node only (a missing file, no GPU) does not end this agent: the others
    would wait for it. It is brought to the head, which ends the job everywhere with one line.
    """
    from hpclaunch.config import Config
    from hpclaunch.system import slurm
    from hpclaunch.system.logs import LogDirectory

    started = time.strftime("%Y%m%d-%H%M%S")
    where = slurm.allocation(environ, unique=f"{started}-{os.getpid()}")
    trouble, notes, logs, nproc, python = None, [], None, 1, ""
    try:
        _check_script(options.script)
        python = _interpreter(environ)
        _check_checkpoint_dir(options.checkpoint_dir)
        nproc, note = _count_workers(options.nproc, environ)
        notes += [note] if note else []
        logs = LogDirectory(options.log_dir or Path("hpclaunch-logs") / where.name)
    except UsageError as e:
        if len(where.places) == 1:
            raise
        host = where.places[where.index].host
        trouble = Trouble(EXIT_USAGE, f"on {host}: {e}")
    return Config(
        allocation=where,
        job=Job(where.places, max_restarts=options.max_restarts, grace=options.grace),
        nproc=nproc,
        python=python,
        script=(options.script, *options.args),
        checkpoint_dir=options.checkpoint_dir,
        resume_with=tuple(shlex.split(options.resume_with or "")),
        logs=logs,
        trouble=trouble,
        notes=tuple(notes),
    )


def _check_script(script: str) -> None:
    path = Path(script)
    if not path.exists():
        raise UsageError(f"no script {script} in {Path.cwd()}")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"{script} is a directory, not a script")
    if not os.access(path, os.R_OK):
        raise UsageError(f"cannot read the script {script}: permission denied")


def _interpreter(environ: Mapping[str, str]) -> str:
    """Of the workers; PYTHON_EXEC is torchrun's own variable for it."""
    python = environ.get("PYTHON_EXEC")
    if not python:
        return sys.executable
    import shutil

    if shutil.which(python) is None:
        raise UsageError(f"PYTHON_EXEC={python} is not a program that can be started")
    return python


def _check_checkpoint_dir(directory: Path | None) -> None:
    """One that is not there yet is fine: the script makes it."""
    if directory is None or not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"--checkpoint-dir {directory} is not a directory")
    if not os.access(directory, os.R_OK | os.X_OK):
        raise UsageError(f"cannot read the checkpoint directory {directory}: permission denied")


def _count_workers(nproc: str, environ: Mapping[str, str]) -> tuple[int, str]:
    """(number of workers, a word on how it was found)."""
    if nproc.isdigit():
        return int(nproc), ""
    cpus = len(os.sched_getaffinity(0))
    if nproc == "cpu":
        return cpus, ""
    import pynvml

    from hpclaunch.system import gpus

    if found := gpus.visible(environ, pynvml):
        return found, ""
    if nproc == "gpu":
        selection = environ.get("CUDA_VISIBLE_DEVICES")
        because = "" if selection is None else f" with CUDA_VISIBLE_DEVICES={selection!r}"
        raise UsageError(f"--nproc gpu, but no GPU is visible here{because}")
    return cpus, f"no GPU here: one worker for each of the {cpus} CPUs that this task may use"
