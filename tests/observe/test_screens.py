"""Screens against files in golden/, which `python tests/observe/test_screens.py` rewrites."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.job_snapshot import (
    AgentSnapshot,
    AgentState,
    CheckpointSnapshot,
    JobSnapshot,
    LaunchSnapshot,
    PastRound,
)
from hpclaunch.core.protocol.model import RankVitals
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.job_screen import job_line, job_list, job_screen
from hpclaunch.observe.text_style import TextStyle, duration, rate
from hpclaunch.observe.top_screen import Sort, TopState, top_screen

GOLDEN = Path(__file__).parent / "golden"
GIB = 1 << 30
STYLES = {
    "80": TextStyle(80),
    "200": TextStyle(200),
    "80-colour": TextStyle(80, colour=True),
    "80-ascii": TextStyle(80, unicode=False),
}


def an_agent(
    index: int,
    ranks: int = 2,
    step: int = 1204,
    *,
    gpus: bool = False,
    number: int = 0,
    **fields: object,
) -> AgentSnapshot:
    first = index * ranks
    workers = tuple(
        RankVitals(rank, "step" if step else "rendezvous", step, number, 1.02, 3 * GIB + rank)
        for rank in range(first, first + ranks)
    )
    known = AgentSnapshot(
        index,
        index,
        f"n{index + 1}",
        AgentState.RUNNING,
        heard=0.2,
        first_rank=first,
        ranks=ranks,
        steps=(step,),
        hang=10.0,
        workers=workers,
        gpus=(GpuUse(0.97, 40 * GIB, 80 * GIB, 61, 512.0),) * ranks if gpus else (),
        gpus_of=tuple((local,) for local in range(ranks)) if gpus else (),
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def without_ranks(index: int, state: AgentState, why: str = "") -> AgentSnapshot:
    return AgentSnapshot(index, index, f"n{index + 1}", state, why)


def a_job(*agents: AgentSnapshot, **fields: object) -> JobSnapshot:
    known = JobSnapshot(
        stage=Stage.RUNNING,
        entered=3725.0,
        head="n1",
        term=0,
        round=1,
        begun=3725.0,
        resumed="/scratch/u/run/checkpoints/step-1000.pt",
        fewest=1,
        most=len(agents),
        restarts=0,
        max_restarts=3,
        agents=agents,
    )
    return replace(known, **fields)  # type: ignore[arg-type]


def a_launch(job: JobSnapshot | None, name: str = "71.0") -> LaunchSnapshot:
    slurm = name.partition(".")[0]
    logs = f"/home/u/hpclaunch-logs/{name}"
    return LaunchSnapshot(name, slurm, "n1", 4711, "train.py", logs, 1.7e9, 4000.0, job, "n1")


SAVED = CheckpointSnapshot("/scratch/u/run/checkpoints/step-1200.pt", 1200, 13 * GIB // 2, 131.0)
STAGED = replace(SAVED, stored="/scratch/u/run/checkpoints/step-1000.pt")
PAST = (
    PastRound(0, 3735.0, 4, "rank 3 on n2 was killed by SIGKILL", is_fault=True),
    PastRound(1, 95.0, 4, "n3: silent for 3.0 s", is_fault=False),
)
LAUNCHES = {
    "first-steps": a_launch(
        a_job(an_agent(0, 2, 0), round=0, begun=12.0, resumed=""), name="local-20260101-120000-17"
    ),
    "two-ranks": a_launch(
        a_job(
            an_agent(0, 1), an_agent(1, 1), pace=0.43, checkpoint=STAGED, goodput=0.871, end=11400.0
        )
    ),
    "gpus": a_launch(
        a_job(an_agent(0, 4, gpus=True, number=51204), pace=2.5, notice="given before step 1,210")
    ),
    "spare": a_launch(
        a_job(
            an_agent(0, 4),
            an_agent(1, 4),
            without_ranks(2, AgentState.LOST, "n3 is lost: silent for 3.0 s"),
            without_ranks(3, AgentState.SPARE),
            pace=0.1,
            restarts=1,
            spent=1,
            past=PAST,
            straggler="rank 5 on n2",
            goodput=0.9349,
            term=1,
        )
    ),
    "1024-ranks": a_launch(
        a_job(
            *(an_agent(i, 8, gpus=True) for i in range(128)),
            without_ranks(128, AgentState.CORDONED, "GPU 3: 2 uncorrected errors"),
            pace=1.25,
            checkpoint=SAVED,
        )
    ),
    "rendezvous": a_launch(
        a_job(
            *(without_ranks(i, AgentState.READY) for i in range(2)),
            *(without_ranks(i, AgentState.ABSENT) for i in range(2, 12)),
            stage=Stage.RENDEZVOUS,
            entered=14.0,
            begun=None,
        )
    ),
    "still": a_launch(
        a_job(an_agent(0, 2, still=8.4), an_agent(1, 2, still=8.1), is_complete=False)
    ),
    "ending": a_launch(
        a_job(
            an_agent(0, state=AgentState.STOPPING),
            stage=Stage.STOPPING,
            entered=2.0,
            verdict="ended by hpclaunch stop",
            code=143,
        )
    ),
    "member": a_launch(None),
    "ended": replace(
        a_launch(
            a_job(
                without_ranks(0, AgentState.LEFT),
                stage=Stage.ENDED,
                entered=1.0,
                end=4.0,
                checkpoint=SAVED,
                past=(PastRound(0, 2.0, 2, "the user has asked for a restart", is_fault=False),),
                verdict="all workers ended with 0",
                code=0,
            )
        ),
        old=59.0,
    ),
    "from-a-file": replace(a_launch(a_job(an_agent(0))), old=47.0),
}


TOPS = [
    TopState(),
    TopState(by_rank=True, sort=Sort.MEMORY, first=500),
    TopState(filter="n12", sort=Sort.STEP),
    TopState(filter="n1", typing=True),
]
OTHERS = [("72", "pending"), ("73", "running: no hpclaunch runs in it")]
SCREENS = (
    {
        f"{name}-{kind}": (job_screen(launch, style), style)
        for name, launch in LAUNCHES.items()
        for kind, style in STYLES.items()
    }
    | {
        f"top-{name}-{number}": (
            top_screen(LAUNCHES[name], state, STYLES["80"], 24).lines,
            STYLES["80"],
        )
        for name in ("1024-ranks", "two-ranks", "spare", "member", "rendezvous")
        for number, state in enumerate(TOPS)
    }
    | {
        f"list-{kind}": (job_list(list(LAUNCHES.values()), OTHERS, style), style)
        for kind, style in STYLES.items()
    }
)


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen(name: str) -> None:
    lines, style = SCREENS[name]
    assert (GOLDEN / f"{name}.txt").read_text() == text_of(lines)
    assert style.colour or all(len(line) <= style.width for line in lines)
    assert style.unicode or "".join(lines).isascii()


def text_of(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_line(name: str) -> None:
    line = job_line(LAUNCHES[name])
    assert line.startswith(f"{LAUNCHES[name].name}: ")
    assert "\n" not in line


@pytest.mark.parametrize("width", [1, 2, 10, 37, 1000])
@pytest.mark.parametrize("name", LAUNCHES)
def test_any_width(name: str, width: int) -> None:
    assert all(len(line) <= width for line in job_screen(LAUNCHES[name], TextStyle(width)))


def test_names_that_others_chose_are_harmless() -> None:
    evil = "n\x1b[2J\nok"
    job = a_job(replace(an_agent(0), host=evil), head=evil, straggler=evil)
    for lines in (
        job_screen(replace(a_launch(job), name=evil), TextStyle()),
        job_list([replace(a_launch(job), name=evil)], [(evil, evil)], TextStyle()),
        [job_line(replace(a_launch(job), name=evil))],
    ):
        assert "\x1b" not in "".join(lines)
        assert all("\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.9, "59 s"),
        (61, "1 m 01 s"),
        (3725, "1 h 02 m"),
        (93600, "1 d 02 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("pace", "text"), [(0.1, "10 steps/s"), (0.43, "2.33 steps/s"), (2.5, "2.5 s a step")]
)
def test_rates(pace: float, text: str) -> None:
    assert rate(pace) == text


if __name__ == "__main__":
    for known, (written, _) in SCREENS.items():
        (GOLDEN / f"{known}.txt").write_text(text_of(written))


def test_a_line_of_a_job_that_is_over_says_since_when() -> None:
    job = a_job(an_agent(0), stage=Stage.ENDED, entered=1.0)
    launch = replace(a_launch(job), old=59.0)
    assert job_line(launch).startswith("71.0: ended 1 m 00 s ago, ")


def test_each_node_with_trouble_is_named_once_and_none_is_missing() -> None:
    def lost(index: int, per_node: int) -> AgentSnapshot:
        node = index // per_node
        why = f"the agent on n{node} was lost"
        return replace(without_ranks(index, AgentState.LOST, why), node=node, host=f"n{node}")

    def shown(number: int, per_node: int) -> list[str]:
        job = a_job(an_agent(0), *(lost(i, per_node) for i in range(per_node, number)))
        lines = job_screen(a_launch(job), TextStyle())
        return [line.strip() for line in lines if "lost" in line]

    of_two = ["the agent on n1 was lost", "the agent on n2 was lost"]
    assert shown(24, per_node=8) == of_two
    assert shown(9, per_node=1)[:2] == of_two
    assert shown(9, per_node=1)[-1] == "lost: n6, n7, n8"


def test_a_job_of_one_rank() -> None:
    assert ", 1 rank, " in job_line(a_launch(a_job(an_agent(0, 1))))


def test_a_job_without_a_head() -> None:
    assert job_line(replace(a_launch(None), head="")) == "71.0: it has no head at the moment"
