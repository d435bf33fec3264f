"""What Slurm says of the end of a job, as a `scontrol` that is played says it."""

import pytest

from hpclaunch.system.hosts import job_end

JOB = "JobId=7 JobName=x EndTime={} PreemptEligibleTime=1 PreemptTime={} Partition=main Reason=None"
PARTITION = "PartitionName=main GraceTime=30 State=UP"
SCRIPT = """#!/bin/sh
[ "$2" = job ] && echo "{}" || echo "{}"
"""


@pytest.mark.parametrize(
    ("end", "preempted", "found"),
    [
        ("1800000000", "None", (1800000000.0, False)),
        ("1800000000", "1700000000", (1800000000.0, True)),
        ("Unknown", "1700000000", (1700000030.0, True)),
        ("Unknown", "None", (None, False)),
        ("", "(null)", (None, False)),
    ],
)
def test_what_scontrol_says(tmp_path, monkeypatch, end, preempted, found):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(SCRIPT.format(JOB.format(end, preempted), PARTITION))
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert job_end.ask("7") == found


def test_without_scontrol(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert job_end.ask("7") == (None, False)


def test_times_as_slurm_writes_them_by_itself(monkeypatch):
    assert job_end.seconds("2026-11-23T20:44:01") == job_end.seconds("2026-11-23T20:44:00") + 1
