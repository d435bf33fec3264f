"""The page of `hpclaunch --help`: the most important options. `--help-all` shows all."""

from __future__ import annotations

import argparse
from typing import Any

from . import write

USAGE = "%(prog)s [options] SCRIPT [arguments of the script]"

PURPOSE = """\
Start the workers of a distributed PyTorch training as torchrun would. When a
worker or a node fails, start them again from the newest complete checkpoint.

in a job script, on all nodes of the job:
  srun hpclaunch train.py --lr 0.1
  srun hpclaunch -m package.train                a module
  srun hpclaunch --checkpoint-dir ckpt train.py  resume from ckpt after failures
  srun --no-kill hpclaunch --nnodes 3:4 train.py continue when a node is lost
on one machine, without Slurm:
  hpclaunch --nproc 2 train.py
"""

OPTIONS = """\
the options that most people need (--help-all has the rest):
  --nproc N             workers per task of the step, usually one task per node:
                        a number, gpu, cpu or auto (default: one for each GPU)
  --nnodes N|MIN:MAX    nodes: those beyond MAX are spares; the job continues
                        as long as MIN are left (default: all of the step)
  --checkpoint-dir DIR  where SCRIPT saves: each start gets the newest complete
                        checkpoint in HPCLAUNCH_CHECKPOINT
  --stage               SCRIPT saves in memory, which hpclaunch copies to DIR
  --resume-with ARGS    arguments for SCRIPT if there is a checkpoint, such as
                        '--resume {checkpoint}'
  --max-restarts N      restarts in a row without a new checkpoint (default: 3)
  --requeue             at the time limit, and after preemption or the loss of a
                        node, continue in another run (needs --checkpoint-dir)
  --grace SECONDS       time from SIGTERM to SIGKILL of a worker (default: 20)
  --hang-timeout SECONDS
                        restart the workers if none does anything for so long
                        (default: auto, 5 times a step, at least 10)
  --mps auto|on|off     NVIDIA MPS, for workers that share a GPU (default: auto)
  --cold                start each worker as a new interpreter, not as a fork of
                        one that has imported torch
  --log-dir DIR         output of each worker, and the journal
                        (default: a directory in hpclaunch-logs/)
  --tee 3               begin each line on the console with role and local rank
  --version, --print-completion bash|zsh|tcsh|fish
"""

COMMANDS = """\
commands (`hpclaunch COMMAND --help` has the options of each):
  run         status [JOB], top JOB: progress and speed of running jobs
              logs [JOB]: what all ranks wrote; stacks JOB: where they are
              stop, restart, notice JOB: end it, restart it, let it save
  afterwards  report [JOB]: what failed, and where each GPU's time went
              checkpoints DIR: which of them are complete
              replay LOG_DIR: what happened, from the journals
  set up      doctor: check the nodes; sbatch SCRIPT: write a job script
              shim: have programs that call torchrun use hpclaunch
"""

SPELLING = """\
As with torchrun, you may write _ instead of - and abbreviate options. The
variable PET_<OPTION> sets the default of each of torchrun's options, for
example PET_MAX_RESTARTS=5. docs/options.md compares every option with
torchrun's.
"""


class ShowHelp(argparse.Action):
    """`--help`: prints the most important options, and exits."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **settings)

    def __call__(
        self, parser: argparse.ArgumentParser, _space: Any, _value: Any, _spelling: Any = None
    ) -> None:
        write(f"{parser.format_usage()}\n{PURPOSE}\n{OPTIONS}\n{COMMANDS}")
        parser.exit()
