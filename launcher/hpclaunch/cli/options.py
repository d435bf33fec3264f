"""The options: all of torchrun's under their own names, and a few more (docs/options.md).

Their defaults are None where Slurm knows better, so that it shows whether the user said anything.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from hpclaunch import __version__
from hpclaunch.core.placement.binding import Mode
from hpclaunch.core.placement.streams import parse_filters
from hpclaunch.core.protocol.model import ENDING, FORWARDED, PLACEHOLDER
from hpclaunch.core.protocol.timing import DEFAULTS

from . import values
from .parser import SHELLS, LaunchParser, PrintCompletion

DESCRIPTION = """\
Launch the workers of a distributed training, restart them when one fails.

    srun hpclaunch train.py ARGUMENTS           on all nodes of a Slurm step
    hpclaunch --nproc 2 train.py ARGUMENTS      on this machine
    srun hpclaunch doctor                       check what a launch depends on
    hpclaunch checkpoints DIR                   what is there to resume from
    hpclaunch sbatch train.py ARGUMENTS         print a job script
    hpclaunch shim                              for tools that call torchrun

train.py sees the environment that torchrun gives it; its arguments are passed
on verbatim. When a worker fails, all are stopped and started again from the
newest complete checkpoint (HPCLAUNCH_CHECKPOINT, or --resume-with).
"""
EPILOG = """\
torchrun's spellings with _ for - and abbreviations work too, and PET_<OPTION>
in the environment is the default of each of its options (PET_MAX_RESTARTS=5).
docs/options.md compares every option with torchrun's.
"""
MACHINES = """\
Under srun none of these is needed: Slurm tells it all. Without it, on every
machine: --nnodes N, and --rdzv-backend c10d --rdzv-endpoint HOST:PORT,
or --node-rank R --master-addr HOST."""


def build_parser(environ: Mapping[str, str], *, in_place_of: str | None = None) -> LaunchParser:
    """`in_place_of` is the launcher of torch's whose callers are to get what they know."""
    here = f"{in_place_of} is hpclaunch here (hpclaunch shim --help says why).\n\n"
    parser = LaunchParser(
        environ,
        prog=in_place_of or "hpclaunch",
        usage="%(prog)s [options] SCRIPT [arguments of the script]",
        description=(here if in_place_of else "") + DESCRIPTION,
        epilog=EPILOG,
    )
    parser.set_defaults(in_place_of=in_place_of, interpreter=None)
    _add_workers(parser.section("workers"), nproc="1" if in_place_of else None)
    _add_health(parser.section("loss and health of nodes"))
    _add_checkpoints(parser.section("checkpoints"))
    _add_output(parser.section("output"))
    _add_machines(parser.section("several machines without Slurm", MACHINES))
    _add_the_rest(parser.section("accepted for torchrun's sake"))
    add = parser.section("about")
    add("-h", "--help", action="help", help="show this and exit")
    add("--version", action="version", version=f"hpclaunch {__version__}", help="show it and exit")
    add(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        default=argparse.SUPPRESS,
        help="print a completion script for this shell and exit",
    )
    return parser


def _add_workers(add: Callable[..., None], *, nproc: str | None) -> None:
    add(
        "--nproc",
        "--nproc-per-node",
        dest="nproc_per_node",
        type=values.nproc,
        default=nproc,
        metavar="N",
        help="workers per task: a number; gpu: one per GPU that this task may use; xpu: the same "
        "for Intel's; cpu: one per CPU; auto: gpu if there is one, else cpu (default: one per GPU "
        "that this task may use, 1 where there is none or where the step has several tasks on this "
        "host; torchrun, and in its place: 1)",
    )
    add("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    add("--no-python", action="store_true", help="SCRIPT is a program, not for Python")
    add(
        "--run-path",
        action="store_true",
        help="start SCRIPT with runpy.run_path",
    )
    add(
        "--max-restarts",
        type=values.integer(0),
        default=3,
        metavar="N",
        help="restarts after failures, for the job as a whole, given back with every new "
        "checkpoint (default: %(default)s; torchrun: 0, and for each agent)",
    )
    add(
        "--grace",
        "--shutdown-timeout",
        dest="shutdown_timeout",
        type=values.seconds,
        default=20.0,
        metavar="SECONDS",
        help="time that a worker has between SIGTERM and SIGKILL (default: "
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else %(default)g, less than Slurm's KillWait; torchrun: "
        "30)",
    )
    add(
        "--signals-to-handle",
        type=values.signals,
        default=ENDING,
        metavar="NAMES",
        help="more signals that end the job in order, with commas between; always handled: "
        f"{', '.join(s.name for s in ENDING)}, and {', '.join(s.name for s in FORWARDED)}, which "
        "are passed on to the workers, who keep running (torchrun: every one ends the job)",
    )
    add(
        "--cold",
        action="store_true",
        help="every worker is a fresh interpreter, none comes from a process with torch in it",
    )
    add(
        "--preload",
        type=values.modules,
        default=(),
        metavar="MODULES",
        help="modules that this process imports beside torch, with commas between; auto: those "
        "that the script has imported, from the first restart on (default: none)",
    )
    add(
        "--bind",
        choices=[mode.value for mode in Mode],
        default="auto",
        help="auto: each worker gets its own share of this task's CPUs, near its GPU first; none: "
        "the affinity stays as Slurm set it; the others as torchrun's --numa-binding means them, "
        "within this task's CPUs (default: %(default)s)",
    )
    add(
        "--gpus-per-worker",
        type=values.integer(1),
        default=1,
        metavar="K",
        help="GPUs of each worker, for models that need several: it sees these only, as device 0 "
        "to K-1, and LOCAL_RANK is 0 (default: %(default)s)",
    )
    add(
        "--shared-backend",
        choices=("gloo",),
        help="where workers share a GPU, which nccl does not take: init_process_group gets this "
        "backend in its place",
    )
    add(
        "--mps",
        choices=("auto", "on", "off"),
        default="auto",
        help="NVIDIA's MPS, which lets workers use one GPU at the same time: auto: for GPUs that "
        "workers share; on: for all; off: they take turns. It is started and stopped here, or one "
        "that runs already is used (default: %(default)s)",
    )
    add(
        "--mps-threads",
        type=values.threads,
        default="auto",
        metavar="P",
        help="percentage of its GPU that a worker may use at most (default: auto, twice its even "
        "share)",
    )
    add(
        "--mps-memory",
        type=values.memory,
        metavar="LIMIT",
        help="GPU memory that each worker under MPS may have: 4G, 512M (default: no limit)",
    )
    add(
        "--virtual-local-rank",
        action="store_true",
        help="each worker sees its own GPU only, and LOCAL_RANK=0",
    )
    add(
        "--role",
        default="default",
        metavar="NAME",
        help="ROLE_NAME of the workers, shown by --tee (default: %(default)s)",
    )


def _add_health(add: Callable[..., None]) -> None:
    add(
        "--wait-for-nodes",
        type=values.seconds,
        default=DEFAULTS.wait,
        metavar="SECONDS",
        help="how long the job waits for nodes that were cut off, where fewer than MIN of --nnodes "
        "are left (default: %(default)g)",
    )
    add(
        "--grow",
        choices=("now", "checkpoint", "never"),
        metavar="WHEN",
        help="when a node that has come (back) ends the round, to take part in the next: now, once "
        "there is a new checkpoint, or never (default: checkpoint with --checkpoint-dir, else "
        "never: it waits for a restart)",
    )
    add(
        "--health",
        choices=("on", "off"),
        default="on",
        help="look at every node before each start, and at its GPUs while the workers run: one "
        "that is not fit is set aside (default: %(default)s)",
    )
    add(
        "--preflight",
        action="store_true",
        help="before the first start, measure every GPU and the links between them, and name what "
        "is slow",
    )


def _add_checkpoints(add: Callable[..., None]) -> None:
    add(
        "--checkpoint-dir",
        type=values.directory,
        metavar="DIR",
        help="where SCRIPT saves, with torch.save, DCP, the HF Trainer, Accelerate, Lightning, "
        "DeepSpeed, Megatron or Composer; at every start all workers get the newest complete "
        "checkpoint in HPCLAUNCH_CHECKPOINT. Also a pattern: 'runs/*/checkpoints', "
        "'lightning_logs/**'. Nothing in DIR is ever changed",
    )
    add(
        "--checkpoint-local",
        action="store_true",
        help="DIR is on a disk of each node, and all of them save there: workers get the newest "
        "that every node of the round has (default: all nodes see the same DIR)",
    )
    add_what_counts(add)
    add(
        "--resume-with",
        metavar="TEMPLATE",
        help=f"appended when there is a checkpoint: '--resume {PLACEHOLDER}'",
    )


def add_what_counts(add: Callable[..., object]) -> None:
    """What is a checkpoint and when it is complete, for a launch and for a look at them."""
    add(
        "--checkpoint-exclude",
        type=values.patterns,
        default=(),
        metavar="PATTERNS",
        help="names that are not to be resumed from, with commas between: 'best*,final*'",
    )
    add(
        "--checkpoint-complete",
        type=values.given,
        metavar="PATTERN",
        help="the file that SCRIPT writes into a directory once all ranks have saved there: only a "
        "directory that has it is complete (default: the rules of the format; .complete always "
        "counts)",
    )
    add(
        "--verify",
        choices=("auto", "full", "structure", "off"),
        default="auto",
        help="how it is known that a checkpoint is whole. structure: by names, sizes, headers and "
        "directories; full: every byte is read as well; auto: as much of it as 2 seconds allow; "
        "off: no file is opened (default: %(default)s)",
    )


def _add_output(add: Callable[..., None]) -> None:
    add(
        "--log-dir",
        type=values.directory,
        metavar="DIR",
        help="workers' output and the journal (default: under hpclaunch-logs/; torchrun: a "
        "temporary directory)",
    )
    add(
        "-r",
        "--redirects",
        default="0",
        metavar="WHICH",
        help="what the console does not show; the files always have it. 0: none; 1: stdout; 2: "
        "stderr; 3: both; 0:1,1:3: by local rank (default: %(default)s)",
    )
    add(
        "-t",
        "--tee",
        default="0",
        metavar="WHICH",
        help="what the console shows with a prefix as in [default0]: (default: %(default)s)",
    )
    add(
        "--log-line-prefix-template",
        default="",
        metavar="TEMPLATE",
        help="what lines of --tee begin with, with ${role_name}, ${local_rank}, ${rank} and "
        "${hostname} in it (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else "
        "[${role_name}${local_rank}]:)",
    )
    add(
        "--local-ranks-filter",
        default="",
        metavar="RANKS",
        help="the console shows these local ranks only: 0,1 (default: all)",
    )
    for stream, suffix in (("stdout", "out"), ("stderr", "err")):
        add(
            f"--duplicate-{stream}-filters",
            type=parse_filters,
            default=(),
            metavar="WORDS",
            help=f"lines of {stream} that have any of these also go to "
            f"round-N/filtered-agent-A.{suffix}; commas between, two for one that is meant",
        )


def _add_machines(add: Callable[..., None]) -> None:
    add(
        "--standalone",
        action="store_true",
        help="this task alone, also inside a step with several",
    )
    add(
        "--nnodes",
        type=values.nodes,
        metavar="N",
        help="machines, also as MIN:MAX: what there is beyond MAX are spares, and with MIN it goes "
        "on when others are lost",
    )
    add(
        "--rdzv-backend",
        type=values.given,
        metavar="NAME",
        help="c10d or static",
    )
    add(
        "--rdzv-endpoint",
        type=values.given,
        metavar="HOST:PORT",
        help="of the head; the others come in any order",
    )
    add(
        "--rdzv-id",
        type=values.given,
        metavar="ID",
        help="keeps jobs apart; TORCHELASTIC_RUN_ID of the workers",
    )
    add(
        "--rdzv-conf",
        type=values.rdzv_conf,
        metavar="KEY=VALUE,...",
        help="join_timeout, last_call_timeout and is_host count",
    )
    add(
        "--node-rank",
        type=values.integer(0),
        metavar="R",
        help="this machine's place; the head has 0",
    )
    add("--master-addr", type=values.given, metavar="HOST", help="the head, for --node-rank")
    add("--master-port", type=values.integer(0, 65535), metavar="P", help="the head's port")
    add(
        "--local-addr",
        type=values.given,
        metavar="HOST",
        help="this machine's address, for the others",
    )


def _add_the_rest(add: Callable[..., None]) -> None:
    add(
        "--monitor-interval",
        type=values.interval,
        metavar="SECONDS",
        help="no effect: failures are seen at once",
    )
    add(
        "--start-method",
        choices=("spawn", "fork", "forkserver"),
        help="no effect for scripts, as in torchrun",
    )
    add(
        "--event-log-handler",
        type=values.given,
        metavar="NAME",
        help="no effect: the journal has the events",
    )
    add(
        "--numa-binding",
        choices=("node", "socket", "exclusive", "core-complex"),
        help="the same as --bind",
    )
    add("--logs-specs", metavar="NAME", help="only default, which changes nothing: see --log-dir")
