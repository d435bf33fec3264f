"""Write docs/messages.md: every message of a launch, what it means, and what to do.

python docs/messages.py

The texts are those that `hpclaunch.observe` makes of the example facts below, so the page cannot
say anything else than the console. A test fails if the page is out of date, if a kind of fact or a
line of the two modules that word facts has no example, or if an example has no meaning or nothing
to do.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpclaunch.core.head.last_lines import MEANINGS, SIGNALS
from hpclaunch.core.protocol import facts, node_facts
from hpclaunch.core.protocol.facts import Fact
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import NO_RANK, Failure, Leftover, Origin, Request, Verdict
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.core.protocol.wording import signal_name
from hpclaunch.observe.console import messages

PAGE = Path(__file__).with_name("messages.md")
NOTHING = "Nothing."

START = """\
# Messages

`python docs/messages.py` writes this page from the code. On the console each message begins with
`hpclaunch:`. Names and numbers are examples. Messages on wrong options are not listed.

After a job has failed, the last lines name a section of this page where it says more than they do.
"""


@dataclass(frozen=True)
class Entry:
    """A message: a fact with example values, the meaning, and what the user should do."""

    fact: Fact
    means: str
    do: str


@dataclass(frozen=True)
class Ending:
    """An end of a job on which the page says more than the console: what it means, what to do."""

    title: str
    means: str
    do: str


def _failed(rank: int = 3, host: str = "n2", *, code: int = 1, signal: int = 0) -> Failure:
    return Failure(2, rank, host, code, signal, 0.0, "")


def _began(**fields: object) -> facts.RoundBegan:
    usual: dict[str, object] = {
        "round": 1,
        "hosts": "n[1-3]",
        "nodes": 3,
        "ranks": 12,
        "came": (),
        "gone": (),
        "keeps_spares": False,
        "spares": (),
        "checkpoint": "",
        "rule": "",
        "passed_over": (),
        "lacking": "",
        "begins": 2,
        "saves": True,
    }
    return facts.RoundBegan(**{**usual, **fields})  # type: ignore[arg-type]


def _restart(**fields: object) -> facts.RestartDecided:
    usual: dict[str, object] = {
        "cause": _failed(),
        "used": 1,
        "most": 3,
        "is_last": False,
        "node_delay": 0.0,
        "outage_delay": 0.0,
    }
    return facts.RestartDecided(**{**usual, **fields})  # type: ignore[arg-type]


CKPT = "/scratch/u/ckpt/step-600.pt"
SAVED = {"checkpoint": CKPT, "rule": "torch.save, step 600, by its name"}
UPLOAD = (Leftover(4711, "aws", 0),)

SECTIONS: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    (
        "Rounds and restarts",
        (
            Entry(
                _restart(),
                "A worker failed, so all workers start again. A new checkpoint gives the restarts "
                "back.",
                "Read the advice below it, if there is one, or the worker's last lines: "
                "`hpclaunch logs --rank 3`.",
            ),
            Entry(
                _restart(is_last=True),
                "No restart is left. hpclaunch only looks whether a checkpoint was saved since the "
                "last start; that would give the restarts back.",
                "Read why the rounds failed: `hpclaunch report`.",
            ),
            Entry(
                _restart(outage_delay=4.0),
                "The file system or the network failed, which may pass.",
                "Nothing, unless it continues: then report the file system or the network.",
            ),
            Entry(
                _restart(node_delay=2.0),
                "The first failure was on the same node three times in a row.",
                "Check the node: `srun --nodelist=n2 hpclaunch doctor`.",
            ),
            Entry(
                _began(**SAVED),
                "The round begins with this checkpoint. The parentheses have its format, and the "
                "rule "
                "by which it is [the newest](checkpoints.md#which-one-is-the-newest).",
                NOTHING,
            ),
            Entry(
                _began(passed_over=("step-800.pt: cut short",), **SAVED),
                "A newer checkpoint is not complete, so an older one is used.",
                "`hpclaunch checkpoints DIR` shows what is missing. Save to a temporary name and "
                "rename.",
            ),
            Entry(
                _began(passed_over=("step-800.pt: cut short",)),
                "There are checkpoints, but none of them is complete.",
                "`hpclaunch checkpoints DIR` shows what each of them lacks.",
            ),
            Entry(
                _began(begins=1, lacking="files of no known format: model.bin"),
                "The directory contains files that hpclaunch does not recognise as a checkpoint.",
                "Mark your own format as complete: [formats](checkpoints.md#formats).",
            ),
            Entry(
                _began(),
                "A restart came before the first save.",
                "Save more often, if restarts are frequent.",
            ),
            Entry(
                _began(saves=False),
                "Without `--checkpoint-dir`, hpclaunch does not know of any checkpoint.",
                "Give `--checkpoint-dir`, and load the path in `HPCLAUNCH_CHECKPOINT` "
                "([checkpoints](checkpoints.md)).",
            ),
            Entry(
                _began(begins=3, gone=("n2",), came=("n4",), nodes=3, **SAVED),
                "The next round has other nodes than the last one.",
                NOTHING,
            ),
            Entry(
                _began(begins=1, layout="4(x2),2"),
                "Nodes have different numbers of GPUs or tasks.",
                "Nothing, if this is intended.",
            ),
            Entry(
                _began(begins=1, isolated=(facts.IsolatedGpus(("n1",)),)),
                "Each worker sees one GPU: each task has its own, or the GPUs are MIG devices.",
                "Nothing: `set_device(LOCAL_RANK)` and `set_device(0)` are both right.",
            ),
            Entry(
                _began(begins=1, isolated=(facts.IsolatedGpus(("n1",), 8, 1),)),
                "There are more workers than GPUs.",
                "Nothing, if this is intended; otherwise lower `--nproc` "
                "([several workers on a GPU](mps.md)).",
            ),
            Entry(
                facts.NodesJoin(("n3",)),
                "Nodes that have arrived or come back take part in the next round.",
                "Nothing; `--grow` says when this happens.",
            ),
            Entry(
                facts.RequestGranted(Request.RESTART),
                "Somebody has called `hpclaunch restart`.",
                NOTHING,
            ),
            Entry(
                facts.RequestGranted(Request.NOTICE),
                "Somebody has called `hpclaunch notice`.",
                NOTHING,
            ),
        ),
    ),
    (
        "Workers",
        (
            Entry(
                facts.HangFound(
                    0,
                    10.0,
                    0.9,
                    (
                        "ranks 0-2,4-7 wait in all_reduce number 4,211",
                        "rank 3 on n2 has not reached it: it is in loader.py:88, next_batch",
                    ),
                    3,
                    "n2",
                ),
                "No worker has made progress for 10 s; the longest step lately took 0.9 s. The "
                "rank "
                "that has not reached the collective is at fault. A restart follows.",
                "[What to do about a hang](hangs.md#what-to-do).",
            ),
            Entry(
                facts.HangFound(
                    0,
                    10.0,
                    0.0,
                    ("all have begun it: a network that loses data, or a fault of the backend",),
                    NO_RANK,
                    "",
                    90.0,
                ),
                "The same, and no restart is left. The workers have 90 s more to recover.",
                "[What to do about a hang](hangs.md#what-to-do).",
            ),
            Entry(
                facts.StragglerNamed(
                    "n2",
                    3,
                    0.31,
                    1.3,
                    "the CPU quota of its cgroup stops it for 23% of the time",
                ),
                "All other ranks wait for this one in each step. The second line is the cause, as "
                "far "
                "as its node can see.",
                "[The causes](hangs.md#the-causes), and what to do about each.",
            ),
            Entry(
                facts.StragglerNamed("n2", NO_RANK, 0.31, 1.3, ""),
                "The same, for all ranks of a node.",
                "Check the node; `--replace-stragglers` gives its place to a spare.",
            ),
            Entry(
                facts.StragglerRecovered("n2", 3),
                "The rank keeps up with the others again.",
                NOTHING,
            ),
            Entry(
                facts.LeftoversFound("n1", facts.LeftoverStep.WAIT, 20.0, UPLOAD),
                "The workers are done, and a process that they started still runs, perhaps an "
                "upload.",
                "If it needs longer, let the script wait for it, or raise `--grace`.",
            ),
            Entry(
                facts.LeftoversFound("n1", facts.LeftoverStep.END, 20.0, UPLOAD),
                "It still ran after `--grace`, and gets SIGTERM.",
                "As above.",
            ),
            Entry(
                facts.LeftoversFound("n1", facts.LeftoverStep.KILL, 20.0, (Leftover(4711, "aws"),)),
                "It ignored SIGTERM, or a worker had failed; it gets SIGKILL.",
                "As above.",
            ),
            Entry(
                facts.WorkersSurvive(
                    "n2", "workers survive SIGKILL for 30 s (a hung file system or driver?)"
                ),
                "The kernel cannot end these processes: a driver or a file system does not answer.",
                "Report the node to the administrator. The launcher ends all the same.",
            ),
            Entry(
                node_facts.SignalUnhandled("n2", 10, (3,)),
                "The signal would have ended this worker.",
                "Add a handler, or let the script ask [`due`](ending.md#what-a-script-can-do).",
            ),
        ),
    ),
    (
        "Nodes",
        (
            Entry(
                facts.NodeLost("n2", "the agent on n2 was lost: it has been silent for 3 s"),
                "The node is off or cut off, or its launcher was killed (`it has died, says its "
                "host`). The round ends; if enough nodes are left, the next one begins without it.",
                "To survive this, give `--nnodes MIN:MAX` and Slurm's `--no-kill` "
                "([when a node fails](slurm.md#when-a-node-fails)).",
            ),
            Entry(
                facts.NodesCordoned(
                    1,
                    ("n2",),
                    facts.CordonKind.UNFIT,
                    "GPU 1 ECC: 3 uncorrected memory errors since the driver was loaded",
                    "71",
                ),
                "Something on the node is broken, so it gets no more workers.",
                "Give the command to the administrator. [Which problems cordon a "
                "node](doctor.md#checks-before-and-during-a-job).",
            ),
            Entry(
                facts.NodesCordoned(1, ("n2",), facts.CordonKind.FAILING),
                "Only the workers of this node failed, twice in a row, so a spare takes its place.",
                "Check the node: `srun --nodelist=n2 hpclaunch doctor`.",
            ),
            Entry(
                facts.NodesCordoned(1, ("n2",), facts.CordonKind.SLOW),
                "`--replace-stragglers`: a spare takes the place of a slow node.",
                "Check the node.",
            ),
            Entry(
                facts.DrainFound(("n2",)),
                "The administrator drains the node. Where there is a spare, the workers get "
                "notice.",
                "Nothing, if the script [saves at the notice](ending.md#what-a-script-can-do).",
            ),
            Entry(
                facts.NodesCordoned(1, ("n2",), facts.CordonKind.DRAINING),
                "The workers have saved, and a spare takes the place of the node.",
                NOTHING,
            ),
            Entry(facts.NodeCameBack("n2"), "A lost node can take part again.", NOTHING),
            Entry(
                facts.NodesSilent(("n2",), 10.0, 290.0),
                "The head does not hear this node. The job needs it, so the workers continue and "
                "the "
                "head waits.",
                "Check the node and the network.",
            ),
            Entry(facts.NodeHeard("n2"), "The silence is over.", NOTHING),
        ),
    ),
    (
        "Waiting",
        (
            Entry(
                facts.AgentsAwaited(("n3", "n4"), 2, 4, 15.0, ""),
                "The launchers on these nodes have not reached the head yet.",
                "If it does not pass: `srun hpclaunch doctor`. All nodes need the same secret "
                "file.",
            ),
            Entry(
                facts.NodesAwaited(("n3",), 1, 2, 45.0),
                "Fewer nodes are left than MIN of `--nnodes`. The job ends if none comes back.",
                "`--wait-for-nodes` sets the time.",
            ),
            Entry(
                facts.QuorumAwaited(("n2", "n3"), 45.0),
                "More than half of the nodes are needed, so that two halves never train at once.",
                "Check the network between the nodes.",
            ),
            Entry(
                facts.CheckpointSought(10.0),
                "The file system of `--checkpoint-dir` is slow.",
                "Check the file system, or keep fewer files in the directory.",
            ),
            Entry(
                facts.ReadersAwaited(("n2",), CKPT, 10.0),
                "The node does not see the checkpoint yet; after 20 s an older one is used.",
                "Nodes with local disks need `--checkpoint-local`.",
            ),
        ),
    ),
    (
        "The head",
        (
            Entry(
                facts.HeadChanged("n1", "n2", 1, -4.5),
                "The launcher that decided for all was lost, and the next one has taken over.",
                NOTHING,
            ),
            Entry(
                facts.HeadDeposed("n1", "n2"),
                "This launcher was cut off, and the others have chosen another head.",
                "Check the network of the node.",
            ),
            Entry(
                facts.HeadLeaves("n1", "the search for checkpoints was killed 3 times"),
                "The head cannot do its work on this node.",
                "Check the node.",
            ),
            Entry(
                facts.HeadAwaited("n2", "n1", 15.0, ""),
                "This launcher has not reached the first node yet.",
                "If it does not pass: `srun hpclaunch doctor`.",
            ),
            Entry(
                facts.HeadAwaited("n1", "", 15.0, ""),
                "The first launcher was killed and started again; it looks for the others.",
                NOTHING,
            ),
            Entry(
                facts.HeadSilent("n2", "n1", 10.0, 290.0),
                "This launcher does not hear the head.",
                "Check the node and the network.",
            ),
            Entry(facts.HeadHeard("n2", "n1"), "The silence is over.", NOTHING),
            Entry(
                facts.ElectionAwaited("n3", "n1", "it has been silent for 5 s", 45.0),
                "Too few launchers are left to choose another head.",
                "Check the network between the nodes.",
            ),
        ),
    ),
    (
        "The end of the job",
        (
            Entry(
                facts.EndAnnounced(JobState.RUNNING, 80.0),
                "Slurm has sent SIGTERM as a warning of the time limit (`--signal`).",
                NOTHING,
            ),
            Entry(
                facts.EndAnnounced(JobState.PREEMPTED, 60.0),
                "Slurm preempts the job, or somebody has requeued it (`requeued`).",
                NOTHING,
            ),
            Entry(
                facts.NoticeGiven(3, 1204, JobState.RUNNING, 53.0),
                "All ranks are asked to save before the same step.",
                "Nothing, if the script [saves at the notice](ending.md#what-a-script-can-do).",
            ),
            Entry(
                facts.NoticeGiven(3, 0, JobState.PREEMPTED, 53.0),
                "The same; each rank saves before its own next step, since no common one is known.",
                "As above.",
            ),
            Entry(
                facts.RequeueImpossible("71"),
                "The site does not let Slurm start this job again.",
                "Submit it with `sbatch --requeue`, or as a [chain](ending.md#chains).",
            ),
            Entry(
                facts.JobEnded(4, Verdict(0, "", Origin.DONE), (("n2", "GPU 1 is lost"),)),
                "The training is finished. This is a reminder that a node was cordoned.",
                "Report the node to the administrator.",
            ),
        ),
    ),
    (
        "Processes of the launcher",
        (
            Entry(
                node_facts.HelperEnded("n1", ProcessKind.LOGS, was_killed=True, is_replaced=True),
                "Somebody, or the kernel for lack of memory, has killed a process of the launcher. "
                "The training continues.",
                "[What is lost with each process](faults.md#a-helper-is-killed-or-stopped).",
            ),
            Entry(
                node_facts.HelperEnded("n1", ProcessKind.GPUS, was_killed=False, is_replaced=False),
                "The process failed repeatedly.",
                "Look for the reason that the message names, and report a bug if there is none.",
            ),
            Entry(
                node_facts.ProcessContinued("n1", ProcessKind.TEMPLATE),
                "Somebody had stopped a process (`kill -STOP`); hpclaunch has made it continue.",
                NOTHING,
            ),
            Entry(
                node_facts.CheckpointSearchStalled("n1", "/scratch/u/ckpt"),
                "The file system does not answer.",
                "Check the file system.",
            ),
            Entry(
                node_facts.CheckpointDirSuggested("n1", "ckpt", "ckpt/step-600.pt"),
                "Without this option, a restart begins from the start, unless the script resumes "
                "by "
                "itself.",
                "Add the option to the launch line.",
            ),
            Entry(
                node_facts.OutputMoved(
                    "n1", 2, "/local/tmp/hpclaunch-logs-x7f", "No space left on device"
                ),
                "The log directory takes no more files.",
                "Make room in the log directory, and copy the files before the node is given back.",
            ),
            Entry(
                node_facts.MetricsFailed("n1", "port 9400", "Address already in use"),
                "`--metrics` does not work at the moment; it is tried again every 15 s.",
                "Choose another port or file.",
            ),
            Entry(
                node_facts.NotifyFailed(
                    "n1", node_facts.NotifyTrouble.FAILED, "exited with code 22: curl: (22) 404"
                ),
                "The command failed. This is shown once.",
                "Correct the command ([notifications](metrics.md#notifications)).",
            ),
            Entry(
                node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.INTERRUPTED),
                "The process that ran the command was killed.",
                NOTHING,
            ),
            Entry(
                node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.UNFINISHED, limit=10.0),
                "The command was killed, since the job is over.",
                "Make the command faster.",
            ),
            Entry(
                node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.SLOW, dropped=3),
                "More than 64 events were waiting, and the oldest were dropped.",
                "Make the command faster.",
            ),
            Entry(
                node_facts.PortTaken("n1", 29400, 20123),
                "The port of `--rdzv-endpoint` or `--master-port` is in use.",
                "Choose another port, if a firewall needs a certain one.",
            ),
            Entry(
                node_facts.MessageIgnored("n1", "10.0.0.9", "it is not a message of this version"),
                "A process with the job's keys sent something else than an agent of this version.",
                "Install the same version of hpclaunch on all nodes.",
            ),
        ),
    ),
    (
        "Warm starts",
        (
            Entry(
                node_facts.ColdStart("n1", "./csv.py replaces a module that torch imports"),
                "The workers start as new interpreters, some seconds slower.",
                "[When a worker starts cold](warm-start.md#when-a-worker-starts-cold).",
            ),
            Entry(
                node_facts.WorkerTurnedCold(
                    "n1",
                    node_facts.ColdCause.VARIABLE,
                    "OMP_NUM_THREADS",
                    "train.py",
                    7,
                    is_impossible=False,
                ),
                "torch has read this variable already, so the worker starts again as a new "
                "interpreter, and the lines above are run twice.",
                "To stay warm, set the variable in the job script.",
            ),
            Entry(
                node_facts.WorkerTurnedCold(
                    "n1", node_facts.ColdCause.MODULE, "csv", "train.py", 7, is_impossible=False
                ),
                "The same, for a module that would replace one that torch imports.",
                "Rename the module, or use `--cold`.",
            ),
            Entry(
                node_facts.WorkerTurnedCold(
                    "n1",
                    node_facts.ColdCause.VARIABLE,
                    "OMP_NUM_THREADS",
                    "train.py",
                    7,
                    is_impossible=True,
                ),
                "The variable has no effect in this process.",
                "Start with `--cold`, or set the variable in the job script.",
            ),
            Entry(
                node_facts.PreloadSkipped("n1", "pyarrow", "it starts a thread"),
                "The module cannot be imported before the workers are forked; each worker imports "
                "it.",
                "Nothing; remove it from `--preload`.",
            ),
            Entry(
                node_facts.TemplateReplaced("n1", "killed by SIGKILL"),
                "The process from which workers are forked was killed.",
                NOTHING,
            ),
        ),
    ),
    (
        "Health of a node, and MPS",
        (
            Entry(
                node_facts.HealthWarning(
                    "n1", "GPU 0 clocks", "slowed down by heat", "report it to the administrator"
                ),
                "Something slows the training down or may break it later. Workers still run there.",
                "The parentheses say what to do.",
            ),
            Entry(
                node_facts.XidReported("n1", 3, "GPU 1", 31, "a GPU memory page fault"),
                "The driver reports an error of the program on this GPU.",
                "Look for an error in the script or a library, such as an index out of range.",
            ),
            Entry(
                node_facts.MpsStarted("n1", (("GPU 0",), ("GPU 1",))),
                "Workers that share a GPU compute at the same time ([MPS](mps.md)).",
                NOTHING,
            ),
            Entry(
                node_facts.ForeignMpsAwaited("n1", "the MPS daemon serves user 1001"),
                "Such a daemon serves one user at a time. After 5 minutes the job ends.",
                "Ask Slurm for a GPU of your own, or use `--mps off`.",
            ),
            Entry(
                node_facts.MpsBypassed("n1", (2, 3)),
                "CUDA could not reach MPS in these workers, and says nothing about it.",
                "Do not change these variables in the script.",
            ),
            Entry(
                node_facts.ForeignMpsUsed("n1", "/run/nvidia-mps"),
                "A daemon of Slurm or the administrator is used.",
                NOTHING,
            ),
            Entry(
                node_facts.ForeignMpsCrowded("n1", "/run/nvidia-mps", 40, 12),
                "The daemon may refuse the last workers.",
                "Start fewer workers.",
            ),
            Entry(
                node_facts.ForeignMpsRefused(
                    "n1", "the MPS daemon at /run/nvidia-mps belongs to user 1001: it is not used"
                ),
                "hpclaunch starts a daemon of its own instead.",
                NOTHING,
            ),
            Entry(
                node_facts.TimeSlices(
                    "n1",
                    ("GPU 0",),
                    "nvidia-cuda-mps-control is not in PATH",
                    "It comes with NVIDIA's driver: ask the administrator",
                ),
                "Workers on this GPU take turns, which is slower.",
                "The end of the message says what to do, where anything can be done.",
            ),
            Entry(
                node_facts.FewConnections("n1", 8, 2),
                "Fewer workers fit on the GPU.",
                "Do not set the variable.",
            ),
        ),
    ),
)

# They are recorded for the report, the metrics and `status`, and the console says nothing of them.
SILENT = (
    facts.CheckpointSaved(CKPT, 600, 1 << 20, 3.0),
    facts.NodeArrived("n3"),
    facts.NodesAllocated(-10.0),
    facts.RoundEnded(1, -1.0, -1.0, ()),
    facts.SeatUse(0, {}),
    # The message on the end of the job says the same as these.
    facts.JobEnded(4, Verdict(1, "", Origin.NODE_UNFIT)),
    facts.NodesCordoned(1, ("n1",), facts.CordonKind.UNFIT, "GPU 0 is lost", alone=True),
    _began(begins=3, saves=False),
)

# The titles are the anchors that `hpclaunch.observe.further_reading` names.
ENDINGS = (
    Ending(
        "Failure",
        "A worker failed and no restart was left, or a restart would not have helped: an "
        "ImportError "
        "or a usage error in the first round, or the same error twice without a new checkpoint. "
        "The "
        "rank that the first line names failed first; the others failed as a consequence.",
        "Read its last lines, or all of them in `round-N/rank-R.err` in the log directory. Export "
        "`PYTHONFAULTHANDLER=1` for a crash in native code, and `TORCH_DISTRIBUTED_DEBUG=DETAIL` "
        "for a "
        "collective that fails. `hpclaunch report` shows every round that failed. Then submit the "
        "same script again: it continues from the newest checkpoint.",
    ),
    Ending(
        "Hang",
        "The workers made no progress, and no restart was left. The rank that is named is at "
        "fault; "
        "the others wait for it.",
        "[What to do about a hang](hangs.md#what-to-do).",
    ),
    Ending(
        "Time limit",
        "The time limit came. With exit code 75 a checkpoint was saved after the notice; with 143 "
        "none "
        "was, and what was trained since the last one is lost.",
        "With `--requeue`, nothing: Slurm starts the job again. Otherwise submit the same script "
        "again. After 143, [save at the notice](ending.md#what-a-script-can-do), or give a longer "
        "`--notice`.",
    ),
    Ending(
        "Preemption",
        "Slurm needed the nodes for another job. The exit codes are those of the time limit.",
        "As for the [time limit](#time-limit).",
    ),
    Ending(
        "Requeue",
        "Somebody has called `scontrol requeue`. Slurm starts the job again.",
        "Nothing.",
    ),
    Ending(
        "Node lost",
        "Too few nodes are left. Without `--nnodes MIN:MAX` the job needs all of its nodes.",
        "Submit the job again; it continues from the newest checkpoint. To survive the loss of a "
        "node, "
        "give `--nnodes MIN:MAX` and Slurm's `--no-kill` "
        "([when a node fails](slurm.md#when-a-node-fails)); to start again by itself, `--requeue`.",
    ),
    Ending(
        "Node unfit",
        "A node is broken, and too few are left without it.",
        "Report it with the command that was printed, and exclude it: `sbatch --exclude=n2`. Spare "
        "nodes (`--nnodes N` in a larger job) or `--nnodes MIN:MAX` keep a job alive.",
    ),
    Ending(
        "Head lost",
        "This launcher has never reached the head, or has lost it, and no other may lead: that "
        "takes "
        "more than half of the nodes. Without Slurm, the job ends with its first machine.",
        "If it happened at the start: `srun hpclaunch doctor` finds out whether the nodes reach "
        "each "
        "other. Later: check the first node and the network.",
    ),
    Ending(
        "Absent",
        "Agents have not come within 10 minutes, or too many are cut off. In the second case, the "
        "others may have continued without this one.",
        "At the start: is hpclaunch started on all nodes (`srun`), do they see the same secret "
        "file, "
        "and does `srun hpclaunch doctor` find a route? Later: check the network.",
    ),
)


def page() -> str:
    """Return the text of the page."""
    parts = [START]
    for title, entries in SECTIONS:
        parts.append(f"## {title}\n\n{_table(map(_cells, entries))}")
    head = "The last lines of a failed worker, or the signal that killed it, decide on the advice."
    known = [(_words(m.words), _sentence(m.advice)) for m in MEANINGS if m.advice]
    known += [(f"killed by {signal_name(n)}", _sentence(text)) for n, text in SIGNALS.items()]
    parts.append(f"## Advice\n\n{head}\n\n{_table(known, ('last lines', 'advice'))}")
    parts.append(
        "## How a job ended\n\n[The table](ending.md#what-ends-a-job) has all exit codes.\n"
    )
    for end in ENDINGS:
        text = f"{end.means} **What to do:** {end.do}"
        parts.append(f"### {end.title}\n\n{_wrapped(text)}\n")
    return "\n".join(parts)


def _table(
    rows: Iterable[Sequence[str]], heads: Sequence[str] = ("message", "what it means", "what to do")
) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|", *lines, ""])


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _cells(entry: Entry) -> tuple[str, str, str]:
    lines = "\n".join(messages(entry.fact)).split("\n")
    return "<br>".join(map(_code, lines)), entry.means, entry.do


def _code(line: str) -> str:
    text = line.strip().replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _words(pattern: str) -> str:
    """Return the literal words of a pattern, and the pattern itself if it has none."""
    parts = re.split(r"(?<!\\)\|(?![^(]*\))", pattern)
    plain = {part: re.sub(r"\\(.)", r"\1", part) for part in parts}
    literal = [text for part, text in plain.items() if part == re.escape(text)]
    return ", ".join(map(_code, literal or parts))


def _wrapped(text: str) -> str:
    """Wrap a paragraph, but not within code."""
    whole = re.sub(r"`[^`]+`", lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.fill(whole, 110, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


if __name__ == "__main__":
    PAGE.write_text(page())
