"""The processes beside an agent and its fork server: if they are killed, the training continues and
ends as if nothing had happened. Each is named.
"""

from __future__ import annotations

import json
import os
import signal
import time

import psutil
import pytest
from launching import LIMIT, command_of, fork_server, hpclaunch, living, script, start, until

pytestmark = [pytest.mark.starts, pytest.mark.usefixtures("light_torch")]

LINES = 20
SUSPENDED = 7.0  # seconds; longer than a helper has to answer
OPTIONS = (
    *("--cold", "--max-restarts", "0", "--log-dir", "logs", "--checkpoint-dir", "checkpoints"),
    *("--notify", "cat >> events", "--metrics", "job.prom"),
)
STOPPED = "was stopped by a signal, and continues\n"
KILLED = "was killed and replaced"
TRAINING = f"""\
import os, signal, sys, time
import psutil

when, signum, which = sys.argv[1], int(sys.argv[2]), sys.argv[3]
server = psutil.Process().parent()
agent = server.parent()

def helpers():
    return [child for child in agent.children() if child != server and is_meant(child)]

def is_meant(helper):
    try:
        command = helper.cmdline()
    except psutil.Error:  # it is being replaced
        return False
    return command != agent.cmdline() and which in " ".join(command)

def send(wait=lambda helper: False):
    found = helpers()
    with open("hit", "w") as file:
        print(*[helper.pid for helper in found], file=file)
    for helper in found:
        helper.send_signal(signum)
        while wait(helper):
            time.sleep(0.02)

def lacks_successor(helper):
    return helper in helpers() or len(helpers()) < count

for number in range({LINES}):
    print("line", number)
    while not os.path.exists("events"):  # so all helpers are there
        time.sleep(0.05)
    if number == 1 and when == "training":
        count = len(helpers())
        send(lacks_successor)
if when == "a restart" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    send()
    raise ValueError("a bad batch")
if when == "the end":
    send()
"""
OUTPUT = "".join(f"line {number}\n" for number in range(LINES))


class Launch:
    """A launch with helpers of all kinds that one machine without GPUs has."""

    def __init__(self, directory, when, signum, *options, which=""):
        """`when` the worker sends a signal to the helpers with this word in their commands."""
        (directory / "checkpoints").mkdir()
        words = (*OPTIONS, *options, script(directory, TRAINING), when, int(signum), which)
        self.directory = directory
        self.process = start(*words, cwd=directory)

    def ends(self):
        out, err = self.process.communicate(timeout=LIMIT)
        assert not living(self.hit)
        return self.process.returncode, out, err

    @property
    def hit(self):
        """The helpers to which the worker has sent the signal."""
        return [int(pid) for pid in (self.directory / "hit").read_text().split()]

    @property
    def events(self):
        lines = (self.directory / "events").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]


def test_the_time_in_which_the_launcher_does_not_run_does_not_count(tmp_path):
    """After a suspension, a search that was stopped as well is given time to answer."""
    options = ("--max-restarts", 1)
    launch = Launch(tmp_path, "a restart", signal.SIGSTOP, *options, which="checkpoints.service")
    journal = tmp_path / "logs" / "journal.jsonl"
    until(lambda: journal.exists() and journal.read_text().count("ChooseCheckpoint") == 2)
    launch.process.send_signal(signal.SIGSTOP)
    time.sleep(SUSPENDED)
    for pid in (*launch.hit, launch.process.pid):
        os.kill(pid, signal.SIGCONT)
    code, out, err = launch.ends()
    assert (code, out) == (0, 2 * OUTPUT), err
    assert KILLED not in err
    assert "... this agent was held up for " in hpclaunch("replay", "logs", cwd=tmp_path).stdout


def test_helpers_that_are_killed_are_replaced(tmp_path):
    """Helpers are replaced at once, and not when needed: the worker waits for each successor."""
    launch = Launch(tmp_path, "training", signal.SIGKILL)
    code, _, err = launch.ends()
    assert code == 0, err
    assert err.count(KILLED) == len(launch.hit) > 0
    assert (tmp_path / "logs/round-0/rank-0.out").read_text() == OUTPUT
    assert launch.events[-1] == "job_over"
    replayed = hpclaunch("replay", "logs", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    assert "WorkerExited" in (tmp_path / "logs/journal.jsonl").read_text()


def test_helpers_that_are_killed_at_the_end(tmp_path):
    launch = Launch(tmp_path, "the end", signal.SIGKILL)
    code, _, err = launch.ends()
    assert code == 0, err
    assert (tmp_path / "logs/round-0/rank-0.out").read_text() == OUTPUT


KILLS_ITS_FORK_SERVER = """
import os, signal, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)
"""


def test_what_the_user_has_started_before_outlives_a_helper(tmp_path):
    """A monitor in the background of the shell that becomes the agent is a child of the agent."""
    monitor = ("sh", "-c", 'sleep 1000 > out 2>&1 & echo $! > pid; exec "$@"', "sh")
    done = hpclaunch(script(tmp_path, KILLS_ITS_FORK_SERVER), cwd=tmp_path, before=monitor)
    other = psutil.Process(int((tmp_path / "pid").read_text()))
    other.kill()
    assert done.returncode == 0, done.stderr
    assert "restart 1 of 3" in done.stderr


SHELL = f"""\
n=0
while [ $n -lt {LINES} ]; do
    echo line $n
    n=$((n + 1))
    while [ $n = 2 ] && [ ! -e go ]; do sleep 0.05; done
done
"""


def test_the_copier_of_pipes_is_stopped(tmp_path):
    """The copier is a child of the fork server, and workers that are not Python write to it."""
    (tmp_path / "train.sh").write_text(SHELL)
    job = start("--no-python", "--log-dir", "logs", "sh", "train.sh", cwd=tmp_path)
    file = tmp_path / "logs/round-0/rank-0.out"
    until(lambda: file.exists() and "line 1\n" in file.read_text())
    server, *below = fork_server(job)
    (copier,) = [pid for pid in below if command_of(pid) == command_of(server)]
    psutil.Process(copier).suspend()
    (tmp_path / "go").touch()
    out, err = job.communicate(timeout=LIMIT)
    assert (job.returncode, out) == (0, OUTPUT), err
    assert STOPPED in err
    assert not living([copier])
