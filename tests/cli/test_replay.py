"""hpclaunch replay: what happened, from the journals of real jobs."""

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launching import LIMIT, family, hpclaunch, script, start, until

from hpclaunch.cli import main
from journals import feed
from living import living
from surroundings import environment, free_port

FAILS = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def replayed(in_process):
    def replay(where, *options):
        return in_process("replay", where, *options, cwd=os.fspath(where.parent))

    return replay


@pytest.fixture(scope="module")
def logs(starts, tmp_path_factory):
    """Return the logs of a job of two workers, one of which was killed."""
    cwd = tmp_path_factory.mktemp("job")
    done = hpclaunch(*("--nproc", 2, "--log-dir", "logs", script(cwd, FAILS)), cwd=cwd)
    assert done.returncode == 0, done.stderr
    return cwd / "logs"


def doctored(logs, where, change):
    lines = (logs / "journal.jsonl").read_text().splitlines(keepends=True)
    path = where / "journal.jsonl"
    path.write_text("".join(change(lines)))
    return path


def test_a_job_as_it_was(replayed, logs):
    done = hpclaunch("replay", logs, cwd=logs.parent)
    assert (done.returncode, done.stderr) == (0, "")
    words = ["begins, ", "Started", "-> OpenStore", "phase idle -> running"]
    words += ["WorkerExited rank=1 code=137 signal=9", "-> StopWorkers"]
    words += [
        "stage running -> stopping",
        "-> Record RestartDecided cause={round=0 rank=1 ",
        "-> Exit verdict=",
    ]
    words += [" events in "]
    at = 0
    for word in words:
        at = done.stdout.find(word, at)
        assert at >= 0, f"{word!r} is not there:\n{done.stdout}"
    assert replayed(logs / "journal.jsonl").stdout == done.stdout


@pytest.mark.starts
def test_a_whole_journal_leads_to_the_same_decisions(tmp_path):
    """All that happened is given to a core again."""
    timing = {"system.logs.journal.WHOLE": True}
    words = ("--nproc", 2, "--log-dir", "logs", script(tmp_path, FAILS))
    done = hpclaunch(*words, cwd=tmp_path, timing=timing)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "logs" / "journal.jsonl").open("rb") as file:
        assert feed(file) > 10


@pytest.mark.parametrize("torn", [20, -1])
def test_one_that_is_cut_off_says_so(replayed, logs, tmp_path, torn):
    path = doctored(logs, tmp_path, lambda lines: [*lines[:-4], lines[-4][:torn]])
    done = replayed(path)
    assert (done.returncode, done.stderr) == (0, "")
    *_, torn_at, last = done.stdout.splitlines()
    assert "the journal is cut off in line" in torn_at
    assert "the journal ends here, without the end of the job: stage " in last


def test_a_run_after_one_that_is_cut_off(replayed, logs, tmp_path):
    path = doctored(logs, tmp_path, lambda lines: [*lines[:9], lines[9][:20], "\n", *lines])
    done = replayed(path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("begins, ") == 2
    assert done.stdout.count("the journal is cut off in line 10") == 1


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "it is empty"),
        ("what is this?\n", "this is not a journal of hpclaunch"),
        (
            '{"time":1.0,"now":1.0,"event":"Started","with":{}}\n',
            "first line does not describe the agent",
        ),
        (
            '{"time":1.0,"now":1.0,"note":"core","with":{"format":99,"version":"9.0"}}\n',
            "show it with hpclaunch 9.0",
        ),
    ],
)
def test_what_is_no_journal_is_one_line(replayed, tmp_path, data, why):
    path = tmp_path / "journal.jsonl"
    path.write_text(data)
    for where in (path, tmp_path):
        done = replayed(where)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"hpclaunch: error: {path}: ")
        assert why in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_others_are_shown_beside_one_that_is_no_journal(replayed, logs, tmp_path):
    doctored(logs, tmp_path, lambda lines: lines)
    (tmp_path / "journal-agent-1.jsonl").touch()
    done = replayed(tmp_path)
    assert done.returncode == 2
    assert "-> Exit verdict=" in done.stdout
    assert done.stderr == f"hpclaunch: error: {tmp_path}/journal-agent-1.jsonl: it is empty\n"


def test_a_pipe_in_the_place_of_one_is_not_waited_for(replayed, logs, tmp_path):
    doctored(logs, tmp_path, lambda lines: lines)
    path = tmp_path / "journal-agent-1.jsonl"
    os.mkfifo(path)
    why = "it is not a regular file"
    done = replayed(tmp_path)
    assert "-> Exit verdict=" in done.stdout
    assert (done.returncode, done.stderr) == (2, f"hpclaunch: error: {path}: {why}\n")
    done = replayed(path)
    assert (done.returncode, done.stderr) == (2, f"hpclaunch: error: cannot read {path}: {why}\n")


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        *(("core", "time", value) for value in (1e18, -1e18, math.nan, "x")),
        *(("core", "with", value) for value in (3, ["a"], {"format": 2, "made": {}})),
        *(("effect", "effect", value) for value in ({"a": 1}, ["a"], 3)),
        *((word, "with", value) for word in ("event", "effect", "position") for value in (3, [1])),
        *((word, "of", "Report") for word in ("event", "effect")),
    ],
)
def test_one_that_somebody_has_made_up(logs, tmp_path, capfd, word, key, value):
    def change(lines):
        at = next(at for at, line in enumerate(lines) if f'"{word}"' in line)
        return [
            *lines[:at],
            json.dumps({**json.loads(lines[at]), key: value}),
            "\n",
            *lines[at + 1 :],
        ]

    assert main(["replay", str(doctored(logs, tmp_path, change))]) in (0, 2)
    err = capfd.readouterr().err
    assert err == "" or err.startswith("hpclaunch: error: ")


@pytest.mark.parametrize("value", [{"a": 1}, [1]])
def test_a_last_position_that_somebody_has_made_up(logs, tmp_path, capfd, value):
    def change(lines):
        at = next(at for at, line in enumerate(lines) if '"position"' in line)
        return [*lines[:at], json.dumps({**json.loads(lines[at]), "with": value}), "\n"]

    path = doctored(logs, tmp_path, change)
    assert main(["replay", str(path)]) == 2
    assert capfd.readouterr().err.startswith(f"hpclaunch: error: {path}: its content makes no ")


@pytest.mark.fuzz
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 100_000), st.integers(0, 255))
def test_one_wrong_byte_never_does_harm(logs, tmp_path, position, value):
    data = bytearray((logs / "journal.jsonl").read_bytes())
    data[position % len(data)] = value
    path = tmp_path / "journal.jsonl"
    path.write_bytes(data)
    assert main(["replay", str(path)]) in (0, 2)


def test_nothing_there(tmp_path, capsys):
    assert main(["replay", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: No such file or directory" in capsys.readouterr().err
    assert main(["replay", str(tmp_path)]) == 2
    assert "no journal in" in capsys.readouterr().err
    assert main(["replay"]) == 2


def test_a_directory_that_cannot_be_read(replayed, logs, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)
    done = replayed(logs)
    assert done.returncode == 2
    assert done.stderr == f"hpclaunch: error: cannot read {logs}: Permission denied\n"


def test_more_journals_than_files_may_be_open(logs, tmp_path):
    for agent in range(60):
        shutil.copy(logs / "journal.jsonl", tmp_path / f"journal-agent-{agent}.jsonl")
    limited = ("prlimit", "--nofile=40:200")
    done = hpclaunch("replay", tmp_path, cwd=tmp_path, before=limited)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("begins, ") == 60


def test_a_pager_may_leave(logs):
    command = [sys.executable, "-m", "hpclaunch", "replay", os.fspath(logs)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.starts
def test_all_agents_of_a_job_one_of_which_was_killed(replayed, tmp_path):
    """The killed agent's journal ends with it; the head's continues."""
    env = environment(HPCLAUNCH_SECRET_FILE=os.fspath(tmp_path / "secret"))
    path = script(tmp_path, "import time\ntime.sleep(600)")
    options = ["--nnodes", "1:2", "--health", "off", "--master-addr", "127.0.0.1"]
    options += ["--master-port", free_port(), "--log-dir", "logs", "--loss-timeout", LIMIT]
    agents = [
        start(*options, "--node-rank", rank, "--nproc", 1, path, cwd=tmp_path, environ=env)
        for rank in range(2)
    ]
    logs = tmp_path / "logs"
    until(lambda: '"phase":"running"' in _text(logs / "journal-agent-1.jsonl"))
    killed = family(agents[1])
    agents[1].kill()
    agents[1].wait(LIMIT)
    until(lambda: '"begins":2' in _text(logs / "journal.jsonl"))
    until(lambda: not living(killed))  # its writer too
    agents[0].terminate()
    assert agents[0].wait(LIMIT) == 143
    done = replayed(logs)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    text = done.stdout
    assert "the journal ends here, without the end of the job: phase running, round 0" in text
    assert text.index("PeerClosed index=1") < text.index("Signalled signum=15")
    assert len(replayed(logs, "--verbose").stdout) > len(text)
    for agent in agents:
        agent.communicate()


def _text(path):
    return path.read_text() if path.exists() else ""
