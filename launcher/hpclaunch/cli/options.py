"""The options of a launch: all of torchrun's, and some more (docs/options.md).

A default is None where it depends on Slurm or on another option.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from hpclaunch import __version__
from hpclaunch.core.placement.binding import Mode
from hpclaunch.core.placement.streams import parse_filters
from hpclaunch.core.protocol.model import END_SIGNALS, FORWARDED, PLACEHOLDER, REQUEUED_ENDS
from hpclaunch.core.protocol.timing import DEFAULTS, PATIENT_LOSS

from . import help_page, values
from .parser import SHELLS, Add, LaunchParser, PrintCompletion

MACHINES = """\
Under srun you need none of these: Slurm knows all machines. Without Slurm,
start hpclaunch on every machine with --nnodes N, and either with
"--rdzv-backend c10d --rdzv-endpoint HOST:PORT",
or with "--node-rank R --master-addr HOST"."""


def build_parser(environ: Mapping[str, str], *, in_place_of: str | None = None) -> LaunchParser:
    """Return the parser. `in_place_of`: the launcher of torch whose defaults and name it has."""
    here = f"{in_place_of} is hpclaunch here (hpclaunch shim --help says why).\n\n"
    parser = LaunchParser(
        environ,
        prog=in_place_of or "hpclaunch",
        usage=help_page.USAGE,
        description=f"{here if in_place_of else ''}{help_page.PURPOSE}\n{help_page.COMMANDS}",
        epilog=help_page.SPELLING,
    )
    parser.set_defaults(in_place_of=in_place_of, interpreter=None)
    workers = parser.section("workers")
    _add_workers(*workers, nproc="1" if in_place_of else None)
    _add_start(*workers)
    _add_devices(*workers)
    _add_nodes(*parser.section("nodes"))
    _add_checkpoints(*parser.section("checkpoints"))
    _add_output(*parser.section("output"))
    _add_machines(*parser.section("several machines without Slurm", MACHINES))
    _add_the_rest(*parser.section("accepted for compatibility with torchrun"))
    add, own = parser.section("about")
    short = "help" if in_place_of else help_page.ShowHelp  # torchrun's --help shows everything
    add("-h", "--help", action=short, help="show the options that most people need, and exit")
    own("--help-all", action="help", help="show this and exit")
    own("--version", action="version", version=f"hpclaunch {__version__}", help="show it and exit")
    add(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        default=argparse.SUPPRESS,
        help="print a completion script for this shell and exit",
    )
    return parser


def _add_workers(add: Add, own: Add, *, nproc: str | None) -> None:
    add(
        "--nproc",
        "--nproc-per-node",
        ours=["--nproc"],
        dest="nproc_per_node",
        type=values.nproc,
        default=nproc,
        metavar="N",
        help="workers per task: a number; gpu: one for each GPU that this task may use; xpu: the "
        "same for Intel GPUs; cpu: one for each CPU; auto: gpu if there is a GPU, otherwise cpu, "
        "but 1 if the step has several tasks on this host (default: gpu if there is a GPU, and 1 "
        "otherwise or with several tasks; torchrun, and hpclaunch when called as torchrun: 1)",
    )
    add("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    add("--no-python", action="store_true", help="SCRIPT is a program that is not Python")
    add("--run-path", action="store_true", help="start SCRIPT with runpy.run_path")
    add(
        "--max-restarts",
        type=values.integer(0),
        default=3,
        metavar="N",
        help="restarts after failures, for the job as a whole; after a new checkpoint, earlier "
        "ones no longer count (default: %(default)s; torchrun: 0, and for each agent)",
    )
    add(
        "--grace",
        "--shutdown-timeout",
        ours=["--grace"],
        dest="shutdown_timeout",
        type=values.seconds,
        default=20.0,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL of a worker, and for processes that outlive the "
        "workers of a job that has succeeded (default: "
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, otherwise %(default)g, which is less than Slurm's "
        "KillWait; torchrun: 30)",
    )
    add(
        "--signals-to-handle",
        type=values.signals,
        default=END_SIGNALS,
        metavar="NAMES",
        help="further signals that end the job in order, separated by commas. These always do: "
        f"{', '.join(s.name for s in END_SIGNALS)}. {' and '.join(s.name for s in FORWARDED)} are "
        "passed on to the workers, which keep running (torchrun: every signal ends the job)",
    )
    own(
        "--notice",
        type=values.notice,
        metavar="auto|SECONDS|off",
        help="when to give the workers notice, so that they can save: so long before Slurm ends "
        f"the job, plus --grace and {DEFAULTS.closing:g} s; auto: twice the longest save so far, "
        f"plus {DEFAULTS.least_notice:g} s (default: auto)",
    )
    own(
        "--notice-signal",
        type=values.notice_signal,
        metavar="NAME",
        help="the signal for this notice, which all workers get before the same optimizer step "
        "(default: the first of USR1, USR2 and TERM that the script has a handler for)",
    )
    own(
        "--requeue",
        action="store_true",
        help="at the end of the time limit, after preemption or the loss of a node, let Slurm "
        "start the job again; it continues from its newest checkpoint (needs --checkpoint-dir)",
    )
    own(
        "--requeue-on",
        type=values.endings,
        metavar="CAUSES",
        help="the ends after which a job is requeued, separated by commas: "
        f"{', '.join(values.REQUEUE_CAUSES)} (default: {','.join(e.value for e in REQUEUED_ENDS)})",
    )
    own(
        "--max-requeues",
        type=values.integer(0),
        default=100,
        metavar="N",
        help="how many times a job is started again at most (default: %(default)s)",
    )
    own(
        "--chain",
        action="store_true",
        help="the elements of this job array continue each other: the rest of them is cancelled "
        "once the training is finished, or fails (`hpclaunch sbatch --chain` writes this)",
    )
    add(
        "--role",
        default="default",
        metavar="NAME",
        help="ROLE_NAME of the workers, shown by --tee (default: %(default)s)",
    )


def _add_start(_add: Add, own: Add) -> None:
    """Add options for the start of workers."""
    own(
        "--cold",
        action="store_true",
        help="start every worker as a new interpreter; without this option, workers are forked "
        "from a process that has already imported torch",
    )
    own(
        "--preload",
        type=values.modules,
        default=("auto",),
        metavar="MODULES",
        help="modules to import before workers are forked, separated by commas, in addition to "
        "torch and to those that the script was seen to import; none: only torch and those that "
        "are named here (default: auto)",
    )


def _add_devices(add: Add, own: Add) -> None:
    """Add options for the CPUs and GPUs of each worker."""
    own(
        "--bind",
        choices=[mode.value for mode in Mode],
        default="auto",
        help="auto: each worker gets its own share of this task's CPUs, preferably near its GPU; "
        "none: the affinity stays as Slurm set it; the others have the same meaning as for "
        "torchrun's --numa-binding, within this task's CPUs (default: %(default)s)",
    )
    own(
        "--gpus-per-worker",
        type=values.integer(1),
        default=1,
        metavar="K",
        help="how many GPUs each worker has, for models that need several: it sees only these, as "
        "devices 0 to K-1, and LOCAL_RANK is 0 (default: %(default)s)",
    )
    own(
        "--shared-backend",
        choices=("gloo",),
        help="if workers share a GPU, which nccl does not allow, init_process_group uses this "
        "backend instead of nccl",
    )
    own(
        "--mps",
        choices=("auto", "on", "off"),
        default="auto",
        help="NVIDIA's MPS, with which several workers use one GPU at the same time. auto: for "
        "GPUs that workers share; on: for all GPUs; off: workers take turns. hpclaunch starts and "
        "stops MPS, or uses a daemon that already runs (default: %(default)s)",
    )
    own(
        "--mps-threads",
        type=values.threads,
        default="auto",
        metavar="P",
        help="the highest percentage of its GPU that a worker may use (default: "
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE if that is set, else twice its equal share)",
    )
    own(
        "--mps-memory",
        type=values.memory,
        metavar="LIMIT",
        help="GPU memory that each worker under MPS may use: 4G, 512M (default: no limit)",
    )
    add(
        "--virtual-local-rank",
        action="store_true",
        help="each worker sees only its own GPU, and LOCAL_RANK is 0",
    )


def _add_nodes(add: Add, own: Add) -> None:
    add(
        "--nnodes",
        type=values.nodes,
        metavar="N",
        help="number of nodes, or MIN:MAX: nodes beyond MAX are spares, and the job "
        "continues after losses as long as MIN are left (default: all of the step)",
    )
    own(
        "--loss-timeout",
        type=values.loss_timeout,
        metavar="SECONDS",
        help="how long a node may be silent before it counts as lost (default: "
        f"{DEFAULTS.loss:g} if the job can continue without it, see --nnodes MIN:MAX, otherwise "
        f"{PATIENT_LOSS:g})",
    )
    own(
        "--hang-timeout",
        type=values.hang_timeout,
        metavar="auto|SECONDS|off",
        help="restart the workers as hung after none has done anything for so long; auto: 5 times "
        f"the duration of an optimizer step, at least {DEFAULTS.least_hang:g} s, and never if the "
        "script makes no steps (default: auto)",
    )
    own(
        "--progress",
        choices=("on", "off"),
        default="on",
        help="whether workers report their progress, and where they are if they hang "
        "(default: %(default)s)",
    )
    own(
        "--replace-stragglers",
        action="store_true",
        help="replace a node for whose workers the others wait, step after step, by a spare at the "
        "next checkpoint (needs --checkpoint-dir)",
    )
    own(
        "--wait-for-nodes",
        type=values.seconds,
        default=DEFAULTS.wait,
        metavar="SECONDS",
        help="how long the job waits for nodes that were cut off, if fewer than MIN of --nnodes "
        "are left (default: %(default)g)",
    )
    own(
        "--grow",
        choices=("now", "checkpoint", "never"),
        metavar="WHEN",
        help="when to end the running round so that a new or returned node can take part: now; "
        "checkpoint: after the next new checkpoint; never: it waits for a restart "
        "(default: checkpoint with --checkpoint-dir, otherwise never)",
    )
    own(
        "--health",
        choices=("on", "off"),
        default="on",
        help="check every node before each start, and watch its GPUs while the workers run; an "
        "unfit node is cordoned (default: %(default)s)",
    )


def _add_checkpoints(_add: Add, own: Add) -> None:
    own(
        "--checkpoint-dir",
        type=values.own_directory,
        metavar="DIR",
        help="the directory in which SCRIPT saves, with torch.save, DCP, the HF Trainer, "
        "Accelerate, Lightning, DeepSpeed, Megatron or Composer. At every start all workers get "
        "the path of the newest complete checkpoint in HPCLAUNCH_CHECKPOINT. DIR may be a pattern: "
        "'runs/*/checkpoints', 'lightning_logs/**'. Nothing in DIR is changed without --stage",
    )
    own(
        "--checkpoint-local",
        action="store_true",
        help="DIR is on a local disk of each node, and every node saves there: workers get the "
        "newest checkpoint that every node of the round has (default: all nodes see the same DIR)",
    )
    own(
        "--stage",
        nargs="?",
        const=values.MEMORY,
        type=values.own_directory,
        metavar="DIR",
        help="SCRIPT saves in memory, and each checkpoint is then copied to --checkpoint-dir: its "
        "arguments that name this directory get a path in memory instead, which is also in "
        "HPCLAUNCH_STAGE. With several nodes, each keeps a copy of another one's checkpoints. "
        "--stage=DIR: on this fast local disk of each node",
    )
    add_what_counts(own)
    own(
        "--resume-with",
        metavar="TEMPLATE",
        help="arguments to add to SCRIPT's own if there is a checkpoint: "
        f"'--resume {PLACEHOLDER}', where {PLACEHOLDER} stands for its path",
    )


def add_what_counts(own: Callable[..., object]) -> None:
    """Add options on what counts as a complete checkpoint, also for `hpclaunch checkpoints`."""
    own(
        "--checkpoint-exclude",
        type=values.patterns,
        default=(),
        metavar="PATTERNS",
        help="names of checkpoints from which the job does not resume, separated by commas: "
        "'best*,final*'",
    )
    own(
        "--checkpoint-complete",
        type=values.given,
        metavar="PATTERN",
        help="the file that SCRIPT writes into a checkpoint directory after all ranks have saved "
        "there: only a directory that contains it is complete (default: the rules of the format; "
        "the file .complete always has this meaning)",
    )
    own(
        "--verify",
        choices=("auto", "full", "structure", "off"),
        default="auto",
        help="how to verify that a checkpoint is whole. structure: by names, sizes, headers and "
        "directories of archives; full: also read every byte; auto: read as much as is possible "
        "in 2 seconds; off: only that no file is missing and that the times fit (default: "
        "%(default)s)",
    )


def _add_output(add: Add, own: Add) -> None:
    add(
        "--log-dir",
        type=values.directory,
        metavar="DIR",
        help="directory for the workers' output and the journal (default: a directory in "
        "hpclaunch-logs/; torchrun: a temporary directory)",
    )
    own(
        "--metrics",
        type=values.metrics,
        metavar="WHERE",
        help="offer metrics to Prometheus: PORT listens on loopback, ADDRESS:PORT elsewhere; "
        "FILE.prom, or a directory with a / in its name, is for the textfile collector of "
        "node_exporter (docs/watching.md)",
    )
    own(
        "--notify",
        type=values.given,
        metavar="COMMAND",
        help="a shell command to run for each event of the job, with the event as JSON on its "
        "standard input (docs/watching.md)",
    )
    add(
        "-r",
        "--redirects",
        default="0",
        metavar="WHICH",
        help="what the console does not show; the files always contain everything. 0: none; 1: "
        "stdout; 2: stderr; 3: both; 0:1,1:3: stdout of local rank 0, both of local rank 1 "
        "(default: %(default)s)",
    )
    add(
        "-t",
        "--tee",
        default="0",
        metavar="WHICH",
        help="what the console shows with a prefix such as [default0]: (default: %(default)s)",
    )
    add(
        "--log-line-prefix-template",
        default="",
        metavar="TEMPLATE",
        help="the prefix of the lines of --tee, which may contain ${role_name}, ${local_rank}, "
        "${rank} and ${hostname} (default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, otherwise "
        "[${role_name}${local_rank}]:)",
    )
    add(
        "--local-ranks-filter",
        default="",
        metavar="RANKS",
        help="the console shows only these local ranks: 0,1 (default: all)",
    )
    for stream, suffix in (("stdout", "out"), ("stderr", "err")):
        add(
            f"--duplicate-{stream}-filters",
            type=parse_filters,
            default=(),
            metavar="WORDS",
            help=f"lines of {stream} that contain one of these words are also written to "
            f"round-N/filtered-agent-A.{suffix}; commas between words, and ,, for a comma",
        )


def _add_machines(add: Add, _own: Add) -> None:
    add(
        "--standalone",
        action="store_true",
        help="launch on this task only, even in a step with several tasks",
    )
    add("--rdzv-backend", type=values.given, metavar="NAME", help="c10d or static")
    add(
        "--rdzv-endpoint",
        type=values.given,
        metavar="HOST:PORT",
        help="address of the head; the others may start in any order",
    )
    add(
        "--rdzv-id",
        type=values.given,
        metavar="ID",
        help="distinguishes jobs at one endpoint, and launches at the same time in one step; the "
        "workers' TORCHELASTIC_RUN_ID",
    )
    add(
        "--rdzv-conf",
        type=values.rdzv_conf,
        metavar="KEY=VALUE,...",
        help="join_timeout, last_call_timeout and is_host have an effect",
    )
    add(
        "--node-rank",
        type=values.integer(0),
        metavar="R",
        help="number of this machine; the head is 0",
    )
    add("--master-addr", type=values.given, metavar="HOST", help="the head, with --node-rank")
    add("--master-port", type=values.integer(0, 65535), metavar="P", help="the head's port")
    add(
        "--local-addr",
        type=values.given,
        metavar="HOST",
        help="address, name or network interface of this machine that the others use",
    )


def _add_the_rest(add: Add, _own: Add) -> None:
    add(
        "--monitor-interval",
        type=values.interval,
        metavar="SECONDS",
        help="no effect: failures are noticed at once",
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
        help="no effect: the events are in the journal",
    )
    add(
        "--numa-binding",
        choices=("node", "socket", "exclusive", "core-complex"),
        help="the same as --bind",
    )
    add("--logs-specs", metavar="NAME", help="only default, which has no effect: see --log-dir")
