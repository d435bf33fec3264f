"""hpclaunch.launch: real jobs of this process, and of others that end badly."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
from launching import LIMIT, until
from passed import modes, shout

import hpclaunch
from living import living
from surroundings import SHORT, environment, free_port

pytestmark = pytest.mark.starts

STEPPING = """\
import os, signal, sys, time

signal.signal(signal.SIGUSR1, lambda *_: open("noticed", "w").close())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("here", os.environ["RANK"], *sys.argv[1:], os.environ.get("COLOUR", ""), flush=True)
while not os.path.exists("over"):
    time.sleep(0.02)
if os.path.exists("bad"):
    raise ValueError("a bad batch")
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "stepping.py"
    path.write_text(STEPPING)
    return path


def family(job):
    return [job.pid, *(p.pid for p in psutil.Process(job.pid).children(recursive=True))]


def output(job, rank=0, number=0):
    """Return the output of a rank, once there is a line."""
    path = job.logs / f"round-{number}" / f"rank-{rank}.out"
    until(lambda: path.exists() and "\n" in path.read_text())
    return path.read_text()


def test_a_job_that_succeeds(script, tmp_path):
    with hpclaunch.launch(script, 1, Path("a"), nproc=2, env={"COLOUR": "blue"}) as job:
        assert job.running
        assert job.logs.parent == tmp_path / "hpclaunch-logs"
        assert [output(job, rank) for rank in (0, 1)] == ["here 0 1 a blue\n", "here 1 1 a blue\n"]
        seen = job.snapshot()
        assert (seen.name, seen.pid, seen.logs) == (job.name, job.pid, str(job.logs))
        assert (seen.job.ranks, seen.job.stage.value, seen.old) == (2, "running", None)
        with pytest.raises(TimeoutError, match=r"runs for more than 0\.1 s"):
            job.wait(0.1)
        assert "running" in repr(job)
        (tmp_path / "over").touch()
        result = job.wait(LIMIT)
        assert (result.code, result.reason) == (0, "all workers ended with 0")
        assert result.report.launches == (job.name,)
        assert result.report.rounds == 1
    assert not job.running
    assert (job.snapshot().job.code, job.wait()) == (0, result)
    for request in (job.restart, job.notice):
        with pytest.raises(hpclaunch.UsageError, match="it has ended"):
            request()
    job.stop()  # that is all the same


def test_a_job_that_fails(script, tmp_path):
    for name in ("over", "bad"):
        (tmp_path / name).touch()
    with hpclaunch.launch("stepping.py", max_restarts=0, log_dir=tmp_path / "logs") as job:
        result = job.wait(LIMIT)
    assert result.code == 1
    assert "exited with code 1" in result.reason
    assert result.report.cause == "exception"
    (end,) = result.report.ends
    assert end.text == "ValueError: a bad batch"
    assert job.logs == tmp_path / "logs"


def test_requests_of_a_part_that_does_not_lead(script, tmp_path):
    """The head of the step does what is asked of any of its tasks."""
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": (host := socket.gethostname()),
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": host,
        "HPCLAUNCH_SECRET_FILE": str(tmp_path / "secret"),
    }
    with contextlib.ExitStack() as jobs:
        head, member = (
            jobs.enter_context(
                hpclaunch.launch(
                    script,
                    cold=True,
                    loss_timeout=LIMIT,
                    log_dir=tmp_path / f"logs-{task}",
                    env=step | {"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)},
                )
            )
            for task in (0, 1)
        )
        output(member, rank=1)
        member.restart()
        output(head, number=1)
        (past,) = until(lambda: head.snapshot().job.past)  # a snapshot may be a moment old
        assert past.why == "the user has asked for a restart"
        (tmp_path / "over").touch()
        assert [job.wait(LIMIT).code for job in (head, member)] == [0, 0]


def test_requests_on_another_machine_than_that_of_the_head(script, tmp_path):
    """Without Slurm, only the first machine can be asked."""
    machines = {"nnodes": 2, "master_addr": "127.0.0.1", "master_port": free_port(), "cold": True}
    machines |= {"loss_timeout": LIMIT}
    env = {"HPCLAUNCH_SECRET_FILE": str(tmp_path / "secret")}
    with contextlib.ExitStack() as jobs:
        first, second = (
            jobs.enter_context(hpclaunch.launch(script, node_rank=i, nproc=1, env=env, **machines))
            for i in (0, 1)
        )
        output(second, rank=1)
        with pytest.raises(hpclaunch.UsageError, match=r"it is led from 127\.0\.0\.1: no launch"):
            second.restart()
        (tmp_path / "over").touch()
        assert [job.wait(LIMIT).code for job in (first, second)] == [0, 0]


@pytest.mark.parametrize("line", [b"", b'{"name": "loc'])
def test_a_launcher_that_is_killed_before_it_is_up(script, monkeypatch, line):
    program = f"import os, sys; os.write(int(sys.argv[3]), {line!r}); os.kill(os.getpid(), 9)"
    monkeypatch.setattr("hpclaunch.launching.PROGRAM", program)
    with pytest.raises(hpclaunch.UsageError, match="was killed by SIGKILL before the job began"):
        hpclaunch.launch(script)


def test_a_launcher_that_does_not_answer(script, monkeypatch):
    monkeypatch.setattr("hpclaunch.launching.PATIENCE", 0.0)
    with hpclaunch.launch(script, cold=True) as job:
        output(job)
        os.kill(job.pid, signal.SIGSTOP)
        try:
            with pytest.raises(hpclaunch.UsageError, match="it does not answer"):
                job.snapshot()
        finally:
            os.kill(job.pid, signal.SIGCONT)


def test_what_may_be_asked(script, tmp_path):
    with hpclaunch.launch(script, log_dir=tmp_path / "logs", cold=True) as job:
        output(job)
        job.notice()
        until((tmp_path / "noticed").exists)
        job.restart()
        output(job, number=1)
        assert job.snapshot().job.restarts == 0
        job.stop()
        assert job.wait(LIMIT).code == 143
    with hpclaunch.launch(script, notice=False) as job:
        output(job)
        with pytest.raises(hpclaunch.UsageError, match=r"no notice \(--notice off\)"):
            job.notice()


def test_nothing_is_left_of_a_block_that_raises(script):
    def block():
        with hpclaunch.launch(script, nproc=2) as job:
            output(job, 1)
            jobs.append((job, family(job)))
            raise LookupError

    jobs = []
    with pytest.raises(LookupError):
        block()
    ((job, left),) = jobs
    assert len(left) > 3
    assert not job.running
    until(lambda: living(left) == [])
    assert job.wait().code == 143


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()", "os._exit(0)"])
def test_nothing_is_left_of_a_caller_that_ends(script, end):
    """However it ends, and without a `with`."""
    program = f"""
        import os, sys, hpclaunch
        job = hpclaunch.launch("stepping.py", nproc=2, grace=1)
        print(job.pid, job.logs, flush=True)
        sys.stdin.readline()
        {end}
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as caller:
        pid, logs = caller.stdout.readline().rstrip().split(maxsplit=1)
        launcher = psutil.Process(int(pid))
        until(lambda: Path(logs, "round-0", "rank-1.out").exists())
        left = [launcher.pid, *(p.pid for p in launcher.children(recursive=True))]
        caller.communicate("\n")
    until(lambda: living(left) == [])


def test_a_forked_process_leaves_the_job_alone(script, tmp_path):
    """Leaving the block in the child does not end the job of its parent."""
    program = """
        import os, sys, hpclaunch
        with hpclaunch.launch("stepping.py") as job:
            child = os.fork()
            if child == 0:
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), job.running)
            open("over", "w").close()
            print(job.wait().code)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env=environment(),
        timeout=LIMIT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-2:] == ["7 True", "0"], done.stderr


def test_an_interrupt_ends_it_in_order(tmp_path):
    """Ctrl-C interrupts a caller that waits: the workers still get the time that they need."""
    saving = """
        import signal, sys, time
        def save(*_):
            time.sleep(0.5)
            open("saved", "w").close()
            sys.exit()
        signal.signal(signal.SIGTERM, save)
        open("here", "w").close()
        time.sleep(600)
    """
    program = """
        import hpclaunch
        with hpclaunch.launch("saving.py") as job:
            print(job.pid, flush=True)
            job.wait()
    """
    (tmp_path / "saving.py").write_text(textwrap.dedent(saving))
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
        start_new_session=True,
    ) as caller:
        launcher = int(caller.stdout.readline())
        until((tmp_path / "here").exists)
        os.killpg(caller.pid, signal.SIGINT)
        _, said = caller.communicate(timeout=LIMIT)
    assert "KeyboardInterrupt" in said
    assert (tmp_path / "saved").exists()
    assert living([launcher]) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_restart": 1}, r"no option --max-restart: did you mean --max-restarts\?"),
        ({"max_restarts": "many"}, "--max-restarts: 'many' is not a whole number"),
        ({"max_restarts": True}, "--max-restarts: 'on' is not a whole number"),
        ({"cold": 3}, "cold is True or False, not 3"),
        ({"verify": False}, None),
        ({"help": True}, "no option --help"),
        ({"print_completion": "bash"}, "no option --print-completion"),
        ({"requeue": True}, "--requeue needs --checkpoint-dir"),
        ({"stage": True}, "--stage needs --checkpoint-dir"),
        ({"stage": "nowhere", "checkpoint_dir": "x"}, "--stage=nowhere: there is no such dir"),
        ({"log_dir": "stepping.py"}, "cannot write to the log directory"),
        ({"cwd": "nowhere"}, "cwd nowhere is not a directory"),
        ({"env": {"THREADS": 4}}, "env: variables are strings, and not 'THREADS': 4"),
        ({"env": {"UNSET": None}}, "env: variables are strings, and not 'UNSET': None"),
    ],
)
def test_options_that_are_wrong(script, options, why):
    if why is None:
        (script.parent / "over").touch()
        options |= {"checkpoint_dir": script.parent}
        with hpclaunch.launch(script, **options, r=3, preload=["none", "json"]) as job:
            assert job.wait(LIMIT).code == 0
        return
    with pytest.raises(hpclaunch.UsageError, match=why):
        hpclaunch.launch(script, **options)
    assert not (script.parent / "hpclaunch-logs").exists()


def test_a_script_that_is_not_there(script, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(hpclaunch.UsageError, match=f"no script stepping.py in {elsewhere}"):
        hpclaunch.launch("stepping.py", cwd=elsewhere)
    (tmp_path / "over").touch()
    with hpclaunch.launch("stepping", module=True, cwd=str(tmp_path)) as job:
        assert job.wait(LIMIT).code == 0


def test_two_at_once_from_threads_that_end_before(script, tmp_path):
    """The kernel ends a process with the thread that has started it."""
    jobs = []
    threads = [
        threading.Thread(target=lambda: jobs.append(hpclaunch.launch(script))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    one, other = jobs
    with one, other:
        output(one)
        output(other)
        assert one.logs != other.logs
        assert {job.snapshot().pid for job in jobs} == {one.pid, other.pid}
        one.stop()
        assert one.wait(LIMIT).code == 143
        assert other.running
        (tmp_path / "over").touch()
        assert other.wait(LIMIT).code == 0


def test_beside_a_loop_of_asyncio(script, tmp_path):
    async def main():
        with hpclaunch.launch(script) as job:
            waiting = asyncio.create_task(asyncio.to_thread(job.wait, LIMIT))
            await asyncio.to_thread(output, job)
            (tmp_path / "over").touch()
            return await waiting

    assert asyncio.run(main()).code == 0


def test_a_launcher_that_is_killed(script):
    with hpclaunch.launch(script) as job:
        output(job)
        left = family(job)
        os.kill(job.pid, signal.SIGKILL)
        result = job.wait(LIMIT)
    assert (result.code, result.reason) == (137, "the launcher was killed")
    until(lambda: living(left) == [])


@pytest.mark.usefixtures("light_torch")
def test_a_caller_that_ignores_the_ends_of_its_children(tmp_path, monkeypatch):
    """The exit code is known all the same, from the report."""
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with hpclaunch.launch(sys.exit, 3, max_restarts=0) as job:
            assert job.wait(LIMIT).code == 3
        with hpclaunch.launch(sys.exit, 0) as job:
            assert job.wait(LIMIT).code == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_within_a_worker(script, tmp_path):
    """A call within a worker does what the command would do there."""
    (tmp_path / "over").touch()
    outer = tmp_path / "outer.py"
    outer.write_text(
        "import hpclaunch\n"
        'with hpclaunch.launch("stepping.py", "inner", nproc=2) as job:\n'
        "    print(job.wait().code, sorted(p.name for p in job.logs.glob('round-0/*.out')))\n"
    )
    with hpclaunch.launch(outer) as job:
        assert job.wait(LIMIT).code == 0
        assert output(job).endswith("0 ['rank-0.out', 'rank-1.out']\n")


# Functions


def test_a_function_of_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with hpclaunch.launch(shout, "a", nproc=2) as job:
        assert job.wait(LIMIT).code == 0
        assert [output(job, rank) for rank in (0, 1)] == ["A 0 []\n", "A 1 []\n"]
        assert job.snapshot().program.endswith("/shout.py")
    with hpclaunch.launch(functools.partial(shout, times=2), "b") as job:
        assert job.wait(LIMIT).code == 0
        assert output(job) == "BB 0 []\n"


def test_nobody_else_can_read_what_is_passed(tmp_path):
    with hpclaunch.launch(modes, tmp_path / "modes", log_dir=tmp_path / "logs") as job:
        assert job.wait(LIMIT).code == 0
    directory, *found = (tmp_path / "modes").read_text().splitlines()
    assert found == ["0o600", "0o700"]
    assert not Path(directory).exists()


def test_nobody_else_can_replace_what_is_passed(monkeypatch):
    """Whoever may rename the directory of the function could have the workers run anything."""
    with tempfile.TemporaryDirectory(dir=SHORT) as shared:
        monkeypatch.setattr(tempfile, "tempdir", shared)
        Path(shared).chmod(0o777)
        why = f"cannot launch a function: {shared}: others can rename its contents: set TMPDIR"
        with pytest.raises(hpclaunch.UsageError, match=why):
            hpclaunch.launch(shout, "a")
        assert os.listdir(shared) == []


def test_what_is_passed_does_not_outlive_a_caller_that_is_killed(tmp_path):
    program = """
        import os, time, hpclaunch
        job = hpclaunch.launch(lambda: time.sleep(600), log_dir="logs", grace=1)
        os.kill(os.getpid(), 9)
    """
    (tmp_path / "own").mkdir()
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environ = environment() | {"TMPDIR": str(tmp_path / "own")}
    subprocess.run(command, cwd=tmp_path, env=environ, timeout=LIMIT, check=False)
    until(lambda: not list((tmp_path / "own").glob("hpclaunch-*")))


def test_arguments_of_a_function_are_no_options():
    with pytest.raises(hpclaunch.UsageError, match=r"no option --times .*use functools\.partial"):
        hpclaunch.launch(shout, "b", times=2)


def test_a_function_of_the_main_program(tmp_path, monkeypatch):
    """The names that it uses are there, also in other processes of the worker."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "main.py"
    program.write_text("""\
import multiprocessing, hpclaunch

FACTOR, args, function, load = 3, 4, 5, 6

def tripled(number):
    return Number(number * FACTOR)

class Number(int):
    pass

def train():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (number,) = pool.map(tripled, [2])
    print(type(number).__name__, number, __name__, args, function, load)

if __name__ == "__main__":
    with hpclaunch.launch(train) as job:
        print(job.wait().code)
""")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, env=environment(), timeout=LIMIT
    )
    assert done.stdout.splitlines() == ["Number 6 __main__ 4 5 6", "0"], done.stderr


def test_what_cannot_be_passed():
    lock = threading.Lock()
    with pytest.raises(hpclaunch.UsageError, match="cannot be passed to workers: cannot pickle"):
        hpclaunch.launch(shout, lock)
    with pytest.raises(hpclaunch.UsageError, match="cannot start the launcher: embedded null byte"):
        hpclaunch.launch("train.py", "a\0b")


CELLS = (
    "import os, hpclaunch",
    "def train(word):\n    import torch\n    print(word, int(torch.tensor([1])[0]) + rank())",
    "def rank():\n    return int(os.environ['RANK'])",
    "with hpclaunch.launch(train, 'cell', nproc=2) as job:\n    result = job.wait()",
    "result.code, job.pid",
)


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    from jupyter_client.manager import KernelManager

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    with tempfile.TemporaryDirectory(dir=SHORT) as sockets:
        yield KernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/k")


@pytest.mark.usefixtures("light_torch")
def test_in_a_notebook(tmp_path, kernels):
    """The cells run in a kernel as Jupyter has it; what workers write is in the cell."""
    env = environment()
    kernels.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    env.pop("PYTEST_CURRENT_TEST")  # at which a kernel shows nothing of what programs write
    kernels.start_kernel(env=env, cwd=str(tmp_path))
    client = kernels.client()
    client.start_channels()
    said, results = [], []

    def hear(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            said.append(content["text"])
        elif message["msg_type"] == "execute_result":
            results.append(content["data"]["text/plain"])

    try:
        client.wait_for_ready(timeout=LIMIT)
        for cell in CELLS:
            reply = client.execute_interactive(cell, timeout=LIMIT, output_hook=hear)
            assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        client.stop_channels()
        kernels.shutdown_kernel()
        kernels.cleanup_resources()
    (result,) = results
    assert result.startswith("(0, ")
    assert sorted(line for line in "".join(said).splitlines() if "cell" in line) == [
        "cell 1",
        "cell 2",
    ]


# What it costs who does not use it


def test_importing_it_imports_nothing_else():
    program = "import sys; before = {*sys.modules}; import hpclaunch; print(*{*sys.modules}-before)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["hpclaunch"]
    program = "import sys, hpclaunch; hpclaunch.launch; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_names_that_it_has_and_has_not():
    with pytest.raises(AttributeError, match="no attribute 'lunch'"):
        hpclaunch.lunch  # noqa: B018
    assert set(hpclaunch.__all__) <= set(dir(hpclaunch))
    assert all(hasattr(hpclaunch, name) for name in hpclaunch.__all__)


def test_its_types_are_known(tmp_path):
    """A type checker knows them in a user's program."""
    program = tmp_path / "uses.py"
    program.write_text(
        "import hpclaunch\n"
        'with hpclaunch.launch("train.py", 1, nproc=2, cold=True, preload=["a"]) as job:\n'
        "    code: int = job.wait(1.5).code\n"
        "    stage = job.snapshot().job\n"
        "    wrong: str = job.pid\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", program.name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment())
    (error, _) = done.stdout.splitlines()
    assert error.startswith("uses.py:5: error: Incompatible types in assignment"), done.stdout
