"""Status, metrics, report and journals of one job that lost its head during a training."""

from __future__ import annotations

import json
import re
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

import timed
from hpclaunch.core.protocol.facts import (
    CheckpointSaved,
    HeadChanged,
    JobEnded,
    NodesAllocated,
    NodesSilent,
    RoundBegan,
    RoundEnded,
    SeatUse,
)
from hpclaunch.system.hosts import slurm_end
from hpclaunch.system.logs import fact_files

from .asking import PAUSE, PORT, Metrics, logs, report, scrape, status, wait_until_running
from .cluster import Cluster, Job, eventually
from .conftest import LIGHT_TORCH, SCRIPTS, own_jobs

# Seconds; a busy machine delays no answer for so long.
N2_LEADS_NEXT = {"loss": 30.0, "election": 60.0}
COSTLY = SCRIPTS / "costly.py"
OFTEN = (CheckpointSaved, NodesAllocated, NodesSilent, SeatUse)  # may be recorded at any time


@dataclass
class Traces:
    """Answers of the job while n1 led it, and while n2 did."""

    job: Job
    before: Metrics = field(default_factory=dict)
    after: Metrics = field(default_factory=dict)
    beside: Metrics = field(default_factory=dict)  # of another agent than the head
    remote: Metrics = field(default_factory=dict)  # asked from another node
    at_lost_head: Metrics = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    launches: list[list[Any]] = field(default_factory=list)  # from ten calls of status


@pytest.fixture(scope="module")
def traces(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    directory = tmp_path_factory.mktemp("takeover")
    options = f"--nproc 1 --nnodes 2:3 --metrics {PORT} --notify 'cat >> events'"
    script = f"{COSTLY} --dir saved --steps 90 --until enough --save 30 --fail 1000"
    body = f"srun --no-kill {SCRIPTS}/agent.sh {options} --checkpoint-dir saved {script}"
    env = LIGHT_TORCH | timed.variables(cluster.env["PATH"], **N2_LEADS_NEXT)
    with own_jobs(cluster):
        answers = Traces(cluster.sbatch(body, directory=directory, env=env))
        ask_until_the_end(cluster, answers)
    return answers


def ask_until_the_end(cluster: Cluster, answers: Traces) -> None:
    directory = answers.job.directory

    def begun(answer: Metrics) -> bool:
        """Return whether the head knows from Slurm when the job began."""
        since = slurm_end.seconds(answers.job.fields()["StartTime"])
        return answer.get(("begin_timestamp_seconds",)) == since

    def trains() -> bool:
        answers.before.update(scrape(cluster, "n1"))
        counted = ("round_steps", "goodput_ratio")
        return all(answers.before.get((n,), 0) > 0 for n in counted) and begun(answers.before)

    eventually("its steps", trains, pause=PAUSE)
    answers.beside.update(scrape(cluster, "n2"))
    answers.remote.update(scrape(cluster, "n1", at="n2"))
    eventually("a checkpoint", (directory / "saved" / "step-30.pt").exists)
    answers.report.update(report(cluster, answers.job))
    leading = wait_until_running(cluster, answers.job.id, each=1)
    assert leading["host"] == "n1"
    cluster.on("n1", ["kill", "-KILL", str(leading["pid"])])

    def leads() -> bool:
        answers.after.update(scrape(cluster, "n2"))
        trained = answers.after.get(("seat_seconds", "training"), 0.0)
        is_running = answers.after.get(("nodes", "running")) == 2
        is_all = trained >= answers.before["seat_seconds", "training"]
        return is_running and is_all and begun(answers.after)

    eventually("the metrics of the job on the other node", leads, pause=PAUSE)
    answers.at_lost_head.update(scrape(cluster, "n1"))

    def led_by_another() -> bool:
        return any(each["job"]["head"] == "n2" for each in status(cluster, str(answers.job.id)))

    eventually("another head", led_by_another, pause=PAUSE)
    for _ in range(10):
        answers.launches.append(status(cluster, str(answers.job.id)))  # of all nodes at once
    (directory / "enough").touch()
    answers.job.wait()


def test_status_shows_one_launch_on_the_new_head(traces: Traces) -> None:
    """The launch is found though its first node no longer has an agent."""
    assert [len(launches) for launches in traces.launches] == [1] * 10
    (launch,) = traces.launches[-1]
    assert launch["host"] == "n2"
    assert launch["job"]["agents"][0]["state"] == "lost"


def test_metrics_and_notifications_continue(traces: Traces) -> None:
    """The ports of the nodes are the same, and the counters include all from before."""
    job, before, after = traces.job, traces.before, traces.after
    assert (before["leads",], before["nodes", "running"], before["world_size",]) == (1, 3, 3)
    assert traces.beside.keys() == {("leads",), ("snapshot_timestamp_seconds",)}
    assert traces.beside["leads",] == 0
    assert traces.remote == {}  # it is on loopback
    assert after["leads",] == 1
    assert (after["nodes", "running"], after["nodes", "lost"], after["world_size",]) == (2, 1, 2)
    assert after["begin_timestamp_seconds",] == before["begin_timestamp_seconds",]
    assert traces.at_lost_head == {}
    events = [json.loads(line) for line in (job.directory / "events").read_text().splitlines()]
    assert [event["event"] for event in events] == [
        "round_began",
        "round_ended",
        "round_began",
        "job_over",
    ]
    assert [event["host"] for event in events] == ["n1", "n2", "n2", "n2"]
    assert events[1]["text"] == "the head on n1 was lost: n2 leads now"
    assert events[1]["cause"] == "node lost"
    assert {event["slurm_id"] for event in events} == {str(job.id)}


def test_the_report_loses_no_second(cluster: Cluster, traces: Traces) -> None:
    """Each second is accounted for, while the job runs and after its end."""
    assert not traces.report["over"]
    assert traces.report["seats"] == 3
    job = traces.job
    assert "n2 leads now" in job.output
    final = report(cluster, job)
    assert (final["over"], final["code"], final["rounds"]) == (True, 0, 2)
    assert final["total"] == pytest.approx(3 * (final["end"] - final["begin"]), rel=0.01)
    # Two or three workers train for 90 steps or more, which take a tenth of a second.
    assert final["seconds"]["training"] > 2 * 80 * 0.1
    assert final["seconds"]["lost or cordoned"] > 0
    written = json.loads((logs(job) / "report.json").read_text())
    assert written["seconds"] == final["seconds"]
    histories = list(logs(job).glob("history-*.jsonl"))
    assert len(histories) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in histories} == {0o600}


def test_the_facts_of_both_heads_are_one_sequence(traces: Traces) -> None:
    runs, _ = fact_files.read(logs(traces.job))
    dated = [(at, run.host, fact) for run in runs for at, fact in run.facts]
    dated.sort(key=lambda each: each[0])
    found = [(host, fact) for _, host, fact in dated]
    heads = [(host, type(fact)) for host, fact in found if not isinstance(fact, OFTEN)]
    assert heads[:1] == [("n1", RoundBegan)]
    assert heads[-2:] == [("n2", RoundEnded), ("n2", JobEnded)]
    ((host, changed),) = [each for each in found if isinstance(each[1], HeadChanged)]
    assert (host, changed.lost, changed.head) == ("n2", "n1", "n2")
    assert changed.ended.round == 0


def test_the_page_names_the_lost_node(cluster: Cluster, traces: Traces) -> None:
    job = traces.job
    command = f"cd {shlex.quote(str(job.directory))} && hpclaunch report {job.id} --html page.html"
    cluster.on("n4", ["sh", "-c", command])
    page = (job.directory / "page.html").read_text()
    for text in ("n1 is lost", '"n3"'):
        assert text in page
    assert re.search(r"a checkpoint of step \d+ is complete", page)


def test_the_journals_are_shown_in_order(traces: Traces) -> None:
    assert len(list(logs(traces.job).glob("journal*.jsonl"))) == 3
    command = [sys.executable, "-m", "hpclaunch", "replay", str(logs(traces.job))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.count("begins, ") == 3
    assert "leads, stage" in done.stdout
    times = [line[:12] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert times == sorted(times, key=lambda time: (time < times[0], time))  # also over midnight
