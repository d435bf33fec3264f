"""The launcher on a terminal: its workers have one, and their files have every byte."""

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import termios

import pytest
from launching import HPCLAUNCH, family, fork_server, until

from living import living
from surroundings import LIGHT_TORCH, environment

pytestmark = pytest.mark.starts

ROWS, COLUMNS = 17, 93
REPORT = """
import os, sys
report = [os.isatty(1), os.isatty(2), sys.stdout.isatty(), sys.stderr.isatty()]
sizes = [os.get_terminal_size(fd) for fd in (1, 2) if os.isatty(fd)]
print(report, *{(s.lines, s.columns) for s in sizes}, file=open("told-" + os.environ["RANK"], "w"))
"""


class Screen:
    """A terminal with a launcher on it; `shown` is what it shows so far."""

    def __init__(self, *words, cwd, shell="", **streams):
        self.end, theirs = pty.openpty()
        self.resize(ROWS, COLUMNS)
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs) | streams
        command = [HPCLAUNCH, "--log-dir", "logs", *words]
        if shell:
            command = ["bash", "-c", shell.replace("COMMAND", shlex.join(map(str, command)))]
        self.cwd, self.shown = cwd, b""
        self.process = subprocess.Popen(
            command, cwd=cwd, env=environment(), preexec_fn=become_foreground, **streams
        )
        os.close(theirs)

    def resize(self, rows, columns):
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data):
        os.write(self.end, data)

    def read(self):
        """Read what is there, or a good part of it if the terminal is written to for ever."""
        for _ in range(1000):
            if not select.select([self.end], [], [], 0.02)[0]:
                return
            try:
                self.shown += os.read(self.end, 1 << 16)
            except OSError:  # nobody has it open any more
                return

    def shows(self, text):
        def found():
            self.read()
            return text in self.shown

        until(found)

    def over(self):
        """Return the exit code."""

        def ended():
            self.read()
            return self.process.poll() is not None

        until(ended)
        self.read()
        return self.process.returncode

    def file(self, name, number=0):
        return (self.cwd / "logs" / f"round-{number}" / name).read_bytes()


def of_workers(shown):
    """Return what is shown without live lines and messages about the load of this machine."""
    shown = re.sub(rb"\r\x1b\[K[^\r\n]*\(\d+ s\)|\r\x1b\[K", b"", shown)
    return re.sub(rb"hpclaunch: on \S+: load: .*\r\n", b"", shown).replace(b"\r\n", b"\n")


def become_foreground():
    """Take the terminal that is our standard input, as a shell has it for a command."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def launch(tmp_path):
    screens = []

    def launch(body, *options, **streams):
        (tmp_path / "train.py").write_text(body)
        screens.append(Screen(*options, "train.py", cwd=tmp_path, **streams))
        return screens[-1]

    yield launch
    for screen in screens:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.end)


def report(cwd, rank=0):
    return (cwd / f"told-{rank}").read_text().strip()


ALL = f"[True, True, True, True] ({ROWS}, {COLUMNS})"


@pytest.mark.parametrize("start", ["--cold", "--preload=wave"])
def test_workers_have_a_terminal_with_its_size(launch, tmp_path, monkeypatch, start):
    monkeypatch.setenv("PYTHONPATH", LIGHT_TORCH)
    torch = "" if start == "--cold" else "import torch\n"
    assert launch(torch + REPORT, "--nproc=2", start).over() == 0
    assert [report(tmp_path, rank) for rank in (0, 1)] == [ALL, ALL]


CHOICES = {  # options: stdout and stderr of ranks 0 and 1
    ("--redirects=1",): [(False, True), (False, True)],
    ("--redirects=0:3",): [(False, False), (True, True)],
    ("--tee=2",): [(True, False), (True, False)],
    ("--local-ranks-filter=1",): [(False, False), (True, True)],
}


@pytest.mark.parametrize("options", CHOICES)
def test_what_is_not_shown_as_it_is_has_none(launch, tmp_path, options):
    """Output to a file or through a pipe has no terminal, as under torchrun."""
    assert launch(REPORT, "--nproc=2", *options).over() == 0
    for rank, (out, err) in enumerate(CHOICES[options]):
        size = f" ({ROWS}, {COLUMNS})" if out or err else ""
        assert report(tmp_path, rank) == f"[{out}, {err}, {out}, {err}]{size}"


def test_one_stream_on_a_terminal(launch, tmp_path):
    screen = launch(REPORT + "print('to the pipe')", "--nproc=1", stdout=subprocess.PIPE)
    with screen.process.stdout as pipe:
        assert pipe.read() == b"to the pipe\n"
    assert screen.over() == 0
    assert report(tmp_path) == f"[False, True, False, True] ({ROWS}, {COLUMNS})"


def test_the_files_have_every_byte(launch):
    text = bytes(range(256)) + b"a\rb\r\n\n\tlast \x1b[31mred"
    body = f"import os\nos.write(1, {text!r})\nos.write(2, b'error\\n')"
    screen = launch(body, "--nproc=1")
    assert screen.over() == 0
    assert screen.file("rank-0.out") == text + b"error\n"  # as on the terminal
    assert b"\x1b[31mred" in screen.shown


def test_a_new_size_reaches_the_workers(launch):
    body = """
import os, signal, time
signal.signal(signal.SIGWINCH, lambda *_: print(tuple(os.get_terminal_size(1)), flush=True))
print("ready", flush=True)
while True: time.sleep(0.1)
"""
    screen = launch(body, "--nproc=1")
    screen.shows(b"ready")
    screen.resize(40, 120)
    screen.shows(b"(120, 40)")
    screen.type(b"\x03")  # Ctrl-C
    assert screen.over() == 128 + signal.SIGINT


def test_a_bar_that_redraws_itself(launch):
    body = """
import sys, time
for n in range(5):
    sys.stderr.write(f"\\r{n * 25}%"); sys.stderr.flush(); time.sleep(0.01)
sys.stderr.write("\\n")
"""
    screen = launch(body, "--nproc=1")
    assert screen.over() == 0
    assert of_workers(screen.shown) == b"\r0%\r25%\r50%\r75%\r100%\n"


def test_a_worker_that_asks(launch):
    screen = launch("print('hello', input('who? '))", "--nproc=1")
    screen.shows(b"who? ")
    screen.type(b"Ada\n")
    assert screen.over() == 0
    assert screen.file("rank-0.out") == b"who? hello Ada\n"


def test_a_breakpoint(launch):
    screen = launch("answer = 6\nbreakpoint()\nprint('the answer is', answer)", "--nproc=1")
    screen.shows(b"(Pdb) ")
    screen.type(b"answer = 42\n")
    screen.type(b"continue\n")
    assert screen.over() == 0
    assert b"the answer is 42\n" in screen.file("rank-0.out")


def test_what_a_failed_worker_wrote_last_is_shown(launch):
    screen = launch("print('almost'); 1/0", "--nproc=1", "--max-restarts=0")
    assert screen.over() == 1
    assert b"    | ZeroDivisionError: division by zero" in screen.shown
    lines = re.sub(rb"\x1b\[[\d;]*m", b"", screen.file("rank-0.out"))  # colours from Python 3.13 on
    assert lines.endswith(b"ZeroDivisionError: division by zero\n")


def test_every_round_has_its_own(launch, tmp_path):
    body = REPORT + "print('x' * 70000)\nsys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    screen = launch(body, "--nproc=1")
    assert screen.over() == 0
    assert report(tmp_path) == ALL
    for number in (0, 1):
        assert screen.file("rank-0.out", number) == b"x" * 70000 + b"\n"


COUNTS = """
import time
for n in range(100_000):
    print(n, flush=True)
    time.sleep(0.001)
"""


def complete(text):
    """Return the number of whole lines of a counting worker.

    Assert that no line is missing; the last one may be unfinished.
    """
    lines = text.decode().split("\n")
    assert lines[:-1] == [str(n) for n in range(len(lines) - 1)]
    return len(lines) - 1


def test_a_killed_launcher_loses_no_line(launch):
    """The last one that the worker wrote is in a file, too."""
    body = """
import os
with open("count", "w") as count:
    for n in range(10_000_000):
        print(n, flush=True)
        count.seek(0); count.write(str(n)); count.flush()
"""
    screen = launch(body, "--nproc=1")
    screen.shows(b"100\r\n")
    pids = family(screen.process)
    os.kill(screen.process.pid, signal.SIGKILL)
    until(lambda: not living(pids))
    written = int((screen.cwd / "count").read_text())
    assert complete(screen.file("rank-0.out")) in (written + 1, written + 2)


@pytest.mark.usefixtures("light_torch")
def test_a_killed_fork_server_loses_no_line(launch):
    body = COUNTS.replace(
        "100_000",
        "100_000 if __import__('os').environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 10",
    )
    screen = launch(body, "--nproc=1")
    screen.shows(b"100\r\n")
    os.kill(fork_server(screen.process)[0], signal.SIGKILL)
    assert screen.over() == 0
    assert complete(screen.file("rank-0.out")) > 100
    assert complete(screen.file("rank-0.out", 1)) == 10


def test_a_stopped_launcher_holds_up_no_worker(launch):
    """Ctrl-Z, and fg."""
    body = """
import os, time
for n in range(3000):
    print(n, flush=True)
    while n == 1000 and not os.path.exists("stopped"): time.sleep(0.01)
"""
    shell = "set -m; COMMAND; touch stopped; until [ -e go ]; do sleep 0.05; done; fg > fg.log"
    screen = launch(body, "--nproc=1", shell=shell)
    screen.shows(b"1000\r\n")
    screen.type(b"\x1a")
    until((screen.cwd / "stopped").exists)
    until(lambda: screen.file("rank-0.out").endswith(b"2999\n"))
    assert b"2999" not in screen.shown
    (screen.cwd / "go").touch()
    assert screen.over() == 0
    assert b"2998\r\n2999\r\n" in screen.shown


def test_a_terminal_that_is_not_read_holds_up_no_worker(launch):
    screen = launch("print('x' * 2_000_000); open('done', 'w')", "--nproc=1")
    until((screen.cwd / "done").exists)
    assert screen.over() == 0
    assert screen.file("rank-0.out") == b"x" * 2_000_000 + b"\n"


WAITS = """
import os, sys, time, torch, torch.distributed as dist
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(1)
dist.init_process_group("gloo")
while not os.path.exists("go"): time.sleep(0.02)
print("trained")
"""
ERASE = b"\r\x1b[K"


def visible(shown):
    """Return the lines that stay on the terminal, without those about the load of this machine."""
    lines = [line.rpartition(ERASE)[2] for line in shown.split(b"\r\n")]
    return [line for line in lines if b": load: " not in line]


@pytest.mark.usefixtures("light_torch")
def test_a_live_line_says_what_the_job_waits_for(launch):
    """The live line mixes with no message and no output, and is removed in the end."""
    screen = launch(WAITS, "--nproc=2")
    screen.shows(b"2 ranks: first step (")
    (screen.cwd / "go").touch()
    assert screen.over() == 0
    *failed, again, one, two, rest = visible(screen.shown)
    assert failed
    assert all(line.startswith((b"hpclaunch: ", b"  ")) for line in (*failed, again))
    assert (one, two, rest) == (b"trained", b"trained", b"")
    last = screen.shown.rindex(b"2 ranks: first step (")
    assert screen.shown[last:].partition(ERASE)[2].endswith(b"trained\r\n")


@pytest.mark.parametrize("elsewhere", ["a pipe", "no terminal to move in"])
def test_no_live_line(launch, monkeypatch, elsewhere):
    streams = {}
    if elsewhere == "a pipe":
        streams = {"stderr": subprocess.PIPE}
    else:
        monkeypatch.setenv("TERM", "dumb")
    screen = launch("import time; time.sleep(2); print('done')", "--nproc=1", "--cold", **streams)
    assert screen.over() == 0
    assert visible(screen.shown) == [b"done", b""]
    assert ERASE not in screen.shown
    if streams:
        with screen.process.stderr as pipe:
            assert all(line.startswith(b"hpclaunch: ") for line in pipe)


def test_nothing_is_left(launch):
    body = "import os, time\nprint('up', flush=True)\nif not os.fork(): time.sleep(600)"
    screen = launch(body, "--nproc=2", "--grace=1")
    screen.shows(b"up")
    pids = family(screen.process)
    assert screen.over() == 0
    until(lambda: not living(pids))
