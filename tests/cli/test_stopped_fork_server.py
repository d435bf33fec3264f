"""The template and the store's process continue soon if somebody stops them (SIGSTOP). Nothing is
lost, and a fork server that is stopped outlives no launcher.
"""

import os
import signal

import psutil
import pytest
from launching import LIMIT, family, living, script, start, until

from hpclaunch.system.shared.prctl import adopt_orphans
from surroundings import LIGHT_TORCH, environment

pytestmark = pytest.mark.starts

# The workers wait in the first round until a file lets them end.
TRAIN = """
import os, pathlib, time, torch.distributed as dist
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
pathlib.Path(f"up-{os.environ['RANK']}").write_text(str(os.getpid()))
while first and not os.path.exists("go"):
    time.sleep(0.05)
"""
TEMPLATE = "the template process on"
STORE = "the store process on"


# With the real torch they meet in every round.
MEETS = """
dist.init_process_group("gloo")
dist.barrier()
first ="""


def launch(cwd, *, meets=False):
    path = "" if meets else LIGHT_TORCH
    text = TRAIN.replace("\nfirst =", MEETS) if meets else TRAIN
    environ = environment(PYTHONPATH=path)
    return start("--nproc", 2, script(cwd, text), cwd=cwd, environ=environ)


def server(job):
    """Return the pid of the fork server, which is the first process that a launcher starts."""
    children = psutil.Process(job.pid).children
    return until(lambda: [p.pid for p in children() if "worker.fork_server" in str(p.cmdline())])[0]


def until_up(cwd):
    """Return the pid of a worker once both of them train."""
    files = until(lambda: len(found := list(cwd.glob("up-*"))) == 2 and found)
    return int(until(files[0].read_text))


def stop(pid):
    """Stop a process; return once it has continued."""
    process = psutil.Process(pid)
    process.suspend()
    until(lambda: process.status() == psutil.STATUS_STOPPED)
    until(lambda: process.status() != psutil.STATUS_STOPPED)


def of_torch(server):
    """Return the pids of the template and, in a round, of the store, in this order."""
    children = psutil.Process(server).children
    return until(lambda: [p.pid for p in children() if p.name() == "hpclaunch-torch"])


def ended_well(job, *lines):
    """Let a job end; assert that it names these processes, and that no round was lost."""
    _, err = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, err
    said = [line for line in err.splitlines() if "was stopped by a signal, and continues" in line]
    assert len(said) == len(lines), err
    assert all(part in line for part, line in zip(lines, said, strict=True)), err
    assert "restart" not in err


@pytest.mark.torch
def test_while_workers_train(tmp_path):
    job = launch(tmp_path, meets=True)
    until_up(tmp_path)
    _, store = of_torch(server(job))
    stop(store)
    (tmp_path / "go").touch()
    ended_well(job, STORE)


def test_nothing_outlives_a_killed_launcher(tmp_path):
    """The adopter of the fork server may have the same session, as process 1 of a container may.

    Otherwise the kernel continues a stopped process whose process group is orphaned.
    """
    adopt_orphans()
    job = launch(tmp_path)
    until_up(tmp_path)
    everybody = family(job)
    os.kill(server(job), signal.SIGSTOP)
    job.kill()
    job.communicate(timeout=LIMIT)
    until(lambda: not living(everybody))


@pytest.mark.torch
def test_the_template_while_it_imports_torch(tmp_path):
    (tmp_path / "go").touch()
    job = launch(tmp_path, meets=True)
    stop(of_torch(server(job))[0])
    ended_well(job, TEMPLATE)


def test_the_template_while_it_is_to_start_workers(tmp_path):
    job = launch(tmp_path)
    worker = until_up(tmp_path)
    template = of_torch(server(job))[0]
    os.kill(template, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    _, err = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, err
    assert TEMPLATE in err
    assert "restart 1 of 3" in err
