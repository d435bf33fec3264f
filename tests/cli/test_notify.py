"""--notify on one machine: a command that receives events, and its effect on a job."""

from __future__ import annotations

import json
import signal

import psutil
import pytest
from launching import command_of, hpclaunch, only_logs, script, until
from test_status import runs, waiting

from hpclaunch.core.protocol.node_facts import NotifyFailed, NotifyTrouble
from hpclaunch.system.logs import fact_files
from living import living

pytestmark = pytest.mark.starts

FAILS_ONCE = """\
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("a bad batch")
"""


def events(directory):
    file = directory / "events"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def test_a_job_that_fails_once(tmp_path):
    job = script(tmp_path, FAILS_ONCE)
    done = hpclaunch("--cold", "--notify", "cat >> events", "--nproc", 2, job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--notify" not in done.stderr
    reported = events(tmp_path)
    assert [event["event"] for event in reported] == [
        "round_began",
        "round_ended",
        "round_began",
        "job_over",
    ]
    for event in reported:
        assert event["format"] == 1
        assert event["job"].startswith("local-")
        assert event["slurm_id"] == ""
        assert event["host"]
        assert event["time"] > 1.7e9
        assert event["text"]
    _, ended, _, over = reported
    assert ended["cause"] == "exception"
    assert ended["detail"] == "ValueError: a bad batch"
    assert ended["text"] in done.stderr
    assert (over["result"], over["exit_code"], over["restarts"]) == ("finished", 0, 1)
    assert 0 <= over["goodput"] <= 1


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("cat >> events; echo no $$ >&2; exit 3", "the command of --notify ended with 3: no "),
        ("no-such-command", "the command of --notify ended with 127: "),
        ("kill -9 $$", "the command of --notify was killed by signal 9"),
    ],
)
def test_a_command_that_fails_is_complained_of_once(tmp_path, command, complaint):
    job = script(tmp_path, FAILS_ONCE)
    done = hpclaunch("--cold", "--notify", command, job, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the command of --notify") == done.stderr.count(complaint) == 1


def test_a_command_that_hangs_holds_up_neither_training_nor_the_end_for_long(tmp_path):
    command = "echo $$ >> pids; sleep 1000"
    timing = {"agent.notifying.END_LIMIT": 1.0}
    with waiting(tmp_path, "--notify", command, timing=timing) as run:
        assert run.until_status(runs)["job"]["round"] == 0
        code, _, err = run.ends()
        assert code == 0
        assert "the command of --notify took longer than 1 s at the end of the job" in err
        assert "was too slow for 1 event" in err
        ((agent,), _) = fact_files.read(only_logs(tmp_path))
        troubles = [fact.trouble for _, fact in agent.facts if isinstance(fact, NotifyFailed)]
        assert troubles == [NotifyTrouble.UNFINISHED, NotifyTrouble.SLOW]
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        until(lambda: not living(pids))


def test_a_command_dies_with_its_launcher(tmp_path):
    with waiting(tmp_path, "--notify", "echo $$ >> pids; exec sleep 1000") as run:
        until((tmp_path / "pids").exists)
        until(lambda: (tmp_path / "pids").read_text().strip())
        run.process.send_signal(signal.SIGKILL)
        run.process.communicate()
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        until(lambda: not living(pids))


def test_without_the_option_there_is_no_such_process(tmp_path):
    with waiting(tmp_path) as run:
        run.until_status(runs)
        children = psutil.Process(run.process.pid).children()
        commands = [command_of(child.pid) for child in children]
        assert not [each for each in commands if "hpclaunch.agent.errand_service" in each]
        assert run.ends()[0] == 0
