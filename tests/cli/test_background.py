"""Started to stay, with nohup, by `&` in a script, or with its standard streams closed: what is
ignored then stays so, for all."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios

import psutil
import pytest
from launching import HPCLAUNCH, LIMIT, family, hpclaunch, script, until

from living import living
from surroundings import LIGHT_TORCH, environment

pytestmark = pytest.mark.starts

REPORT = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
reports = {s.name: signal.getsignal(s) is signal.SIG_IGN for s in signal.Signals}
with open(f"draft-{os.environ['RANK']}", "w") as f:
    json.dump({"ppid": os.getppid(), "ignored": [name for name in reports if reports[name]]}, f)
os.rename(f.name, f"told-{os.environ['RANK']}.json")
time.sleep(600)
"""
PYTHONS = ["SIGPIPE", "SIGXFSZ"]  # every Python ignores them

starts = pytest.mark.parametrize(
    "source", [REPORT, "import torch\n" + REPORT], ids=["cold", "warm"]
)  # workers are fresh interpreters, or forked


class Shell:
    """Runs a script of one line, with {} for the launcher and its words, on a terminal of its own.

    A shell that runs a script has no control of jobs: all that it starts is in the foreground.
    """

    def __init__(self, cwd, line, source):
        self.cwd = cwd
        self.terminal, theirs = pty.openpty()
        words = f"{HPCLAUNCH} --nproc 2 --log-dir logs {script(cwd, source).name}"
        self.process = subprocess.Popen(
            ["sh", "-c", line.format(words)],
            cwd=cwd,
            env=environment(PYTHONPATH=LIGHT_TORCH),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.reports = [json.loads(until(lambda r=r: self.wrote(f"told-{r}.json"))) for r in (0, 1)]
        fork_server = psutil.Process(self.reports[0]["ppid"])
        self.agent = fork_server.parent()
        self.pids = family(self.agent)

    def wrote(self, name):
        path = self.cwd / name
        return path.read_text() if path.exists() else ""

    def close(self):
        """Close the terminal: the kernel sends SIGHUP to its foreground processes."""
        os.close(self.terminal)
        assert self.process.wait(LIMIT) == -signal.SIGHUP

    def survives(self, signum):
        """Send a signal that is ignored; the message about SIGUSR1 shows that it has arrived."""
        self.agent.send_signal(signum)
        self.agent.send_signal(signal.SIGUSR1)
        until(lambda: "SIGUSR1 not passed on to ranks 0, 1" in self.wrote("err"))

    def ended(self):
        """Return the exit code, after SIGTERM."""
        self.agent.send_signal(signal.SIGTERM)
        code = int(until(lambda: self.wrote("code").strip()))
        assert until(lambda: not living(self.pids))
        assert self.wrote("out") == "saved\nsaved\n"
        assert "hpclaunch: ended by SIGTERM" in self.wrote("err")
        return code


@starts
def test_the_end_of_a_terminal_ends_nothing_after_nohup(tmp_path, source):
    shell = Shell(tmp_path, "nohup sh -c '{} >out 2>err; echo $? >code' & wait", source)
    shell.close()
    shell.survives(signal.SIGHUP)
    assert shell.ended() == 128 + signal.SIGTERM
    for report in shell.reports:
        assert sorted(report["ignored"]) == sorted(["SIGHUP", "SIGINT", "SIGQUIT", *PYTHONS])


@starts
def test_ctrl_c_is_not_for_a_job_in_the_background_of_a_script(tmp_path, source):
    line = "trap : INT; {} >out 2>err & until wait $!; do code=$?; test $code = 130 || break; done"
    shell = Shell(tmp_path, f"{line}; echo $code >code", source)
    os.write(shell.terminal, b"\x03")  # to all
    shell.survives(signal.SIGQUIT)
    assert shell.ended() == 128 + signal.SIGTERM
    os.close(shell.terminal)
    shell.process.wait(LIMIT)
    for report in shell.reports:
        assert sorted(report["ignored"]) == sorted(["SIGINT", "SIGQUIT", *PYTHONS])


WRITES = """
import os, sys
rank = os.environ["RANK"]
print("out", rank)
print("err", rank, file=sys.stderr)
with open(f"has-{rank}", "w") as f:
    f.write("\\n".join(os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)))
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "12", "012"])
@pytest.mark.parametrize("source", [WRITES, "import torch\n" + WRITES], ids=["cold", "warm"])
def test_closed_standard_streams(tmp_path, source, closed):
    """No file and no socket gets the number of one, in the launcher or in a worker."""
    close = " ".join(f"{fd}>&-" for fd in closed)
    before = ["sh", "-c", f'exec "$@" {close}', "sh"]
    path = script(tmp_path, source)
    env = environment(PYTHONPATH="" if closed == "012" else LIGHT_TORCH)
    done = hpclaunch("--nproc=2", "--log-dir=logs", path, cwd=tmp_path, env=env, before=before)
    assert done.returncode == 0, done.stderr
    for fd, kind, shown in (("1", "out", done.stdout), ("2", "err", done.stderr)):
        wrote = [f"{kind} {rank}\n" for rank in range(2)]
        logs = [tmp_path / f"logs/round-0/rank-{rank}.{kind}" for rank in range(2)]
        assert [log.read_text() for log in logs] == wrote
        assert sorted(shown.splitlines(keepends=True)) == ([] if fd in closed else wrote)
    for rank in range(2):
        own = [f"{tmp_path}/logs/round-0/rank-{rank}.{kind}" for kind in ("out", "err")]
        assert (tmp_path / f"has-{rank}").read_text().splitlines() == [os.devnull, *own]
