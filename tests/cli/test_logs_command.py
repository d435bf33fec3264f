"""hpclaunch logs, for launches on this machine: while they run, from another process, and after."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import time

import psutil
import pytest
from launching import (
    HPCLAUNCH,
    LIMIT,
    command_of,
    end,
    family,
    hpclaunch,
    script,
    start,
    until,
)
from long_jobs import write_facts

from hpclaunch.cli import launch_ledgers, log_directories
from hpclaunch.cli.logs import _changed_at, _is_over
from hpclaunch.core.protocol.facts import Category
from hpclaunch.core.protocol.model import Origin, Sequel, Verdict
from hpclaunch.observe.launches import Launch
from hpclaunch.observe.ledger_entries import LedgerEntry
from hpclaunch.system.logs import fact_files
from living import living
from surroundings import environment

pytestmark = pytest.mark.starts

PRINTS = """
import os, sys, time
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"begin {rank}", flush=True)
print(f"error of {rank}", file=sys.stderr)
while not os.path.exists(f"go-{rank}-{restarts}"):
    time.sleep(0.02)
print(f"end {rank}", flush=True)
sys.exit(rank == "1" and restarts == "0")
"""
FOR_EVER = "import time; print('up', flush=True); time.sleep(600)"
LINE = re.compile(r"\d\d:\d\d:\d\d \[(\d)\]: (.*)")


def logs(cwd, *args):
    return hpclaunch("logs", *args, cwd=cwd)


def parsed(said):
    """(rank, text) of each line, and the lines of rounds as they are."""
    matches = ((line, LINE.fullmatch(line)) for line in said.splitlines())
    return [(int(m[1]), m[2]) if m else line for line, m in matches]


def go(directory, name):
    (directory / name).touch()


class Follower:
    """hpclaunch logs --follow; `shows` waits for a text."""

    def __init__(self, cwd, *args):
        command = [HPCLAUNCH, "logs", "-f", *args]
        self.file = cwd / "followed"
        with self.file.open("w") as out:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=environment(), stdout=out, stderr=subprocess.PIPE, text=True
            )

    def shows(self, text):
        until(lambda: text in self.file.read_text())

    def over(self):
        _, said = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, said, parsed(self.file.read_text())


def test_two_rounds_while_they_run_and_after(tmp_path):
    launch = start("--nproc", 2, "-r", 3, script(tmp_path, PRINTS), cwd=tmp_path)
    until(lambda: list(tmp_path.glob("hpclaunch-logs/*/round-0/rank-1.out")))
    follower = Follower(tmp_path)
    for shown in ("begin 0", "begin 1"):
        follower.shows(shown)
    go(tmp_path, "go-0-0")
    follower.shows("end 0")
    go(tmp_path, "go-1-0")
    follower.shows("round 1")
    go(tmp_path, "go-1-1")
    until(lambda: follower.file.read_text().count("end 1") == 2)
    go(tmp_path, "go-0-1")
    code, said, lines = follower.over()
    launch.communicate(timeout=LIMIT)
    assert (code, said) == (0, "")
    assert lines[0].startswith("-- local-")
    assert re.search(r" round 0, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", lines[0])
    between = next(n for n, line in enumerate(lines) if n and isinstance(line, str))
    assert re.search(
        r" round 1, .*; round 0 ended: exit code, rank 1 on .*, exit code 1$", lines[between]
    )
    first, second = lines[1:between], lines[between + 1 :]
    everything = sorted((r, f"{w} {r}") for r in (0, 1) for w in ("begin", "end", "error of"))
    assert sorted(first) == sorted(second) == everything
    assert first.index((0, "end 0")) < first.index((1, "end 1"))
    assert second.index((1, "end 1")) < second.index((0, "end 0"))
    after = logs(tmp_path)
    assert (after.returncode, after.stderr) == (0, "")
    assert parsed(after.stdout) == lines
    errors = parsed(logs(tmp_path, "--stderr", "--rank", 1).stdout)
    assert [line for line in errors if not isinstance(line, str)] == [(1, "error of 1")] * 2
    found = parsed(logs(tmp_path, "--grep", "^END [01]|^end 0").stdout)
    assert [line for line in found if not isinstance(line, str)] == [(0, "end 0")] * 2
    none = logs(tmp_path, "--grep", "nothing")
    said = "hpclaunch: no line was written that these options select\n"
    assert (none.returncode, none.stdout, none.stderr) == (0, "", said)
    (index,) = tmp_path.glob("hpclaunch-logs/*/round-0/index-agent-0.txt")
    assert stat.S_IMODE(index.stat().st_mode) == 0o600


def test_of_a_launch_that_was_killed(tmp_path):
    """The logs stay readable, also if the log service was killed and replaced."""
    body = "import time\nfor n in range(100_000): print(n, flush=True); time.sleep(0.01)"
    launch = start("--log-dir", "logs", "-r", 3, script(tmp_path, body), cwd=tmp_path)
    out, index = (tmp_path / "logs" / "round-0" / n for n in ("rank-0.out", "index-agent-0.txt"))

    def noted(services):
        """Return whether so many log services have noted when the worker wrote."""
        parts = index.read_text().split(" begin ") if index.exists() else []
        return len(parts) > services and " rank-0.out " in parts[services]

    until(lambda: noted(1))
    children = psutil.Process(launch.pid).children()
    (service,) = [p for p in children if "logs.log_service" in " ".join(command_of(p.pid))]
    service.kill()
    until(lambda: noted(2))
    pids = family(launch)
    end(launch, signal.SIGKILL)
    until(lambda: not living(pids))
    lines = parsed(logs(tmp_path, "logs").stdout)
    assert [line[1] for line in lines if not isinstance(line, str)] == out.read_text().splitlines()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGPIPE])
def test_a_follower_that_is_left(tmp_path, signum):
    launch = start("--log-dir", "logs", script(tmp_path, FOR_EVER), cwd=tmp_path)
    out = tmp_path / "logs" / "round-0" / "rank-0.out"
    until(lambda: out.exists() and out.read_text())
    command = [HPCLAUNCH, "logs", "-f", "logs"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), **pipes) as follower:
        assert follower.stdout.readline().startswith(b"-- ")
        assert follower.stdout.readline().endswith(b"[0]: up\n")
        if signum == signal.SIGINT:
            follower.send_signal(signum)
        else:  # whoever reads it is gone, before the next line comes
            follower.stdout.close()
            launch.send_signal(signal.SIGTERM)
            with out.open("a") as f:
                f.write("more\n")
        assert follower.wait(LIMIT) == 128 + signum
        assert follower.stderr.read() == b""
    end(launch)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "there is no launch in hpclaunch-logs here: name a Slurm job or a log directory"),
        (("local-4711",), "there is no log directory of job local-4711 in hpclaunch-logs: "),
        (("4711",), "there is no log directory of job 4711 in hpclaunch-logs: "),
        (("71_3",), "an element of an array has its own id: sacct -X -j 71_3 -o JobIDRaw"),
        (("",), "the name of the job is empty"),
        (("nowhere",), "nowhere: No such file or directory"),
        (("full/round-0",), "no worker has written anything in full/round-0"),
        (("--grep", "("), "'(' is not a regular expression: "),
        (("--rank", "0-"), "'0-' is not a list of ranks such as 0,3-5"),
        (("--since", "soon"), "'soon' is not a time such as 90s, 5m, 2h or 7d"),
        (("full", "--rank", "7,9"), "--rank: only ranks 3,5 have output\n"),
        (("full", "--node", "n9"), "--node n9: no workers ran there, but on unknown nodes\n"),
    ],
)
def test_a_mistake_is_one_line(in_process, tmp_path, args, complaint):
    here = tmp_path / "full" / "round-0"
    here.mkdir(parents=True)
    for rank in (3, 5):
        (here / f"rank-{rank}.out").write_text("a line\n")
    said = in_process("logs", *args, cwd=tmp_path)
    assert (said.returncode, said.stdout) == (2, "")
    assert complaint in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_files_of_an_older_version(tmp_path):
    here = tmp_path / "hpclaunch-logs" / "71.0" / "round-0"
    here.mkdir(parents=True)
    (here / "rank-0.out").write_text("a line\n")
    for named in ("71", "71.0", "hpclaunch-logs/71.0"):
        assert logs(tmp_path, named).stdout == "-- 71.0 round 0\n--:--:-- [0]: a line\n"
    assert logs(tmp_path, "71", "--since", "5m").stdout.endswith(": a line\n")
    hour = time.time() - 3600
    os.utime(here / "rank-0.out", (hour, hour))
    assert logs(tmp_path, "71", "--since", "5m").stdout == ""


def test_of_a_job_that_was_started_again(tmp_path):
    above = tmp_path / "hpclaunch-logs"
    for number, run in enumerate(("71.0", "71.0.r1")):
        here = above / run / f"round-{number}"
        here.mkdir(parents=True)
        (here / "rank-0.out").write_text(f"of {run}\n")
    assert logs(tmp_path, "71").stdout.splitlines() == [
        "-- 71.0 round 0",
        "--:--:-- [0]: of 71.0",
        "-- 71.0.r1 round 1",
        "--:--:-- [0]: of 71.0.r1",
    ]


def written(directory, *, over, sequel=Sequel.LEAVE, age=0.0):
    """Return the log directory of a launch whose facts were written so many seconds ago."""
    (directory / "round-0").mkdir(parents=True)
    (directory / "round-0" / "rank-0.out").write_text("a line\n")
    (directory / "launch.lock").touch()
    begin = 1.7e9 + len(directory.name)  # that of a later run is longer
    entry = LedgerEntry(begin, begin + 10, 1.0, {Category.TRAINING: 10.0}, 0)
    verdict = Verdict(0, "all is done", Origin.DONE, sequel=sequel) if over else None
    facts = write_facts(directory, Launch(directory.name, (entry,), verdict=verdict))
    at = time.time() - age
    for path in (facts, directory):
        os.utime(path, (at, at))


def is_over(named):
    return _is_over(named, log_directories.chosen(named, _changed_at))


def test_a_launch_that_was_killed_is_over_after_a_while(tmp_path):
    logs = tmp_path / "logs"
    written(logs, over=False, age=300)
    with (logs / "launch.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert not is_over(str(logs))  # it is suspended, perhaps
    follower = Follower(tmp_path, "logs")
    code, said, _ = follower.over()
    killed = "hpclaunch: logs: no end was recorded: the launcher was killed, or its nodes failed\n"
    assert (code, said) == (0, killed)
    os.utime(logs / "facts.jsonl")
    assert not is_over(str(logs))


def test_facts_are_read_again_only_when_there_are_others(tmp_path, monkeypatch):
    logs, read, seen = tmp_path / "logs", launch_ledgers.read, []
    monkeypatch.setattr(launch_ledgers, "read", lambda of: seen.append(of) or read(of))
    written(logs, over=False)
    assert not any(is_over(str(logs)) for _ in range(3))
    assert seen == [logs]
    shutil.rmtree(logs)
    written(logs, over=True)
    assert all(is_over(str(logs)) for _ in range(3))
    assert seen == [logs, logs]


def test_a_file_with_facts_that_vanishes_hides_no_other(tmp_path, monkeypatch):
    written(tmp_path, over=False)
    (kept,) = fact_files.in_directory(tmp_path)
    gone = tmp_path / "facts-agent-1.jsonl"
    monkeypatch.setattr(fact_files, "in_directory", lambda directory: [gone, kept])
    ((name, size, _),) = launch_ledgers.state(tmp_path)
    assert (name, size) == (kept.name, kept.stat().st_size)
    assert launch_ledgers.date(tmp_path) == kept.stat().st_mtime


def test_a_launch_that_has_just_begun_is_the_newest(tmp_path):
    written(tmp_path / "71.0", over=True, age=300)
    written(tmp_path / "71.1", over=False)
    shutil.rmtree(tmp_path / "71.1" / "round-0")
    assert log_directories.chosen(str(tmp_path), _changed_at) == [tmp_path / "71.1"]


@pytest.mark.parametrize(("running", "over"), [("71.10", "71.9"), ("71.0.r1", "71.1")])
def test_a_job_is_over_with_all_of_its_launches(tmp_path, monkeypatch, running, over):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "hpclaunch-logs" / running, over=False)
    written(tmp_path / "hpclaunch-logs" / over, over=True)
    assert not is_over("71")
    assert is_over(over)


def test_a_job_that_is_started_again_is_not_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "hpclaunch-logs" / "71.0", over=True, sequel=Sequel.REQUEUE)
    assert not is_over("71")
    assert is_over("71.0")
    written(tmp_path / "hpclaunch-logs" / "71.0.r1", over=True)
    assert is_over("71")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_another_users_logs_are_refused_with_a_word(in_process, tmp_path):
    here = tmp_path / "logs" / "round-0"
    here.mkdir(parents=True)
    (here / "rank-0.out").write_text("a line\n")
    os.chown(here / "rank-0.out", 65534, -1)
    said = in_process("logs", "logs", cwd=tmp_path)
    complaint = "cannot show logs/round-0/rank-0.out: it belongs to another user"
    assert (said.returncode, said.stdout, said.stderr) == (
        2,
        "",
        f"hpclaunch: error: {complaint}\n",
    )
    (here / "rank-1.out").write_text("another line\n")
    said = in_process("logs", "logs", cwd=tmp_path)
    assert said.returncode == 0
    assert said.stdout.endswith("[1]: another line\n")
    complaint = "not shown: logs/round-0/rank-0.out: it belongs to another user"
    assert said.stderr == f"hpclaunch: {complaint}\n"
