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
from launching import LIMIT, family, fork_server, hpclaunch, script, start, until

from hpclaunch.system.shared.prctl import adopt_orphans
from living import living

pytestmark = [pytest.mark.starts, pytest.mark.usefixtures("light_torch")]

LINES = 20
PATIENCE = 10.0  # seconds; for a helper to answer
SUSPENDED = 12.0  # seconds; longer than that
OPTIONS = (
    *("--cold", "--max-restarts", "0", "--log-dir", "logs", "--checkpoint-dir", "checkpoints"),
    *("--notify", "cat >> events", "--metrics", "job.prom"),
)
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

    def __init__(self, directory, when, signum, *options, which="", timing=None):
        """`when` the worker sends a signal to the helpers with this word in their commands."""
        (directory / "checkpoints").mkdir()
        words = (*OPTIONS, *options, script(directory, TRAINING), when, int(signum), which)
        self.directory = directory
        self.process = start(*words, cwd=directory, timing=timing)

    def ends(self):
        out, err = self.process.communicate(timeout=LIMIT)
        until(lambda: not living(self.hit))
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
    """After a suspension, a search that was suspended as well is given time to answer."""
    options = ("--max-restarts", 1)
    timing = {"system.checkpoints.client.PATIENCE": PATIENCE}
    how = {"which": "checkpoints.service", "timing": timing}
    launch = Launch(tmp_path, "a restart", signal.SIGSTOP, *options, **how)
    journal = tmp_path / "logs" / "journal.jsonl"
    until(lambda: journal.exists() and journal.read_text().count("ChooseCheckpoint") == 2)
    launch.process.send_signal(signal.SIGSTOP)
    time.sleep(SUSPENDED)
    for pid in (launch.process.pid, *launch.hit):
        os.kill(pid, signal.SIGCONT)
    code, out, err = launch.ends()
    assert (code, out) == (0, 2 * OUTPUT), err
    assert "does not answer" not in err
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


def test_a_stopped_fork_server_does_not_outlive_its_launcher(tmp_path):
    """The adopter of the fork server may have the same session, as process 1 of a container may.

    Otherwise the kernel continues a stopped process whose process group is orphaned.
    """
    adopt_orphans()
    waits = "import pathlib, time; pathlib.Path('up').touch(); time.sleep(1000)"
    job = start(script(tmp_path, waits), cwd=tmp_path)
    until((tmp_path / "up").exists)
    everybody = family(job)
    os.kill(fork_server(job)[0], signal.SIGSTOP)
    job.kill()
    job.communicate(timeout=LIMIT)
    until(lambda: not living(everybody))
