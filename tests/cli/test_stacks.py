"""hpclaunch stacks: the places where workers are, which continue undisturbed."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest
from launching import LIMIT, command_of, end, fork_server, hpclaunch, script, start, until

from hpclaunch.system.processes import worker_stacks

pytestmark = [pytest.mark.starts, pytest.mark.usefixtures("light_torch")]

# Each rank waits in a function of its own until something is in its fifo. Those that are named in
# the arguments hold the GIL meanwhile.
WAITING = """\
import ctypes, os, sys

rank = os.environ["RANK"]
fifo = os.open(f"fifo-{rank}", os.O_RDONLY)

def resting():
    return os.read(fifo, 1)

def holding():
    got = ctypes.create_string_buffer(1)
    ctypes.PyDLL(None).read(fifo, got, 1)
    return got.raw

print("got", (holding if rank in sys.argv[1:] else resting)().decode())
"""
RESTING, HOLDING = "in train.py:7, resting; S", "in train.py:11, holding; S"


class Waiting:
    def __init__(self, directory, number, *command):
        self.directory = directory
        paths = [directory / f"fifo-{rank}" for rank in range(number)]
        for path in paths:
            os.mkfifo(path)
        self.fifos = [os.open(path, os.O_RDWR) for path in paths]
        self.process = start("--nproc", number, *command, cwd=directory)

    def shown(self, *args):
        """Return the stacks of this launch: there may be others on this machine.

        The kernel's name for the place where a process waits is removed.
        """
        done = hpclaunch("stacks", *args, cwd=self.directory)
        if done.returncode:
            return ""
        own = rf"^hpclaunch with pid {self.process.pid}:\n((?:  .*\n|\n)+)"
        found = re.search(own, done.stdout, re.MULTILINE)
        text = textwrap.dedent(found[1]) if found else done.stdout
        return re.sub(r"(?m)(; [A-Z]), \w[\w.]*$", r"\1", text)

    def until_shown(self, text, *args):
        return until(lambda: text in (said := self.shown(*args)) and said, pause=0.3)

    def pid(self, name):
        """Return the pid of the only process of that name below the fork server."""
        (pid,) = [p for p in fork_server(self.process)[1:] if name in command_of(p)]
        return pid

    def ends_in_order(self):
        for fd in self.fifos:
            os.write(fd, b"x\n")
        out, err = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, err
        assert "restart" not in err
        return out


@contextmanager
def waiting(directory, number, *command):
    launch = Waiting(directory, number, *command)
    try:
        yield launch
    finally:
        if launch.process.poll() is None:
            end(launch.process)
        for fd in launch.fifos:
            os.close(fd)


@pytest.mark.parametrize("how", [(), ("--cold",)], ids=["warm", "cold"])
def test_workers_report_and_continue(tmp_path, how):
    train = script(tmp_path, WAITING)
    with waiting(tmp_path, 4, *how, train, "2") as launch:
        launch.until_shown(f"ranks 0-1,3: {RESTING}\n")
        rank_2 = rf"rank 2 on \S+ \(pid \d+\): {re.escape(HOLDING)}\n"
        both = rf"ranks 0-1,3: {re.escape(RESTING)}\n{rank_2}"
        until(lambda: re.fullmatch(both, launch.shown()), pause=0.3)
        whole = launch.until_shown("in holding\n", "--rank", "2")
        assert re.match(rank_2, whole)
        path = ascii(str(train))[1:-1]  # as faulthandler writes it
        assert f'    File "{path}", line 11 in holding\n' in re.sub(" +File", "    File", whole)
        assert "resting" not in whole
        full = until(lambda: (said := launch.shown("--full")).count("in resting\n") >= 3 and said)
        assert (full.count("in holding\n"), full.count("in resting\n")) == (1, 3)
        done = hpclaunch("stacks", "--rank", "4711", cwd=tmp_path)
        assert done.returncode == 2
        # Launches of others on this machine may have more ranks.
        last = re.search(r"hpclaunch: error: no rank 4711: there are ranks 0-(\d+)", done.stderr)
        assert last is not None
        assert int(last[1]) >= 3
        assert launch.ends_in_order().count("got x") == 4


def test_steps_and_phases(tmp_path):
    begin = "from hpclaunch.progress import phase, step\nstep(1204)\n"
    train = script(tmp_path, begin + 'phase("evaluation")\n' + WAITING)
    with waiting(tmp_path, 1, train) as launch:
        launch.until_shown(": step 1204, phase evaluation, in train.py:10, resting; S\n")
        launch.ends_in_order()


def test_all_processes_of_a_worker(tmp_path):
    """Processes that the worker has forked answer as well, and are not mixed up."""
    child = "import os\npid = os.fork()\nif not pid:\n    def loading(): os.read(r, 1)\n"
    child += "    r, w = os.pipe()\n    loading()\n"
    train = script(tmp_path, child + WAITING + "os.kill(pid, 9)\n")
    with waiting(tmp_path, 1, train) as launch:
        launch.until_shown("in loading\n", "--full")
        said = launch.until_shown("in train.py:13, resting; S\n")
        assert "loading" not in said
        both = re.compile(r".*in resting\n.*in loading\n.*", re.DOTALL)
        full = until(lambda: (said := launch.shown("--full")) and both.fullmatch(said) and said)
        first, second = full.split("  process ")[1:]
        assert "in resting\n" in first
        assert "in resting\n" not in second
        assert "in loading\n" in second
        launch.ends_in_order()


def test_a_worker_that_is_stopped(tmp_path):
    """A stopped worker is not asked: it would answer when it continues."""
    train = script(tmp_path, WAITING)
    with waiting(tmp_path, 1, train) as launch:
        launch.until_shown(RESTING)
        pid = launch.pid(str(train))
        os.kill(pid, signal.SIGSTOP)
        launch.until_shown("stopped, so its stacks are not known; T\n")
        os.kill(pid, signal.SIGCONT)
        launch.until_shown(RESTING)
        launch.ends_in_order()


@pytest.mark.parametrize("how", ["no Python", "--progress off"])
def test_workers_that_report_no_stacks(tmp_path, how):
    """A signal would end them."""
    if how == "no Python":
        command = ("--no-python", "sh", "-c", "read x < fifo-0; echo got $x")
    else:
        command = ("--progress", "off", script(tmp_path, WAITING))
    with waiting(tmp_path, 1, *command) as launch:
        name = "sh" if how == "no Python" else "python3"
        launch.until_shown(f": in {name}, whose stacks are not known; S\n")
        full = launch.until_shown(", whose stacks are not known", "--full")
        assert full.count("process ") == 1
        launch.ends_in_order()


def files_of_stacks(server):
    paths = [f"/proc/{server}/fd/{fd}" for fd in os.listdir(f"/proc/{server}/fd")]
    return [
        path for path in paths if os.path.exists(path) and "hpclaunch stacks" in os.readlink(path)
    ]


def test_stacks_are_not_kept(tmp_path):
    """The memory that they take does not grow for ever."""
    train = script(tmp_path, WAITING)
    with waiting(tmp_path, 1, train) as launch:
        launch.until_shown(RESTING)
        server = fork_server(launch.process)[0]
        # The text may come from another launch, which has the same.
        (file,) = until(lambda: files_of_stacks(server))
        os.truncate(file, 3 << 20)
        launch.until_shown(RESTING)
        assert os.stat(file).st_size < 1 << 20
        launch.ends_in_order()


def test_odd_names(tmp_path):
    odd = "tr\x1b[31min\n.py"
    rename = 'open("/proc/self/comm", "wb").write(b"\\x1b[31mred\\x07\\r\\n")\n'
    train = script(tmp_path, rename + WAITING, name=odd)
    with waiting(tmp_path, 1, train) as launch:
        launch.until_shown("(?[31mred", "--full")  # launches of others may be shown before it
        said = launch.until_shown("resting; S", "--full")
        assert "\x1b" not in said
        assert "(?[31mred" in said
        launch.ends_in_order()


def test_nothing_to_see(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    alone = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    done = hpclaunch("stacks", cwd=tmp_path, before=alone)
    assert done.returncode == 2
    assert done.stderr.startswith("hpclaunch: error: no workers run here; ")
    assert "those that are just being started have no stacks yet" in done.stderr


def test_it_takes_no_name_of_a_launch(in_process, tmp_path):
    done = in_process("stacks", "local-4711", cwd=tmp_path)
    assert done.returncode == 2
    assert "local-4711 is no id of a Slurm job: leave it out to look at this" in done.stderr


def test_no_slurm(tmp_path):
    done = hpclaunch("stacks", "71", cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.startswith("hpclaunch: error: cannot look at job 71: No such file")


def test_a_reader_that_cannot_be_started(in_process, tmp_path, monkeypatch):
    def fail(_whole):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))  # fork names no file

    monkeypatch.setattr(worker_stacks, "here", fail)
    done = in_process("stacks", cwd=tmp_path)
    assert done.returncode == 2
    why = "cannot look at this machine: Resource temporarily unavailable"
    assert done.stderr == f"hpclaunch: error: {why}\n"


def test_of_a_variable_that_is_not_set(tmp_path):
    done = hpclaunch("stacks", "", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hpclaunch: error: the name of the job is empty")


def of_job(directory, squeue, srun, *options, job="71"):
    """Return the command with stand-ins for Slurm's, as shell scripts."""
    for name, text in (("squeue", squeue), ("srun", srun)):
        script(directory, f"#!/bin/sh\n{text}\n", name).chmod(0o755)
    env = {"PATH": f"{directory}:/bin:/usr/bin"}
    done = hpclaunch("stacks", job, *options, cwd=directory, env=env)
    assert done.returncode == 2
    assert done.stdout == ""
    return done.stderr.removeprefix("hpclaunch: error: ")


FAILS = "echo 'error: Invalid \033[31mjob id' >&2; exit 1"
RUNS = "echo 71 2 RUNNING 71"


NO_WORKERS = """\
job 71 has no workers; those that are just being started have no stacks yet
"""


@pytest.mark.parametrize(
    ("squeue", "srun", "says"),
    [
        (FAILS, "", "cannot look at job 71: error: Invalid ?[31mjob id\n"),
        ("echo 71 2 PENDING 71", "", "cannot look at job 71: it is PENDING\n"),
        ("", "", "cannot look at job 71: it is over\n"),
        (RUNS, FAILS, "cannot look at job 71: error: Invalid ?[31mjob id\n"),
        (RUNS, "exit 3", "cannot look at job 71: exit code 3\n"),
        (RUNS, "echo prolog; echo hpclaunch-stacks n1 '[]'", NO_WORKERS),
        (RUNS, "echo hpclaunch-stacks n1 '['", "cannot look at job 71: n1: incomplete answer\n"),
    ],
)
def test_slurm_says_no(tmp_path, squeue, srun, says):
    assert of_job(tmp_path, squeue, srun) == says


def test_components_of_a_heterogeneous_job(tmp_path):
    squeue = '[ "$3" = --jobs=71 ] && printf "71 1 RUNNING 71+0\\n72 2 RUNNING 71+1\\n"'
    srun = """case "$*" in *--jobid=71\\ --het-group=1\\ --nodes=2\\ *)
        echo hpclaunch-stacks n2 '[{"rank": 1}]'; exit 3;; esac"""
    says = "no rank 0: there is rank 1; not all of job 71+1 was seen: exit code 3\n"
    assert of_job(tmp_path, squeue, srun, "--rank", 0, job="71+1") == says


def test_a_rank_of_a_node_that_does_not_answer(tmp_path):
    srun = """echo hpclaunch-stacks n1 '[{"rank": 0}]'; exit 3"""
    says = "no rank 1: there is rank 0; not all of job 71 was seen: exit code 3\n"
    assert of_job(tmp_path, RUNS, srun, "--rank", 1) == says


# As su, which waits for its child: root's by its effective uid, with descriptors of its caller.
LIKE_SU = """
import os, signal, struct, sys, time
from hpclaunch.worker.site import _hpclaunch_layout as page
real, file = int(sys.argv[2]), os.open(sys.argv[3], os.O_RDONLY)
os.setresuid(real, 0, 0)
ready, done = os.pipe()
child = os.fork()
if not child:
    os.setresuid(real, real, real)
    os.dup2(file, page.HIGH[1])
    signal.signal(page.SIGNAL, lambda *_: None)
    os.write(done, b".")
    time.sleep(600)
os.read(ready, 1)
fields = [0] * (page.SLOT // 8)
for field in (page.WORKER, page.WRITER, page.ANSWERER, page.RESPONDER):
    fields[field] = child
fields[page.STACKS] = fields[page.ASKED_AT] = file
os.write(os.memfd_create(page.NAMES[0]), struct.pack(f"{len(fields)}q", *fields))
print("ready", flush=True)
sys.stdin.read()
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which has programs that others call")
@pytest.mark.parametrize("real", [0, 65534], ids=["a program of one's own", "another user's call"])
@pytest.mark.parametrize("size", [1, 2 << 20])
def test_no_file_of_ones_own_is_written_to(tmp_path, real, size):
    """Whoever may read a file could give it to a program that only looks like a fork server."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"x" * size)
    words = ["hpclaunch.worker.fork_server", str(real), victim]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", LIKE_SU, *words], stdin=pipe, stdout=pipe
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        shown = hpclaunch("stacks", cwd=tmp_path).stdout
        process.stdin.close()
    assert victim.read_bytes() == b"x" * size
    assert real == 0 or f"hpclaunch with pid {os.getpid()}:" not in shown
