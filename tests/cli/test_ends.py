"""The end of a launch on one machine, by signals and kills, and its cleanup of processes that are
left. All processes are real."""

import os
import resource
import signal

import psutil
import pytest
from launching import (
    LIMIT,
    end,
    family,
    fork_server,
    hpclaunch,
    outputs,
    outputs_if_any,
    said,
    script,
    start,
    until,
)

from hpclaunch.core.protocol.model import END_SIGNALS
from lines import only
from living import living
from surroundings import LIGHT_TORCH, environment

pytestmark = pytest.mark.starts

WAIT = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *a: print("got USR1"))
def stop(signum, _):
    print("got", signal.Signals(signum).name)
    sys.exit(0)
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(s, stop)
print("up", os.getpid())
for _ in range(6000):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("signum", END_SIGNALS)
def test_a_signal_ends_the_job_in_order(tmp_path, signum):
    """The workers get the same signal."""
    job = start("--nproc", 2, script(tmp_path, WAIT), cwd=tmp_path)
    until(lambda: sum(1 for text in outputs_if_any(tmp_path).values() if "up" in text) == 2)
    pids = family(job)
    code, out, err = end(job, signum)
    assert code == 128 + signum
    assert out.count(f"got {signum.name}\n") == 2
    assert f"ended by {signum.name}" in err
    assert until(lambda: not living(pids))


SAVES_ON_INTERRUPT = """
import os, time
{imports}
try:
    open(f"up-{{os.environ['RANK']}}", "w").close()
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    time.sleep(0.5)
    print("saved")
"""


@pytest.mark.parametrize("imports", ["", "import torch"], ids=["cold", "warm"])
def test_an_interrupt_raises_in_the_workers(tmp_path, imports):
    body = SAVES_ON_INTERRUPT.format(imports=imports)
    env = environment(PYTHONPATH=LIGHT_TORCH)
    job = start("--nproc", 2, script(tmp_path, body), cwd=tmp_path, environ=env)
    until(lambda: len(list(tmp_path.glob("up-?"))) == 2)
    code, out, err = end(job, signal.SIGINT)
    assert (code, out) == (128 + signal.SIGINT, "saved\n" * 2)
    assert "hpclaunch: ended by SIGINT on" in err


def test_a_signal_that_the_user_wants_handled_ends_the_job_in_order(tmp_path):
    body = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGXCPU, lambda *_: sys.exit(print('saved')))\n"
        "print('ready', os.environ['TORCHELASTIC_SIGNALS_TO_HANDLE'])\n"
        "time.sleep(600)\n"
    )
    process = start(
        "--nproc=1", "--signals-to-handle=SIGTERM,SIGXCPU", script(tmp_path, body), cwd=tmp_path
    )
    assert process.stdout.readline() == "ready SIGTERM,SIGXCPU\n"
    code, out, err = end(process, signal.SIGXCPU)
    assert (code, out) == (128 + signal.SIGXCPU, "saved\n")
    assert "ended by SIGXCPU" in err


UPLOADS = """
import os, subprocess
program = "until [ -e {enough} ]; do sleep 0.05; done; touch uploaded"
if os.environ["RANK"] == "0":
    subprocess.Popen(["bash", "-c", program], start_new_session={session})
"""


@pytest.mark.parametrize("session", [False, True])
def test_an_upload_in_the_background_is_waited_for(tmp_path, session):
    path = script(tmp_path, UPLOADS.format(enough="enough", session=session))
    job = start("--nproc", 2, path, cwd=tmp_path)
    waiting = "waiting up to 20 s (--grace) for what the workers left behind: bash (rank 0, pid "
    assert said(job, waiting)
    (tmp_path / "enough").touch()
    _, err = job.communicate(timeout=LIMIT)
    assert (job.returncode, err) == (0, "")
    assert (tmp_path / "uploaded").exists()


def test_an_upload_that_takes_too_long_is_ended_and_named(tmp_path):
    path = script(tmp_path, UPLOADS.format(enough="never", session=True))
    no_other_line = {"leftovers_notice": 60.0, "leftovers": 60.0}  # on a busy machine
    done = hpclaunch("--nproc", 2, "--grace", 1, path, cwd=tmp_path, timing=no_other_line)
    assert done.returncode == 0
    line = only(done.stderr)
    ending = "ending what the workers left behind, after 1 s (--grace): bash (rank 0, pid "
    assert ending in line


def test_usr1_is_passed_on_and_the_workers_run_on(tmp_path):
    job = start("--nproc", 2, script(tmp_path, WAIT), cwd=tmp_path)
    until(lambda: sum(1 for text in outputs_if_any(tmp_path).values() if "up" in text) == 2)
    job.send_signal(signal.SIGUSR1)
    until(lambda: sum(1 for text in outputs(tmp_path).values() if "got USR1" in text) == 2)
    assert job.poll() is None
    job.send_signal(signal.SIGUSR2)  # for which WAIT has no handler
    assert said(job, "SIGUSR2 not passed on to ranks 0, 1: the script has no handler for it")
    assert end(job)[0] == 128 + signal.SIGTERM


def test_a_worker_that_ignores_sigterm_gets_sigkill(tmp_path):
    body = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(600)"
    job = start("--nproc", 1, "--grace", 0.3, script(tmp_path, body), cwd=tmp_path)
    until(lambda: "up" in "".join(outputs_if_any(tmp_path).values()))
    pids = family(job)
    assert end(job)[0] == 128 + signal.SIGTERM
    assert until(lambda: not living(pids))


IMPATIENT = {"stuck": 6.0}  # with an idle worker


def test_a_lost_round_waits_for_nobody_who_saves_nothing(tmp_path):
    """Such a worker is like one that is stuck in a collective, where its handler never runs."""
    body = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("up"):
        time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: None)
open("up", "w").close()
while True:
    time.sleep(600)
"""
    args = ("--nproc", 2, "--grace", 600, "--max-restarts", 0, script(tmp_path, body))
    assert hpclaunch(*args, cwd=tmp_path, timing=IMPATIENT).returncode == 3


def test_a_lost_round_waits_for_whoever_saves(tmp_path):
    """Through memory that is mapped, for longer than an idle worker is left alone."""
    body = """
import mmap, os, signal, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists("up"):
        time.sleep(0.01)
    sys.exit(3)
def save(*_):
    with open("saved", "wb+") as file:
        file.truncate(20 << 20)
        there = mmap.mmap(file.fileno(), 20 << 20)
        for at in range(0, 20 << 20, 1 << 20):
            there[at : at + (1 << 20)] = bytes(range(256)) * (1 << 12)
            there.flush(at, 1 << 20)
            time.sleep(0.4)
    os.mkdir("complete")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open("up", "w").close()
while True:
    time.sleep(600)
"""
    args = ("--nproc", 2, "--grace", 600, "--max-restarts", 0, script(tmp_path, body))
    assert hpclaunch(*args, cwd=tmp_path, timing=IMPATIENT).returncode == 3
    assert (tmp_path / "complete").exists()


def test_nothing_outlives_a_killed_agent(tmp_path):
    body = WAIT + "\n"
    body = body.replace('print("up"', 'os.system("setsid sleep 600 &"); print("up"')
    job = start("--nproc", 2, script(tmp_path, body), cwd=tmp_path)
    until(lambda: sum(1 for text in outputs_if_any(tmp_path).values() if "up" in text) == 2)
    pids = family(job)
    assert len(pids) >= 6  # agent, fork server, store, two workers, what they started
    job.kill()
    job.communicate(timeout=LIMIT)
    assert until(lambda: not living(pids))


@pytest.mark.usefixtures("light_torch")
@pytest.mark.parametrize("torch", ["", "import torch\n"], ids=["cold", "warm"])
def test_a_killed_fork_server_is_replaced(tmp_path, torch):
    """The workers of a killed fork server are a failed round."""
    job = start("--nproc", 2, "--max-restarts", 1, script(tmp_path, torch + WAIT), cwd=tmp_path)
    for number in (0, 1):
        until(lambda n=number: sum("up" in t for t in outputs_if_any(tmp_path, n).values()) == 2)
        pids = fork_server(job)
        os.kill(pids[0], signal.SIGKILL)
        assert until(lambda: not living(pids))  # noqa: B023
    _, err = job.communicate(timeout=LIMIT)
    assert job.returncode == 137
    assert "the fork server on" in err
    assert "restart 1 of 1" in err
    assert until(lambda: not living(pids))


LIMITED = (64, 200)  # open files: soft, hard


@pytest.mark.parametrize("torch", ["", "import torch\n"], ids=["cold", "warm"])
def test_the_launcher_needs_more_open_files_than_the_user_has_asked_for(tmp_path, torch):
    """The launcher raises its own limit; workers of this and of the next round keep the user's."""
    body = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)\n" + WAIT
    job = start(
        *("--nproc", 8, "--max-restarts", 1, script(tmp_path, torch + body)),
        cwd=tmp_path,
        environ=environment(PYTHONPATH=LIGHT_TORCH),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, LIMITED),
    )
    for number in (0, 1):
        until(lambda n=number: sum("up" in t for t in outputs_if_any(tmp_path, n).values()) == 8)
        assert {t.splitlines()[0] for t in outputs(tmp_path, number).values()} == {str(LIMITED)}
        assert psutil.Process(job.pid).rlimit(resource.RLIMIT_NOFILE) > LIMITED
        os.kill(fork_server(job)[0], signal.SIGKILL)
    job.communicate(timeout=LIMIT)


def test_fewer_open_files_than_the_launcher_needs(tmp_path):
    limit = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh"]
    path = script(tmp_path, "print('ran')")
    assert hpclaunch("--nproc", 7, path, cwd=tmp_path, before=limit).stdout == 7 * "ran\n"
    done = hpclaunch("--nproc", 8, path, cwd=tmp_path, before=limit)
    assert (done.returncode, done.stdout) == (2, "")
    line = only(done.stderr)
    assert "a launcher of 8 workers has up to 65 files open, but only 64 are allowed" in line
