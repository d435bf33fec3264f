"""The end of a job by Slurm, from a stand-in for `scontrol`."""

import math
import time

import pytest

from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.system.hosts import slurm_end
from hpclaunch.system.shared.errands import FindJobEnd
from hpclaunch.system.shared.scontrol import fields_of, shown

JOB = (
    "JobId=7 JobState={state} EndTime={} PreemptEligibleTime=1 PreemptTime={} Partition=main "
    "Requeue={}"
)
PARTITION = "PartitionName=main GraceTime=30 PreemptMode={} State=UP"
SCRIPT = """#!/bin/sh
[ "$2" = job ] && echo "{}" || echo "{}"
"""
BEGAN = "1600000000"  # what the environment said


def asked(tmp_path, monkeypatch, *fields, mode="REQUEUE", state="RUNNING"):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCRIPT.format(JOB.format(*fields, state=state), PARTITION.format(mode)))
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return slurm_end.ask(shown("job", "7"), "", 0)


@pytest.mark.starts
@pytest.mark.parametrize(
    ("end", "preempted", "at", "state"),
    [
        ("1800000000", "None", 1800000000.0, JobState.RUNNING),
        ("1800000000", "1700000000", 1800000000.0, JobState.PREEMPTED),
        ("Unknown", "1700000000", 1700000030.0, JobState.PREEMPTED),
        ("Unknown", "None", None, JobState.RUNNING),
        ("", "(null)", None, JobState.RUNNING),
    ],
)
def test_what_scontrol_says(tmp_path, monkeypatch, end, preempted, at, state):
    said, found = asked(tmp_path, monkeypatch, end, preempted, "0")
    assert said == at
    assert found["state"] == state


@pytest.mark.starts
@pytest.mark.parametrize("preempted", ["None", "1700000000"])
def test_a_job_that_is_cancelled(tmp_path, monkeypatch, preempted):
    _, found = asked(tmp_path, monkeypatch, "1700000010", preempted, "1", state="COMPLETING")
    assert found["state"] == JobState.OVER


@pytest.mark.parametrize(
    ("limit", "before", "at"),
    [
        ("00:01:00", math.inf, 1700000060.0),
        ("2-03:04:05", math.inf, 1700000000.0 + 2 * 86400 + 3 * 3600 + 4 * 60 + 5),
        ("UNLIMITED", 1700000060.0, math.inf),
        ("Partition_Limit", math.inf, math.inf),
        (None, 1700000060.0, 1700000060.0),  # it does not answer
    ],
)
def test_the_time_limit_of_a_step(limit, before, at):
    text = f"StepId=7.0 UserId=0 StartTime=1700000000 TimeLimit={limit} State=RUNNING"
    assert slurm_end.end_of_step(fields_of(text) if limit else {}, before) == at


@pytest.mark.parametrize(
    ("job", "step_end", "at"),
    [
        ({"EndTime": "1800000000"}, 1700000000.0, 1700000000.0),
        ({"EndTime": "1800000000"}, 1900000000.0, 1800000000.0),
        ({"EndTime": "1800000000"}, math.inf, 1800000000.0),
        ({"EndTime": "Unknown", "TimeLimit": "UNLIMITED"}, 1700000000.0, 1700000000.0),
    ],
)
def test_the_earlier_end_counts(job, step_end, at):
    said, found = slurm_end.ask(job, "", 0, step_end)
    assert (said, found["endless"]) == (at, False)


@pytest.mark.starts
@pytest.mark.parametrize(
    ("preempted", "requeue", "mode", "again"),
    [
        ("1700000000", "1", "REQUEUE", True),
        ("1700000000", "0", "REQUEUE", False),
        ("1700000000", "1", "CANCEL", False),
        ("None", "1", "REQUEUE", False),
    ],
)
def test_whether_slurm_starts_it_again(tmp_path, monkeypatch, preempted, requeue, mode, again):
    _, found = asked(tmp_path, monkeypatch, "1800000000", preempted, requeue, mode=mode)
    assert found["may_requeue"] == (requeue == "1")
    assert found["requeued_if_killed"] == again


@pytest.mark.starts
@pytest.mark.parametrize(("end", "at"), [(BEGAN, 1600000000.0), ("", None)])
def test_without_scontrol(monkeypatch, tmp_path, end, at):
    monkeypatch.setenv("PATH", str(tmp_path))
    nothing = {"state": JobState.UNKNOWN, "may_requeue": None}
    nothing |= {"requeued_if_killed": False, "endless": False}
    assert slurm_end.ask(shown("job", "7"), end, 0) == (at, nothing)


@pytest.mark.parametrize(("limit", "at"), [("UNLIMITED", None), ("00:10:00", 1600000000.0)])
def test_what_the_environment_said_is_over_once_there_is_no_time_limit(limit, at):
    """The variable has the end that the job began with."""
    said, found = slurm_end.ask({"TimeLimit": limit, "EndTime": "Unknown"}, BEGAN, 0)
    assert said == at
    assert found["endless"] == (at is None)


def test_words_of_the_user_are_no_fields():
    job = (
        "JobId=7 JobName=until EndTime=3 UserId=me(1) Restarts=0 EndTime=1800000000 "
        "Command=/home/me/job.sh EndTime=4 WorkDir=/home/me Comment=Restarts=5"
    )
    fields = fields_of(job)
    assert (fields["EndTime"], fields["Restarts"]) == ("1800000000", "0")
    node = fields_of("NodeName=n1 OS=Linux 6.1 State=IDLE Reason=was State=IDLE+DRAIN")
    assert (node["NodeName"], node["State"]) == ("n1", "IDLE")


NODE = 'echo "NodeName=n1 State=IDLE+DRAIN"'
NOW = int(time.time())
IN_GRACE = JOB.format(NOW + 300_000, NOW - 9, 1, state="RUNNING")
STEP = f"StepId=7.0 UserId=0 StartTime={NOW} TimeLimit=1-00:00:00 State=RUNNING"
PREEMPTED = f'case $2 in job) echo "{IN_GRACE}";; step) echo "{STEP}";; *) {NODE};; esac'


@pytest.mark.starts
def test_what_slurm_has_said_counts_while_it_does_not_answer(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    question = {"number": 1, "job": "7", "step": "7.0", "end": str(NOW + 100_000)}
    question |= {"restarts": "", "nodes": "n1", "since": time.time()}
    answers = []
    only_job = PREEMPTED.replace("step)", "nothing)")
    for said in ("exit 1", PREEMPTED, only_job, "exit 1"):
        scontrol.write_text(f"#!/bin/sh\n{said}\n")
        answers.append(
            slurm_end.find(FindJobEnd(**question, before=answers[-1] if answers else None))
        )
    assert 0 < answers[0].left <= 100_000  # of the environment
    ends = [found.left for found in answers[1:3]]
    assert 0 <= ends[0] - ends[1] < 60  # both times that of the step
    assert ends[0] <= 24 * 3600
    assert [found.state for found in answers[1:3]] == [JobState.PREEMPTED] * 2
    assert answers[3].left is None
    assert [found.draining for found in answers] == [(), ("n1",), ("n1",), ("n1",)]


def test_the_time_left_is_that_of_the_answer_however_long_slurm_takes(monkeypatch):
    now = [1000.0]

    def take_long(*_):
        now[0] += 9.0
        return ""

    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(slurm_end, "shown", lambda *_: {"EndTime": "1100"})
    monkeypatch.setattr(slurm_end, "said", take_long)
    question = {"job": "7", "step": "", "end": "", "restarts": "", "nodes": "n1", "since": 1.0}
    assert slurm_end.find(FindJobEnd(**question)).left == 91.0


@pytest.mark.starts
@pytest.mark.parametrize("answer", ["exit 1", f"echo JobId=7 JobState=COMPLETED EndTime={BEGAN}"])
def test_a_job_that_is_over_does_not_end_the_training(tmp_path, monkeypatch, answer):
    """A shell in a terminal multiplexer may have its variables."""
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{answer}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    question = FindJobEnd("7", step="", end=BEGAN, restarts="", nodes="", since=NOW)
    assert slurm_end.find(question).left is None


def test_times_as_slurm_writes_them_by_itself():
    assert slurm_end.seconds("2026-11-23T20:44:01") == slurm_end.seconds("2026-11-23T20:44:00") + 1


CONFIG = (
    "KeepAliveTime           = 300 sec\nKillOnBadExit           = 0\nKillWait                = {}"
)


@pytest.mark.starts
@pytest.mark.parametrize(("restarts", "requeued"), [(1, True), (2, False)])
def test_a_job_that_is_requeued_has_a_short_time_left(tmp_path, monkeypatch, restarts, requeued):
    said = f'[ "$2" = config ] && echo "{CONFIG.format("1000 sec")}" || echo "Restarts=2 Requeue=1"'
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{said}\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    before = time.time()
    at, found = slurm_end.ask(shown("job", "7"), "", restarts)
    assert found["state"] == (JobState.REQUEUED if requeued else JobState.RUNNING)
    assert (at is not None and 0 <= at - before - 1000 < 60) == requeued


@pytest.mark.parametrize(
    ("variable", "said", "states"),
    [
        ("1", (1, 2), "running requeued"),
        ("1", (0, 1), "running requeued"),  # the variable of the job from which it was submitted
        ("3", (0, None, 1), "running unknown requeued"),
        ("", (0, 0), "running running"),
    ],
)
def test_only_a_restart_since_the_first_answer_is_a_requeue(monkeypatch, variable, said, states):
    question = FindJobEnd("7", step="", end="", restarts=variable, nodes="", since=0.0)
    monkeypatch.setattr(slurm_end, "kill_wait", lambda: 30.0)
    last, found = None, []
    for number in said:
        fields = {} if number is None else {"EndTime": "1800000000", "Restarts": str(number)}
        monkeypatch.setattr(slurm_end, "shown", lambda *_, fields=fields: fields)
        last = slurm_end.find(question.replaced(before=last))
        found.append(last.state)
    assert found == [JobState[state.upper()].value for state in states.split()]
