"""docs/messages.md has each message that the console makes of a fact, with its meaning and what to
do about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpclaunch.core.health.findings import reason
from hpclaunch.core.health.gpu_rules import GpuReading, Slowdown, XidSeen, judge
from hpclaunch.core.placement import mps_shares
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.protocol import facts, node_facts
from hpclaunch.core.protocol.facts import Fact
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import (
    NO_RANK,
    Culprit,
    Failure,
    Leftover,
    Origin,
    Request,
    Share,
    Shares,
    Verdict,
)
from hpclaunch.core.protocol.node_facts import LaunchNoteKind, LogTroubleKind
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.observe.console import messages
from hpclaunch.observe.failure_account import SECTIONS
from hpclaunch.system.checkpoints.archives import CUT
from hpclaunch.system.logs.fact_files import KINDS
from hpclaunch.system.network import wire
from hpclaunch.system.staging.room import Room

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "messages.md"
# The sections on messages that are not made of facts.
OTHERS = ("Another run", "How a job ended")


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
        "cause": Failure(2, 3, "n2", 1, 0, 0.0, ""),
        "used": 1,
        "most": 3,
        "is_last": False,
        "node_delay": 0.0,
        "outage_delay": 0.0,
    }
    return facts.RestartDecided(**{**usual, **fields})  # type: ignore[arg-type]


CKPT = "/scratch/u/ckpt/step-600.pt"
SAVED = {"checkpoint": CKPT, "rule": "torch.save, step 600, by its name"}
STAGE = "/dev/shm/hpclaunch-stage-1001/5f3a9c1e/ckpt"
NO_ROOM = Room(1 << 29, 8 << 30, "the memory of this node").lack_of_any()
DIRECT_SAVE = "it has saved step-600.pt there, and nothing in memory"
UNKNOWN_SAVE = (
    "nothing says that global_step_600 is complete, so it is copied only at the end of the round "
    "(if the script writes some file last, --checkpoint-complete names it)"
)
READ_ONLY = "/home/you/ckpt is read-only, or this user may not write to it"
CUT_SHORT = (f"step-800.pt: {CUT}",)
CHANGED = ("step-600.pt in the memory of n2: its bytes have changed",)
(HOT,) = judge(GpuReading("GPU 0", slow=(Slowdown.THERMAL,), temperature=91))
ECC = reason(judge(GpuReading("GPU 1", uncorrected=3)))
ON_ONE_GPU = Shares((Share((0,), 2), Share((0,), 2, leads=False)), isolated=True)
UPLOAD = (Leftover(4711, "aws", 0),)


def _no_message() -> str:
    """Return why bytes that are no message are ignored."""
    with pytest.raises(wire.WireError) as refused:
        wire.decode(b"hello")
    return str(refused.value)


# Reasons that are written out below, each with the source file that words it
REASONS = {
    " in the memory of ": "system/staging/gathering.py",
    "its bytes have changed": "system/staging/node.py",
    " is read-only, or this user may not write to it": "system/staging/restoring.py",
    "starts threads": "worker/site/_hpclaunch_template.py",
    " stands in for the ": "worker/site/_hpclaunch_template.py",
    ", but nothing in a known format": "system/checkpoints/__init__.py",
    "cannot look for checkpoints in ": "agent/resuming.py",
    "the process that looks for them has ended": "agent/resuming.py",
    ", and takes one user at a time (process ": "worker/mps_keeper.py",
    " belongs to ": "system/gpus/foreign_mps.py",
    "ended with ": "system/processes/commands.py",
    "cannot write to the log directory ": "system/logs/log_directory.py",
    " was lost: ": "core/head/roster.py",
    "it has been silent for ": "core/protocol/losses.py",
    "survive SIGKILL for ": "core/member/stopping.py",
    "the CPU quota of its cgroup stops it for ": "core/stragglers/causes.py",
    "all have begun it: a network that loses data, or a fault of the backend": (
        "core/hangs/judgement.py"
    ),
    "has not reached it: it is ": "core/hangs/judgement.py",
}

EXAMPLES: tuple[Fact, ...] = (
    # At the start
    *(
        node_facts.LaunchNote("n1", kind, details)
        for kind, details in {
            LaunchNoteKind.NODES: {"asked": "8", "given": "4"},
            LaunchNoteKind.SPARES: {"asked": "3", "spares": 1, "nodes": 4},
            LaunchNoteKind.NO_KILL: {},
            LaunchNoteKind.NODE_RANK: {"asked": "1", "given": "0"},
            LaunchNoteKind.ENDPOINT: {"option": "--rdzv-endpoint", "asked": "n7:29400"},
            LaunchNoteKind.LOCAL_ADDR: {"asked": "ib7"},
            LaunchNoteKind.MACHINES: {"asked": "2:4", "most": "4", "fewest": "2"},
            LaunchNoteKind.STANDALONE: {"tasks": 4},
            LaunchNoteKind.NO_VARIABLES: {"step": "71.0"},
            LaunchNoteKind.NPROC: {"tasks": 2, "nproc": 4},
            LaunchNoteKind.NO_GPU: {"cpus": 8},
            LaunchNoteKind.CPUS: {"workers": 8, "cpus": 4},
            LaunchNoteKind.CORES: {"cores": 1},
            LaunchNoteKind.PYTHON: {"command": "python"},
            LaunchNoteKind.TORCHRUN: {
                "torchrun": "/apps/torch/bin/torchrun",
                "python": "/home/you/env/bin/python",
            },
            LaunchNoteKind.WITHOUT_EFFECT: {"--monitor-interval": "failures are seen at once"},
            LaunchNoteKind.LOGS_IN_USE: {"asked": "logs", "directory": "logs/71.0"},
            LaunchNoteKind.LOGS_FOREIGN: {"directory": "hpclaunch-logs-1001/71.0"},
            LaunchNoteKind.LOGS_TEMPORARY: {
                "why": "cannot write to the log directory hpclaunch-logs/71.0: "
                "No space left on device",
                "directory": "/tmp/hpclaunch-71.0-x7f",
            },
        }.items()
    ),
    node_facts.PortTaken("n1", 29400, 20123),
    node_facts.MessageIgnored("n1", "10.0.0.9", _no_message()),
    # Waiting
    facts.AgentsAwaited(("n3", "n4"), 2, 4, 15.0, ""),
    facts.NodesAwaited(("n3",), 1, 2, 45.0),
    facts.QuorumAwaited(("n2", "n3"), 45.0),
    facts.CheckpointSought(10.0),
    facts.ReadersAwaited(("n2",), CKPT, 10.0),
    # Rounds and restarts
    _restart(),
    _restart(is_last=True),
    _restart(is_last=True, outage_delay=4.0, node_delay=1.0),
    _restart(used=3, outage_delay=2.0),
    _restart(used=3, node_delay=1.0),
    _restart(cause=Failure(2, NO_RANK, "n2", 137, 9, 0.0, "", culprit=Culprit.FORK_SERVER)),
    _began(**SAVED),
    _began(passed_over=CUT_SHORT, **SAVED),
    _began(passed_over=CHANGED, **SAVED),
    _began(passed_over=CUT_SHORT),
    _began(
        begins=1,
        lacking="ckpt has model.bin, but nothing in a known format; --checkpoint-dir 'ckpt/**' "
        "also searches the directories below it; for directories in a format of your own, "
        "--checkpoint-complete names the file that marks a complete one",
    ),
    _began(),
    _began(lacking="storage has none yet, and what only the memory of n2 had is lost"),
    _began(saves=False),
    _began(begins=3, gone=("n2",), came=("n4",), nodes=3, **SAVED),
    _began(begins=1, layout="4(x2),2"),
    _began(begins=1, isolated=(facts.IsolatedGpus(("n1",)),)),
    _began(begins=1, isolated=(facts.IsolatedGpus(("n1",), 8, 1),)),
    facts.NodesJoin(("n3",)),
    facts.RequestGranted(Request.RESTART),
    facts.RequestGranted(Request.NOTICE),
    node_facts.CheckpointDirSuggested("n1", "ckpt", "ckpt/step-600.pt"),
    node_facts.CheckpointUnused("n1", CKPT, "step-20.pt"),
    # Workers
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
    facts.HangFound(
        0,
        10.0,
        0.0,
        ("all have begun it: a network that loses data, or a fault of the backend",),
        NO_RANK,
        "",
        90.0,
    ),
    facts.StragglerNamed(
        "n2",
        3,
        0.31,
        1.3,
        "the CPU quota of its cgroup stops it for 23% of the time",
    ),
    facts.StragglerNamed("n2", NO_RANK, 0.31, 1.3, ""),
    facts.StragglerRecovered("n2", 3),
    facts.LeftoversFound("n1", facts.LeftoverStep.WAIT, 20.0, UPLOAD),
    facts.LeftoversFound("n1", facts.LeftoverStep.END, 20.0, UPLOAD),
    facts.LeftoversFound("n1", facts.LeftoverStep.KILL, 20.0, (Leftover(4711, "aws"),)),
    facts.WorkersSurvive("n2", "workers survive SIGKILL for 30 s (a hung file system or driver?)"),
    node_facts.SignalUnhandled("n2", 10, (3,)),
    # Nodes
    facts.NodeLost("n2", "the agent on n2 was lost: it has been silent for 3 s"),
    facts.NodesCordoned(1, ("n2",), facts.CordonKind.UNFIT, ECC, "71"),
    facts.NodesCordoned(1, ("n2",), facts.CordonKind.FAILING),
    facts.NodesCordoned(1, ("n2",), facts.CordonKind.SLOW),
    facts.DrainFound(("n2",)),
    facts.NodesCordoned(1, ("n2",), facts.CordonKind.DRAINING),
    facts.NodeCameBack("n2"),
    facts.NodesSilent(("n2",), 10.0, 290.0),
    facts.NodeHeard("n2"),
    # Health of a node, and MPS
    node_facts.HealthWarning("n1", HOT.check, HOT.found, HOT.advice),
    node_facts.XidReported("n1", 3, "GPU 1", 31, XidSeen("", "GPU 1", 31).meaning),
    node_facts.MpsStarted("n1", (("GPU 0",), ("GPU 1",))),
    node_facts.ForeignMpsAwaited(
        "n1",
        "the MPS daemon at /run/nvidia-mps serves alice, and takes one user at a time (process "
        "4711)",
    ),
    node_facts.MpsBypassed("n1", (2, 3)),
    node_facts.ForeignMpsUsed("n1", "/run/nvidia-mps"),
    node_facts.ForeignMpsRefused(
        "n1", "the MPS daemon at /run/nvidia-mps is not used: /run/nvidia-mps belongs to alice"
    ),
    *mps_shares.plan(
        mps_shares.Settings(),
        ON_ONE_GPU,
        (Gpu("0", "GPU-6f1c"),),
        mps_shares.MpsSupport(),
        host="n1",
    ).notes,
    # The head
    facts.HeadChanged("n1", "n2", 1, -4.5),
    facts.HeadDeposed("n1", "n2"),
    facts.HeadLeaves(
        "n1",
        "cannot look for checkpoints in ckpt: the process that looks for them has ended",
    ),
    facts.HeadAwaited("n2", "n1", 15.0, ""),
    facts.HeadAwaited("n1", "", 15.0, ""),
    facts.HeadSilent("n2", "n1", 10.0, 296.0),
    facts.HeadHeard("n2", "n1"),
    facts.ElectionAwaited("n3", "n1", "it has been silent for 5 s", 45.0),
    # Warm starts
    node_facts.ColdStart("n1", "/home/you/csv.py stands in for the csv that torch imports"),
    node_facts.WorkerTurnedCold(
        "n1",
        node_facts.ColdCause.VARIABLE,
        "OMP_NUM_THREADS",
        "train.py",
        7,
        is_impossible=False,
    ),
    node_facts.WorkerTurnedCold(
        "n1", node_facts.ColdCause.MODULE, "csv", "train.py", 7, is_impossible=False
    ),
    node_facts.WorkerTurnedCold(
        "n1",
        node_facts.ColdCause.VARIABLE,
        "OMP_NUM_THREADS",
        "train.py",
        7,
        is_impossible=True,
    ),
    node_facts.PreloadSkipped("n1", "tracing", "importing tracing starts threads"),
    node_facts.TemplateReplaced("n1", "SIGKILL"),
    # Checkpoints in memory
    node_facts.StageBegan("n1", "ckpt", STAGE, ("--dir=ckpt",), CKPT, 1 << 30, 0.5),
    node_facts.StageBegan("n1", "ckpt", STAGE, (), "", 0, 0.0),
    node_facts.StageDeleted("n1", STAGE),
    node_facts.StageFetched("n1", 1 << 30, 0.9),
    node_facts.StageRefused("n1", "ckpt", NO_ROOM, later=False),
    node_facts.StageRefused("n1", "ckpt", READ_ONLY, later=False),
    node_facts.StageRefused("n1", "ckpt", NO_ROOM, later=True),
    node_facts.StageRefused("n1", "ckpt", DIRECT_SAVE, later=True),
    node_facts.StageRefused("n1", "ckpt", UNKNOWN_SAVE, later=True),
    node_facts.StoringFailed("n1", CKPT, "No space left on device"),
    node_facts.StageAwaited("n1", "ckpt", CKPT, 3 << 29, 3 << 30, 5.0),
    node_facts.StageAwaited("n1", "ckpt", "", 0, 0, 5.0),
    node_facts.StageAwaited("n1", "ckpt", "", 0, 0, 5.0, is_restore=True),
    node_facts.StageLost("n1", "ckpt", (CKPT,), "No space left on device"),
    # Log files, metrics and notifications
    node_facts.LogTrouble("n1", LogTroubleKind.DISK, "/scratch/u/logs/71.0"),
    node_facts.LogTrouble(
        "n1", LogTroubleKind.FILES, "journal.jsonl", "No space left on device: logs/71.0"
    ),
    node_facts.LogTrouble(
        "n1", LogTroubleKind.DUPLICATES, "logs/round-0/filtered-agent-0.out", "File too large"
    ),
    node_facts.LogTrouble("n1", LogTroubleKind.STALLED, "120"),
    node_facts.OutputMoved(
        "n1", 2, "/tmp/hpclaunch-71.0-x7f", "No space left on device: logs/71.0/round-2"
    ),
    node_facts.MetricsFailed("n1", "port 9400 of 127.0.0.1", "Address already in use"),
    node_facts.NotifyFailed(
        "n1", node_facts.NotifyTrouble.FAILED, "ended with 22: curl: (22) 404 Not Found"
    ),
    node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.INTERRUPTED),
    node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.UNFINISHED, limit=10.0),
    node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.SLOW, dropped=3),
    # Processes of the launcher
    node_facts.HelperEnded("n1", ProcessKind.LOGS, was_killed=True, is_replaced=True),
    node_facts.HelperEnded("n1", ProcessKind.GPUS, was_killed=False, is_replaced=False),
    node_facts.CheckpointSearchStalled("n1", "/scratch/u/ckpt"),
    # The end of the job
    facts.EndAnnounced(JobState.RUNNING, 80.0),
    facts.EndAnnounced(JobState.PREEMPTED, 60.0),
    facts.NoticeGiven(3, 1204, JobState.RUNNING, 53.0),
    facts.NoticeGiven(3, 0, JobState.PREEMPTED, 53.0),
    facts.RequeueImpossible("71"),
    facts.JobEnded(4, Verdict(0, "", Origin.DONE), (("n2", ECC),)),
)

# Facts for the report, the metrics and `status`, without a message.
SILENT: tuple[Fact, ...] = (
    facts.CheckpointSaved(CKPT, 600, 1 << 20, 3.0),
    facts.CheckpointStored(CKPT, 600, 1 << 20, 0.5),
    facts.CheckpointGone(CKPT),
    facts.NodeArrived("n3"),
    facts.NodesAllocated(-10.0),
    facts.RoundEnded(1, -1.0, -1.0, ()),
    facts.SeatUse(0, {}),
    facts.JobEnded(4, Verdict(1, "", Origin.NODE_UNFIT)),
    facts.NodesCordoned(1, ("n1",), facts.CordonKind.UNFIT, "GPU 0 is lost", alone=True),
    _began(begins=3, saves=False),
)


def cells() -> set[str]:
    """Return the messages of the page that are made of facts: the first cells of its tables."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    texts = [text for text in sections if text.partition("\n")[0] not in OTHERS]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == 3 and all(row) for row in rows), "a message, its meaning, what to do"
    return {row[0] for row in rows} - {"message", "---"}


def cell(fact: Fact) -> str:
    """Return the messages of a fact as the page shows them."""
    lines = "\n".join(messages(fact)).split("\n")
    return "<br>".join(f"`{line.strip()}`" for line in lines)


def test_the_page_has_the_message_of_each_example() -> None:
    missing = {cell(fact) for fact in EXAMPLES} - cells()
    assert not missing, "\n".join(["docs/messages.md lacks:", *sorted(missing)])


@pytest.mark.parametrize(("reason", "source"), REASONS.items())
def test_reasons_on_the_page_are_those_of_the_program(reason: str, source: str) -> None:
    assert reason in PAGE.read_text()
    assert reason in (ROOT / "launcher/hpclaunch" / source).read_text()


def test_each_message_of_the_page_is_that_of_an_example() -> None:
    unknown = cells() - {cell(fact) for fact in EXAMPLES}
    assert not unknown, "\n".join(["no fact has these messages:", *sorted(unknown)])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_fact_has_an_example(kind: type[Fact]) -> None:
    assert any(type(fact) is kind for fact in (*EXAMPLES, *SILENT))


def test_the_sections_on_ends_are_those_that_accounts_name() -> None:
    """The last lines of a failed job lead to a section of the page."""
    ends = PAGE.read_text().partition("\n## How a job ended\n")[2]
    titles = re.findall(r"^### (.+)$", ends, flags=re.MULTILINE)
    assert {title.lower().replace(" ", "-") for title in titles} == {"hang", *SECTIONS.values()}


@pytest.mark.parametrize("fact", SILENT, ids=lambda fact: type(fact).__name__)
def test_facts_without_a_message(fact: Fact) -> None:
    assert messages(fact) == []
