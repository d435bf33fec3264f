"""docs/messages.md has each message that the console makes of a fact, with its meaning and what to
do about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpclaunch.core.protocol import facts, node_facts
from hpclaunch.core.protocol.facts import Fact
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import NO_RANK, Failure, Leftover, Origin, Request, Verdict
from hpclaunch.core.protocol.node_facts import LaunchNoteKind, LogTroubleKind
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.observe.console import messages
from hpclaunch.system.logs.fact_files import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "messages.md"
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
NO_ROOM = "the memory of this node has only 0.5 GiB of 8.0 GiB free"
UPLOAD = (Leftover(4711, "aws", 0),)

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
            LaunchNoteKind.WITHOUT_EFFECT: {"--monitor-interval": "failures are seen at once"},
            LaunchNoteKind.LOGS_IN_USE: {"asked": "logs", "directory": "logs/71.0"},
            LaunchNoteKind.LOGS_FOREIGN: {"directory": "hpclaunch-logs-1001/71.0"},
            LaunchNoteKind.LOGS_TEMPORARY: {
                "why": "No space left on device",
                "directory": "/tmp/x7f",
            },
        }.items()
    ),
    node_facts.PortTaken("n1", 29400, 20123),
    node_facts.MessageIgnored("n1", "10.0.0.9", "it is not a message of this version"),
    # Waiting
    facts.AgentsAwaited(("n3", "n4"), 2, 4, 15.0, ""),
    facts.NodesAwaited(("n3",), 1, 2, 45.0),
    facts.QuorumAwaited(("n2", "n3"), 45.0),
    facts.CheckpointSought(10.0),
    facts.ReadersAwaited(("n2",), CKPT, 10.0),
    # Rounds and restarts
    _restart(),
    _restart(is_last=True),
    _restart(outage_delay=4.0),
    _restart(node_delay=2.0),
    _began(**SAVED),
    _began(passed_over=("step-800.pt: cut short",), **SAVED),
    _began(passed_over=("step-800.pt: cut short",)),
    _began(begins=1, lacking="files of no known format: model.bin"),
    _began(),
    _began(saves=False),
    _began(begins=3, gone=("n2",), came=("n4",), nodes=3, **SAVED),
    _began(begins=1, layout="4(x2),2"),
    _began(begins=1, isolated=(facts.IsolatedGpus(("n1",)),)),
    _began(begins=1, isolated=(facts.IsolatedGpus(("n1",), 8, 1),)),
    facts.NodesJoin(("n3",)),
    facts.RequestGranted(Request.RESTART),
    facts.RequestGranted(Request.NOTICE),
    node_facts.CheckpointDirSuggested("n1", "ckpt", "ckpt/step-600.pt"),
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
    facts.NodesCordoned(
        1,
        ("n2",),
        facts.CordonKind.UNFIT,
        "GPU 1 ECC: 3 uncorrected memory errors since the driver was loaded",
        "71",
    ),
    facts.NodesCordoned(1, ("n2",), facts.CordonKind.FAILING),
    facts.NodesCordoned(1, ("n2",), facts.CordonKind.SLOW),
    facts.DrainFound(("n2",)),
    facts.NodesCordoned(1, ("n2",), facts.CordonKind.DRAINING),
    facts.NodeCameBack("n2"),
    facts.NodesSilent(("n2",), 10.0, 290.0),
    facts.NodeHeard("n2"),
    # Health of a node, and MPS
    node_facts.HealthWarning(
        "n1", "GPU 0 clocks", "slowed down by heat", "report it to the administrator"
    ),
    node_facts.XidReported("n1", 3, "GPU 1", 31, "a GPU memory page fault"),
    node_facts.MpsStarted("n1", (("GPU 0",), ("GPU 1",))),
    node_facts.ForeignMpsAwaited("n1", "the MPS daemon serves user 1001"),
    node_facts.MpsBypassed("n1", (2, 3)),
    node_facts.ForeignMpsUsed("n1", "/run/nvidia-mps"),
    node_facts.ForeignMpsCrowded("n1", "/run/nvidia-mps", 40, 12),
    node_facts.ForeignMpsRefused(
        "n1", "the MPS daemon at /run/nvidia-mps is not used: it could not be asked"
    ),
    node_facts.TimeSlices(
        "n1",
        ("GPU 0",),
        "nvidia-cuda-mps-control is not in PATH",
        "It comes with NVIDIA's driver: ask the administrator",
    ),
    node_facts.FewConnections("n1", 8, 2),
    # The head
    facts.HeadChanged("n1", "n2", 1, -4.5),
    facts.HeadDeposed("n1", "n2"),
    facts.HeadLeaves("n1", "the search for checkpoints was killed 3 times"),
    facts.HeadAwaited("n2", "n1", 15.0, ""),
    facts.HeadAwaited("n1", "", 15.0, ""),
    facts.HeadSilent("n2", "n1", 10.0, 290.0),
    facts.HeadHeard("n2", "n1"),
    facts.ElectionAwaited("n3", "n1", "it has been silent for 5 s", 45.0),
    # Warm starts
    node_facts.ColdStart("n1", "./csv.py replaces a module that torch imports"),
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
    node_facts.PreloadSkipped("n1", "pyarrow", "it starts a thread"),
    node_facts.TemplateReplaced("n1", "killed by SIGKILL"),
    # Checkpoints in memory
    node_facts.StageBegan("n1", "ckpt", STAGE, ("--dir=ckpt",), CKPT, 1 << 30, 0.5),
    node_facts.StageBegan("n1", "ckpt", STAGE, (), "", 0, 0.0),
    node_facts.StageFetched("n1", 1 << 30, 0.9),
    node_facts.StageRefused("n1", "ckpt", NO_ROOM, later=False),
    node_facts.StageRefused("n1", "ckpt", NO_ROOM, later=True),
    node_facts.StoringFailed("n1", CKPT, "No space left on device"),
    node_facts.StageAwaited("n1", "ckpt", CKPT, 3 << 29, 3 << 30, 5.0),
    node_facts.StageAwaited("n1", "ckpt", "", 0, 0, 5.0),
    node_facts.StageAwaited("n1", "ckpt", "", 0, 0, 5.0, is_restore=True),
    node_facts.StageLost("n1", "ckpt", (CKPT,), "No space left on device"),
    # Log files, metrics and notifications
    node_facts.LogTrouble("n1", LogTroubleKind.DISK, "/scratch/u/logs/71.0"),
    node_facts.LogTrouble("n1", LogTroubleKind.FILES, "journal.jsonl", "No space left on device"),
    node_facts.LogTrouble(
        "n1", LogTroubleKind.DUPLICATES, "filtered-agent-0.out", "File too large"
    ),
    node_facts.LogTrouble("n1", LogTroubleKind.STALLED, "120"),
    node_facts.OutputMoved("n1", 2, "/local/tmp/hpclaunch-logs-x7f", "No space left on device"),
    node_facts.MetricsFailed("n1", "port 9400", "Address already in use"),
    node_facts.NotifyFailed(
        "n1", node_facts.NotifyTrouble.FAILED, "exited with code 22: curl: (22) 404"
    ),
    node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.INTERRUPTED),
    node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.UNFINISHED, limit=10.0),
    node_facts.NotifyFailed("n1", node_facts.NotifyTrouble.SLOW, dropped=3),
    # Processes of the launcher
    node_facts.HelperEnded("n1", ProcessKind.LOGS, was_killed=True, is_replaced=True),
    node_facts.HelperEnded("n1", ProcessKind.GPUS, was_killed=False, is_replaced=False),
    node_facts.ProcessContinued("n1", ProcessKind.TEMPLATE),
    node_facts.CheckpointSearchStalled("n1", "/scratch/u/ckpt"),
    # The end of the job
    facts.EndAnnounced(JobState.RUNNING, 80.0),
    facts.EndAnnounced(JobState.PREEMPTED, 60.0),
    facts.NoticeGiven(3, 1204, JobState.RUNNING, 53.0),
    facts.NoticeGiven(3, 0, JobState.PREEMPTED, 53.0),
    facts.RequeueImpossible("71"),
    facts.JobEnded(4, Verdict(0, "", Origin.DONE), (("n2", "GPU 1 is lost"),)),
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


def test_each_message_of_the_page_is_that_of_an_example() -> None:
    unknown = cells() - {cell(fact) for fact in EXAMPLES}
    assert not unknown, "\n".join(["no fact has these messages:", *sorted(unknown)])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_fact_has_an_example(kind: type[Fact]) -> None:
    assert any(type(fact) is kind for fact in (*EXAMPLES, *SILENT))


@pytest.mark.parametrize("fact", SILENT, ids=lambda fact: type(fact).__name__)
def test_facts_without_a_message(fact: Fact) -> None:
    assert messages(fact) == []
