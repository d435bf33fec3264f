"""hpclaunch status, stop, restart and notice on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from contextlib import contextmanager

import pytest
from launching import HPCLAUNCH, LIMIT, end, family, hpclaunch, script, start, until

from hpclaunch.cli import status
from hpclaunch.core.protocol.job_snapshot import JobSnapshot, LaunchSnapshot
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.network import launches
from hpclaunch.system.network.launches import NoLaunchError, find
from hpclaunch.system.network.view_socket import ViewSocket, file_of
from hpclaunch.system.shared import packing
from surroundings import LIGHT_TORCH, environment, is_asked_by_test

pytestmark = pytest.mark.starts

STEPPING = """\
import os, time
import torch

optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
while not os.path.exists("over"):
    optimizer.step()
    time.sleep(0.02)
"""


# A script that counts its own steps needs no torch.
COUNTING = """\
import os, time
from hpclaunch.progress import step

number = 0
while not os.path.exists("over"):
    step(number := number + 1)
    time.sleep(0.02)
"""
HANDLING = f"""\
import signal

signal.signal(signal.SIGUSR1, lambda *_: print("noticed", flush=True))
{COUNTING}"""
WAITING = """\
import os, time
while not os.path.exists("over"):
    time.sleep(0.02)
"""


class Stepping:
    def __init__(self, directory, *options, text=COUNTING, timing=None):
        self.directory = directory
        words = (*options, script(directory, text))
        environ = environment(PYTHONPATH=LIGHT_TORCH)
        self.process = start(*words, cwd=directory, environ=environ, timing=timing)

    def listed(self):
        """Return this launch, as `status --json` has it; there may be others on this machine."""
        done = hpclaunch("status", "--json", cwd=self.directory)
        launches = json.loads(done.stdout) if done.returncode == 0 else []
        return next((each for each in launches if each["pid"] == self.process.pid), None)

    def status(self):
        """Return the same as `listed`, without starting a process."""
        for directory in self.directory.glob("hpclaunch-logs/*"):
            with contextlib.suppress(NoLaunchError):
                return json.loads(packing.to_json(find(directory.name, {}).only))
        return None

    def until_status(self, condition=lambda launch: launch["job"]["agents"][0]["steps"]):
        return until(lambda: (launch := self.status()) and condition(launch) and launch, pause=0.1)

    def ends(self):
        (self.directory / "over").touch()
        out, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, out, err


def waiting(directory, *options, timing=None):
    """Return a launch that makes no steps, and so is there sooner."""
    return stepping(directory, "--cold", *options, text=WAITING, timing=timing)


def phases(launch):
    return [worker["phase"] for worker in launch["job"]["agents"][0]["workers"]]


def runs(launch):
    return launch["job"]["agents"][0]["ranks"]


@contextmanager
def stepping(directory, *options, **more):
    launch = Stepping(directory, *options, **more)
    try:
        yield launch
    finally:
        if launch.process.poll() is None:
            end(launch.process)


def test_a_launch_on_this_machine(tmp_path):
    with stepping(tmp_path, "--nproc", 2, text=STEPPING) as run:
        run.until_status(lambda each: phases(each) == ["step", "step"])
        launch = until(run.listed)
        name, job = launch["name"], launch["job"]
        assert re.fullmatch(r"local-[\d-]+", name)
        assert launch["logs"].startswith(str(tmp_path))
        assert (job["stage"], job["round"], job["restarts"]) == ("running", 0, 0)
        (agent,) = job["agents"]
        assert [worker["rank"] for worker in agent["workers"]] == [0, 1]
        assert all(worker["memory"] > 10**7 for worker in agent["workers"])
        done = hpclaunch("status", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{name}  running for ")
        assert re.search(r"(?m)^   0  \S+ +step +[\d,]+", done.stdout)
        assert "\x1b" not in done.stdout
        code, _, err = run.ends()
        assert code == 0, err


def test_restart_notice_and_stop(tmp_path):
    with stepping(tmp_path, "--nproc", 2, "--max-restarts", 0, text=HANDLING) as run:
        name = run.until_status()["name"]
        done = hpclaunch("notice", name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, f"{name}: notice asked for\n"), done.stderr
        outs = "hpclaunch-logs/*/round-0/rank-*.out"
        until(lambda: sum("noticed" in out.read_text() for out in tmp_path.glob(outs)) == 2)
        hpclaunch("restart", name, cwd=tmp_path)
        job = run.until_status(lambda each: each["job"]["round"] == 1)["job"]
        assert job["past"][0]["why"] == "the user has asked for a restart"
        run.until_status(lambda each: each["job"]["agents"][0]["steps"])
        assert hpclaunch("stop", name, cwd=tmp_path).returncode == 0
        out, err = run.process.communicate(timeout=LIMIT)
        assert run.process.returncode == 143, err
        assert "ended by hpclaunch stop" in err
        assert out.count("noticed") == 2


@pytest.mark.parametrize("command", ["stop", "restart", "notice", "status"])
def test_what_is_not_there(in_process, tmp_path, command):
    done = in_process(command, "local-4711", cwd=tmp_path)
    assert done.returncode == 2
    assert "no launch local-4711 runs on this machine: it is over, runs elsewhere" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_notice_where_it_is_off(tmp_path):
    with waiting(tmp_path, "--notice", "off") as run:
        name = run.until_status(runs)["name"]
        done = hpclaunch("notice", name, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.endswith(f"{name}: its workers get no notice (--notice off)\n")
        assert run.ends()[0] == 0


def test_a_watch_in_a_file_ends_with_the_job(tmp_path):
    with waiting(tmp_path) as run:
        name = run.until_status(runs)["name"]
        command = [HPCLAUNCH, "status", "--watch", name]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path
        ) as watch:
            assert watch.stdout.readline().startswith(f"{name}: running for ")
            assert run.ends()[0] == 0
            said, _ = watch.communicate(timeout=LIMIT)
            assert watch.returncode == 0
            assert said.endswith("ended with code 0: all workers ended with 0\n")


class TakenOver:
    """A Slurm job whose second agent takes over from the first one, and then ends it.

    The agents answer at one socket. Each look at the job brings the next answer.
    """

    def __init__(self, directory):
        self._over = directory / "over"
        commands = {
            "squeue": f'[ -e "{self._over}" ] || echo 4711 1 RUNNING 4711',
            "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"',
        }
        for name, text in commands.items():
            script(directory, f"#!/bin/sh\n{text}\n", name).chmod(0o755)
        self.environ = {**environment(), "PATH": f"{directory}:{os.environ['PATH']}"}
        job = JobSnapshot(Stage.RUNNING, 60.0, "n1", 0, 0, 60.0, "", 1, 1, 0, 3, ())
        leading = LaunchSnapshot(
            "4711.0", "4711", "n1", 1, "train.py", str(directory), time.time(), 60.0, job
        )
        member = replace(leading, job=None, host="n2")
        taken_over = replace(leading, job=replace(job, head="n2", round=1), host="n2")
        self._answers = [leading] * 4 + [member] * 6 + [taken_over] * 4
        ended = replace(job, stage=Stage.ENDED, head="n2", round=1, verdict="all done", code=0)
        last = replace(taken_over, job=ended, time=time.time() + 60)
        (directory / "status.json").write_bytes(packing.pack(last))

    def _serve(self):
        agent = ViewSocket()
        for launch in self._answers:
            is_next = False
            while not is_next and select.select([agent], [], [], LIMIT)[0]:
                for _, asker in agent.receive():
                    is_next |= is_asked_by_test(asker)
                    file = file_of(packing.pack(launch))
                    agent.answer(asker, file)
                    os.close(file)
        self._over.touch()
        agent.close()

    def __enter__(self):
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join(LIMIT)


def test_a_watch_pauses_before_it_looks_for_the_head_again(monkeypatch):
    """Each look is a load for Slurm, and the step of the watch may end at once."""
    launch = LaunchSnapshot("71.0", "71", "n1", 1, "a.py", "", 0.0, 0.0, None)
    done = []

    def looks(*_):
        done.append("looks")
        if len(done) > 4:
            raise NoLaunchError("job 71 is over")
        return launches.FoundLaunches("71", [launch], ("false",))

    monkeypatch.setattr(launches, "find", looks)
    monkeypatch.setattr(status.time, "sleep", lambda _: done.append("pauses"))
    assert status.watch("71", environment()) == 0
    assert done == ["looks", "pauses", "looks", "pauses", "looks"]


def test_a_watch_continues_across_a_takeover(tmp_path, monkeypatch, capfd):
    """While the job has no head, the watch waits for one."""
    monkeypatch.setattr(status, "PAUSE", 0.1)
    monkeypatch.setattr(status, "PAUSE_IN_FILE", 0.1)
    with TakenOver(tmp_path) as job:
        monkeypatch.setenv("PATH", job.environ["PATH"])
        assert status.watch("4711", job.environ) == 0
    lines = capfd.readouterr().out.splitlines()
    *running, last = (re.search(r"(running|ended) .*round (\d)", line).groups() for line in lines)
    assert running == sorted(running)
    assert {*running} == {("running", "0"), ("running", "1")}
    assert last == ("ended", "1")
    assert lines[-1].endswith("ended with code 0: all done")


def test_top_continues_across_a_takeover_and_shows_how_the_job_ended(tmp_path):
    program = """
import sys
from hpclaunch.cli import main, top
top.PAUSE = 0.1
sys.exit(main(["top", "4711"]))
"""
    ours, theirs = os.openpty()
    with TakenOver(tmp_path) as job:
        env = job.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        streams = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", program], env=env, **streams) as watching:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # of a terminal that is closed
                while data := os.read(ours, 4096):
                    shown += data
            assert watching.wait() == 0, watching.stderr.read()
    os.close(ours)
    screen, _, left = shown.decode().rpartition("\x1b[?1049l")  # the screen of before
    before, silent, after = screen.partition("the job no longer answers")
    assert silent
    assert "head n1" in before
    assert "head n2" in after
    assert "ended with code 0: all done" in left


def test_an_agent_that_is_stopped_keeps_nobody_waiting(tmp_path):
    """A running agent is listed beside it."""
    with waiting(tmp_path) as one, waiting(tmp_path) as other:
        one.until_status(runs)
        other.until_status(runs)
        one.process.send_signal(signal.SIGSTOP)
        assert one.listed() is None
        assert until(other.listed)
        one.process.send_signal(signal.SIGCONT)
        assert one.until_status(runs)
        assert one.ends()[0] == other.ends()[0] == 0


@pytest.mark.parametrize("code", [0, 143], ids=["q", "SIGTERM"])
def test_top_on_a_terminal(tmp_path, code):
    with waiting(tmp_path, "--nproc", 2) as run:
        name = run.until_status(runs)["name"]
        ours, theirs = os.openpty()
        before = termios.tcgetattr(theirs)
        os.set_blocking(ours, False)
        env = environment() | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        command = [HPCLAUNCH, "top", name]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env, cwd=tmp_path
        ) as top:
            text = ""

            def says(wanted):
                nonlocal text
                with contextlib.suppress(BlockingIOError):
                    text += os.read(ours, 1 << 16).decode()
                return wanted in text

            until(lambda: says("q quit"))
            assert "node" in text
            os.write(ours, b"r")
            until(lambda: says("n nodes"))
            os.write(ours, b"/x\x1b")
            if code:
                top.terminate()
            else:
                os.write(ours, b"q")
            until(lambda: says("") and top.poll() is not None)
            assert top.returncode == code, top.stderr.read()
        assert termios.tcgetattr(theirs) == before
        says("")
        assert text.rindex("\x1b[?1049l") > text.rindex("\x1b[?1049h")  # the screen of before
        os.close(ours)
        os.close(theirs)
        assert run.ends()[0] == 0


def test_the_log_directory_answers_when_nobody_does(tmp_path):
    with waiting(tmp_path) as run:
        launch = run.until_status(runs)
        assert run.ends()[0] == 0
    for name in (launch["name"], launch["logs"]):
        done = hpclaunch("status", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert re.match(rf"{launch['name']}  ended \d+ s ago · round 0", done.stdout)
        assert "ended with code 0: all workers ended with 0" in done.stdout
        assert "left: " not in done.stdout
        for command in (("status", "--watch"), ("top",)):
            done = hpclaunch(*command, name, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert re.fullmatch(rf"{launch['name']}: ended .*\n", done.stdout)
            watched(name, tmp_path, b"ended with code 0", "xterm", command)
    file = os.path.join(launch["logs"], "status.json")
    assert os.stat(file).st_mode & 0o777 == 0o600
    with open(file, "w") as f:
        json.dump(launch, f)  # as if everything had been killed
    done = hpclaunch("status", launch["name"], cwd=tmp_path)
    assert "the job no longer answers" in done.stdout
    assert done.stderr == (
        f"hpclaunch: no launch {launch['name']} runs on this machine: it is over, runs elsewhere "
        "or has another name; hpclaunch status lists what runs\n"
    )
    with open(file, "w") as f:
        f.write("{}")
    assert hpclaunch("status", launch["name"], cwd=tmp_path).returncode == 2


def test_the_log_directory_of_a_launch_that_runs(tmp_path):
    """The running launch answers as well: the head has no file yet, or it may be old."""
    with waiting(tmp_path) as run:
        launch = run.until_status(runs)
        done = hpclaunch("status", launch["logs"], cwd=tmp_path)
        assert done.stdout.startswith(f"{launch['name']}  running for "), done.stderr
        earlier = {**launch, "time": launch["time"] - 40, "old": None}
        with open(os.path.join(launch["logs"], "status.json"), "w") as f:
            json.dump(earlier, f)
        done = hpclaunch("status", launch["logs"], cwd=tmp_path)
        assert done.stdout.startswith(f"{launch['name']}  running for "), done.stderr
        assert "no longer answers" not in done.stdout
        watched(launch["logs"], tmp_path, b"q quit", "xterm", ("top",))
        command = [HPCLAUNCH, "status", "--watch", launch["logs"]]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path
        ) as watch:
            line = watch.stdout.readline()
            for pid in family(watch):
                os.kill(pid, signal.SIGKILL)
        assert line.startswith(f"{launch['name']}: running for ")
        assert run.ends()[0] == 0


def test_a_launch_that_runs_in_the_log_directory_of_one_that_is_over(tmp_path):
    (tmp_path / "over").touch()
    logs = tmp_path / "logs"
    script(tmp_path, WAITING)
    done = hpclaunch("--nproc", 1, "--log-dir", logs, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = hpclaunch("status", logs, cwd=tmp_path)
    assert "ended with code 0" in done.stdout, done.stderr
    (tmp_path / "over").unlink()
    with waiting(tmp_path, "--log-dir", logs) as run:
        launch = until(run.listed, pause=0.1)
        done = hpclaunch("status", logs, cwd=tmp_path)
        assert done.stdout.startswith(f"{launch['name']}  running for "), done.stderr
        assert run.ends()[0] == 0


def test_a_file_of_that_name_comes_first(tmp_path):
    script(tmp_path, "print('mine')\n", "status")
    done = hpclaunch("status", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("how", ["file", "directory", "file in one's own directory", "link"])
def test_a_file_of_that_name_of_another_user_is_not_run(tmp_path, how):
    """Anybody can put one into /tmp, or into a directory that a group shares."""
    file = script(tmp_path, "print('theirs')\n", "status" if how == "file" else "theirs.py")
    match how:
        case "directory" | "file in one's own directory":
            (tmp_path / "status").mkdir()
            file = file.rename(tmp_path / "status" / "__main__.py")
        case "link":
            (tmp_path / "status").symlink_to(file)
    theirs = file if "own" in how else tmp_path / "status"
    os.chown(theirs, 65534, 65534, follow_symlinks=False)
    done = hpclaunch("status", cwd=tmp_path)
    assert "theirs" not in done.stdout, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_not_answered(tmp_path):
    """Neither the command nor the socket itself answers another user."""
    asking = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
sys.path[:0] = {[p for p in sys.path if p]!r}
from hpclaunch.system.network import view_client
names = view_client.sockets()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
with ThreadPoolExecutor() as pool:
    asked = [pool.submit(view_client.ask, word.encode(), names, 1.0) for word in sys.argv[1:]]
print(len(names), *(len(each.result()) for each in asked))
"""
    words = ("look", "stop", "restart", "notice")
    with waiting(tmp_path) as run:
        before = run.until_status(runs)
        done = subprocess.run(
            [sys.executable, "-c", asking, *words], capture_output=True, text=True, check=True
        )
        number, *answers = done.stdout.split()
        assert int(number) > 0
        assert answers == ["0"] * len(words)
        after = run.until_status(runs)
        assert (after["pid"], after["job"]["round"]) == (before["pid"], 0)
        assert run.ends()[0] == 0


def watched(name, cwd, wanted, term, command=("status", "--watch")):
    """Return what is shown on a terminal of 0 x 0, once the wanted text is."""
    watching, terminal = os.openpty()  # as the kernel makes it
    with subprocess.Popen(
        [HPCLAUNCH, *command, name],
        env=environment() | {"TERM": term},
        cwd=cwd,
        stdin=terminal,
        stdout=terminal,
    ) as watch:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # of a terminal that is closed
            while wanted not in shown and len(shown) < 10_000:
                shown += os.read(watching, 4096)
        watch.terminate()
    os.close(watching)
    assert wanted in shown, shown
    return shown


def test_a_terminal_without_a_size_shows_the_last_line(tmp_path):
    """Some serial lines and containers have one of 0 x 0."""
    with waiting(tmp_path) as run:
        launch = run.until_status(runs)
        watched(launch["name"], tmp_path, b"   0  ", "xterm")
        assert run.ends()[0] == 0


def test_a_terminal_without_a_cursor_that_moves_shows_plain_lines(tmp_path):
    """An editor's terminal is one of these."""
    with waiting(tmp_path) as run:
        name = run.until_status(runs)["name"]
        line = f"{name}: running for ".encode()
        for command in (("status", "--watch"), ("top",)):
            assert b"\x1b" not in watched(name, tmp_path, line, "dumb", command)
        assert run.ends()[0] == 0
