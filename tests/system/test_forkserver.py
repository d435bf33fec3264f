"""The fork server with real processes: its workers and events, and that nothing stays."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from serving import LIMIT, Client, eventually, gone, python, sh, wait_for

from clocks import FAR, SPEED, fast, set_fast
from falling_asleep import until_asleep
from helper_programs import program_after
from hpclaunch.system.shared import helper
from hpclaunch.worker.fork_server_messages import (
    Give,
    Keep,
    Kill,
    Offer,
    Query,
    Signal,
    SignalLeft,
    Stop,
)
from hpclaunch.worker.messages import Message

pytestmark = pytest.mark.starts


@pytest.fixture
def client(tmp_path):
    client = Client(tmp_path)
    yield client
    client.server.close()


@pytest.mark.parametrize(
    ("script", "code", "signum"),
    [
        ("exit 0", 0, 0),
        ("exit 3", 3, 0),
        ("exit 137", 137, 0),
        ("kill -KILL $$", 137, 9),
        ("kill -SEGV $$", 139, 11),
    ],
)
def test_how_a_worker_ended(client, script, code, signum):
    client.start(sh(script))
    exited = client.until("exit")
    assert (exited["rank"], exited["code"], exited["signal"]) == (0, code, signum)
    client.until("gone")


def test_a_query_that_comes_before_its_round_is_answered_in_it(client):
    client.server.send(Query("vitals", 1))
    client.server.send(Query("vitals", 2))
    client.server.send(Query("history", 0))  # replaces none of the head's
    client.start(sh("sleep 600"))
    answers = [client.until("answer") for _ in range(2)]
    assert [(each["kind"], each["number"]) for each in answers] == [("vitals", 2), ("history", 0)]
    for answer in answers:
        assert [each["rank"] for each in answer["body"]["ranks"]] == [0]
    client.end_round()
    assert not [each for each in client.events if each["event"] == "answer"]


@pytest.mark.parametrize("kind", ["out", "err"])
def test_no_worker_writes_through_a_link(client, kind):
    client.path(0, kind).symlink_to("victim")
    client.start(sh("echo ran"))
    assert client.until("exit")["code"] == 126
    assert not (client.tmp_path / "victim").exists()


@pytest.mark.parametrize(
    ("argv", "code"), [(["/no/such/program"], 127), (["/etc/passwd"], 126), (["/"], 126)]
)
def test_a_program_that_cannot_be_started(client, argv, code):
    client.start(argv)
    assert client.until("exit")["code"] == code
    assert f"cannot start {argv[0]}" in client.path(0).read_text()


def test_environment_and_output(client):
    client.start(sh("echo $RANK $COMMON; echo oops >&2"), sh("echo $RANK"), env={"COMMON": "all"})
    client.until("gone")
    assert client.path(0, "out").read_text() == "0 all\n"
    assert client.path(0).read_text() == "oops\n"
    assert client.path(1, "out").read_text() == "1\n"
    assert client.path(1, "out").stat().st_mode & 0o777 == 0o600


COUNT = 'while :; do echo . >> "$DIR/{}"; sleep 0.02; done'


def counting(client):
    """Start a worker and a child in another session, which both count; return their files."""
    worker, child = (COUNT.format(name) for name in ("worker", "child"))
    client.start(
        sh(f"setsid sh -c '{child}' & trap '' TERM; {worker}"), env={"DIR": str(client.tmp_path)}
    )
    files = [client.tmp_path / name for name in ("worker", "child")]
    eventually(lambda: all(file.exists() for file in files))
    return files


def workers(client):
    """Return the workers of a round without warm ones: all children but the template."""
    return [child for child in client.others() if child.cmdline()[:1] == ["sh"]]


def sizes(files):
    return [file.stat().st_size for file in files]


def have_stopped(files):
    before = sizes(files)
    time.sleep(0.3)
    return sizes(files) == before


def wait_until_they_grow(files):
    before = sizes(files)
    eventually(lambda: all(now > then for now, then in zip(sizes(files), before, strict=True)))


def held(client):
    files = counting(client)
    client.server.send(Keep(time.monotonic() + 0.1))
    client.until("lease-over")
    eventually(lambda: have_stopped(files))
    return files


def test_at_the_end_of_a_lease_the_workers_are_held_until_there_is_another(client):
    """The agent need not be alive for this."""
    files = held(client)
    client.server.send(Keep(time.monotonic() - 1.0))  # an order that was long on its way
    assert have_stopped(files)
    client.server.send(Keep(time.monotonic() + 1000))
    wait_until_they_grow(files)
    client.server.send(Keep(time.monotonic() + 0.1))
    client.until("lease-over")
    eventually(lambda: have_stopped(files))
    client.server.send(Keep(time.monotonic() + 1000))
    wait_until_they_grow(files)
    client.end_round()


def test_workers_that_somebody_else_resumes_are_held_again(client):
    """`scontrol resume` does so: it continues all processes of a job."""
    files = held(client)
    (worker,) = workers(client)
    for process in (worker, *worker.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # the worker was quicker to end it
            process.send_signal(signal.SIGCONT)
    eventually(lambda: have_stopped(files))
    client.end_round()


def test_workers_that_are_to_stop_while_they_are_held_are_killed(client):
    """Other nodes may have continued without this one."""
    held(client)
    client.server.send(Stop(signal.SIGTERM))
    assert client.until("exit")["signal"] == signal.SIGKILL
    client.until("gone")
    client.server.send(Keep(time.monotonic() + 1000))
    client.start(sh("exit 0"))
    assert client.until("exit")["code"] == 0


def test_workers_that_are_being_stopped_are_killed_when_their_lease_is_over(client):
    counting(client)
    client.server.send(Keep(time.monotonic() + 1.0))
    client.server.send(Stop(signal.SIGTERM))
    client.until("lease-over")
    assert client.until("exit")["signal"] == signal.SIGKILL
    client.until("gone")


def test_workers_that_are_held_do_not_outlive_the_agent(client):
    held(client)
    (worker,) = workers(client)
    processes = [worker, *worker.children(recursive=True)]
    client.server.close()
    assert all(gone(process.pid) for process in processes)


def test_nothing_starts_without_a_lease(client):
    """The order may come late, from an agent that was suspended."""
    client.server.send(Keep(time.monotonic() - 1.0))
    client.ask(sh("exit 0"))
    client.until("lease-over")
    assert not client.path(0).exists()
    client.server.send(Keep(time.monotonic() + 1000))
    assert client.until("exit")["code"] == 0
    client.until("gone")
    client.server.send(Keep(time.monotonic() - 1.0))
    client.ask(sh("exit 0"))
    client.until("lease-over")
    client.server.send(Stop(signal.SIGTERM))  # it was not started, and is not to be
    client.until("gone")


# As a user of its own, whose processes the kernel counts. The fork server may not start any.
NOT_GRANTED = """
import os, resource, sys
from pathlib import Path
sys.path += {paths}
from serving import Client, sh
from hpclaunch.worker.fork_server_messages import Prepare
client = Client(Path("."))
if {warm}:
    argv = [sys.executable, "x.py"]
    client.server.send(Prepare(argv, dict(os.environ), ["torch"], own=[], now=True, steps=[]))
    client.until("template")
for pid in (client.pid, *(child.pid for child in client.others())):
    resource.prlimit(pid, resource.RLIMIT_NPROC, (1, 1))
client.ask([sys.executable, "x.py"], warm={warm})
why, code = client.until("cannot-start")["why"], client.until("exit")["code"]
print(why, code, client.until("gone")["event"])
client.server.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user of its own")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_process_that_the_kernel_does_not_grant(tmp_path, warm):
    tmp_path.chmod(0o777)
    program = NOT_GRANTED.format(paths=[p for p in sys.path if p], warm=warm)
    reading = "+dac_read_search"  # Python may lie where only root can look
    command = ["setpriv", "--reuid=54321", f"--inh-caps={reading}", f"--ambient-caps={reading}"]
    command += [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    said = "Resource temporarily unavailable 126 gone\n"
    assert (done.stdout, done.returncode) == (said, 0), done.stderr


def test_a_lease_that_is_renewed(tmp_path, monkeypatch):
    """The one before ends while the workers run, and they run on."""
    late = tmp_path / "late"
    monkeypatch.setattr(helper, "_PROGRAM", program_after(set_fast(late, "worker.worker_lease")))
    client = Client(tmp_path)
    with contextlib.closing(client.server):
        for _ in range(3):
            client.server.send(Keep(time.monotonic() + FAR))
        client.server.send(Keep(time.monotonic() + 1000 * FAR))
        client.start(sh("sleep 600"))
        with fast(late):
            time.sleep(2 * FAR / SPEED)
            client.server.send(Query("vitals", 1))
            client.until("answer")
        assert client.events == []


def test_output_is_appended_never_overwritten(client):
    client.path(0, "out").write_text("of an earlier run\n")
    client.start(sh("echo more"))
    client.until("gone")
    assert client.path(0, "out").read_text() == "of an earlier run\nmore\n"


def test_a_worker_is_like_a_fresh_process(client, tmp_path):
    """Signals, masks and descriptors are those that a shell gives to a program."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import os, re\n"
        "status = open('/proc/self/status').read()\n"
        "descriptors = sorted(os.listdir('/proc/self/fd'))\n"
        "print(re.findall(r'Sig(?:Blk|Ign):.*', status), descriptors)\n"
    )
    expected = subprocess.run(
        ["sh", "-c", 'exec "$@" < /dev/null', "sh", sys.executable, probe],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    client.start([sys.executable, str(probe)])
    client.until("gone")
    assert client.path(0, "out").read_text() == expected.stdout


ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@pytest.mark.parametrize("signum", ENDING)
def test_a_stop_has_the_signal_that_was_asked_for(client, signum):
    name = signum.name.removeprefix("SIG")
    client.start(sh(f"trap 'exit 5' {name}; echo up; while :; do sleep 0.05; done"))
    wait_for(client.path(0, "out"))
    client.server.send(Stop(signum))
    assert client.until("exit")["code"] == 5
    client.until("gone")


COUNTING = """
import signal, time
count = 0
def stop(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, stop)
print("up")
while not count:
    time.sleep(0.05)
time.sleep(0.5)
raise SystemExit(count)
"""


@pytest.mark.parametrize("to", ["all", "the launcher", "the launcher, which has helpers"])
def test_nobody_gets_a_signal_twice_that_was_sent_to_all(client, to):
    """By whoever has started the launcher, as Slurm has. Others signal whom they know of."""
    client.start(python(COUNTING), python(COUNTING))
    for rank in (0, 1):
        wait_for(client.path(rank, "out"))
    if to == "all":
        for process in psutil.Process(client.pid).children():
            process.send_signal(signal.SIGINT)
        os.kill(client.pid, signal.SIGINT)
    elif to == "the launcher, which has helpers":
        subprocess.run(["kill", "-INT", str(client.pid)], check=True)
    client.server.send(Stop(signal.SIGINT))
    assert [client.until("exit")["code"] for _ in range(2)] == [1, 1]
    client.until("gone")


def test_where_the_user_has_a_signal_ignored_a_stop_is_sigterm(tmp_path):
    """The signal was sent to the launcher of another machine."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        client = Client(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    client.start(sh("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"))
    wait_for(client.path(0, "out"))
    client.server.send(Stop(signal.SIGINT))
    assert client.until("exit")["code"] == 5
    client.until("gone")
    client.server.close()


def test_a_worker_that_ignores_a_stop_is_killed(client):
    client.start(sh("trap '' TERM; echo up; while :; do sleep 0.05; done"))
    wait_for(client.path(0, "out"))
    client.server.send(Stop(signal.SIGTERM))
    client.server.send(Kill())
    assert client.until("exit")["signal"] == signal.SIGKILL
    client.until("gone")


# A worker that saves what a child of its own computes, as one with a DataLoader may.
LOADING = r"""
import os, signal, sys, time

def save(*_):
    ask.write("go on\n")
    ask.flush()
    sys.exit(5 if answer.readline() == "go on\n" else 6)

there, ask = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), "rw"))
answer, back = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), "rw"))
if PREPARE: signal.signal(signal.SIGTERM, lambda *_: None)
child = os.fork()
if not child:
    ask.close()
    for line in there:
        back.write(line)
        back.flush()
    time.sleep(600)
back.close()
signal.signal(signal.SIGTERM, save)
print("up", child)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("has_handler", [False, True], ids=["plain", "with its handler"])
def test_a_worker_can_save_with_its_children_before_they_are_ended(client, has_handler):
    """This holds even if forked children inherit a handler of the worker that ends nothing."""
    client.start(python(LOADING.replace("PREPARE", str(has_handler))))
    child = int(wait_for(client.path(0, "out")).split()[1])
    client.server.send(Stop(signal.SIGTERM))
    assert client.until("exit")["code"] == 5
    client.until("gone")
    assert gone(child)


SAVING = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    sys.exit(print("saved"))
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
print("up")
while True:
    time.sleep(0.05)
"""
WRAPPERS = {
    "does nothing else": "$SAVE; exit $?",
    "has a trap for later": "trap 'echo trapped' TERM INT; $SAVE; exit $?",
    "passes it on": "trap 'kill $!' TERM INT; $SAVE & wait; wait; exit $?",
    "is wrapped itself": "bash -c '$SAVE; exit $?'; exit $?",
    "has a pipe": "$SAVE | (trap '' TERM INT; exec cat); exit $?",
}


def until_shells_wait(client):
    """Wait until each shell waits for its program, which may have begun before."""
    for process in psutil.Process(client.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # shells start others, which end soon
            if process.name() in ("sh", "bash"):
                until_asleep(process.pid)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_program_that_a_shell_waits_for_can_save(client, wrapper, signum):
    """The shell may end at once by the signal, or after its program."""
    (client.tmp_path / "saving.py").write_text(SAVING)
    env = {"SAVE": f"{sys.executable} -u -m saving", "PYTHONPATH": str(client.tmp_path)}
    client.start(["bash", "-c", WRAPPERS[wrapper]], env=env)
    wait_for(client.path(0, "out"))
    until_shells_wait(client)
    client.server.send(Stop(signum))
    client.until("gone")
    assert not [reply for reply in client.events if reply["event"] == "left"]
    assert "up\nsaved\n" in client.path(0, "out").read_text()


def test_what_the_workers_leave_behind_is_reported_and_can_be_ended(client):
    client.start(
        sh("setsid sleep 600 & sleep 700 & echo $!; exit 0"),
        sh("(setsid sh -c 'echo; sleep 601 & sleep 602' &) ; exit 0"),
    )
    in_group = int(wait_for(client.path(0, "out")))
    wait_for(client.path(1, "out"))  # else it may still be in the group of its worker
    found, pids = [], set()
    while found != [("sh", 1), ("sleep", 0), ("sleep", 0)]:
        left = client.until("left")["processes"]
        found = sorted((process["program"], process["rank"]) for process in left)
        pids = {process["pid"] for process in left}
    client.server.send(Stop(signal.SIGTERM))  # which is for the workers, and their groups
    others = pids - {in_group}
    while pids != others:
        pids = {process["pid"] for process in client.until("left")["processes"]}
    assert all(map(psutil.pid_exists, others))
    client.server.send(SignalLeft(signal.SIGTERM))
    client.until("gone")
    assert psutil.Process(client.pid).children(recursive=True) == []


def test_what_is_left_behind_may_have_any_rank_in_its_environment(client):
    there = client.tmp_path / "there"
    child = f"RANK={'9' * 5000} setsid sh -c 'echo > \"$THERE\"; exec sleep 600'"
    parent = sh(f'{child} & until [ -e "$THERE" ]; do sleep 0.01; done')
    client.start(parent, env={"THERE": str(there)})
    (process,) = client.until("left")["processes"]
    assert process["rank"] is None
    client.end_round()


CLEANING = """
import os, signal, sys
from multiprocessing.shared_memory import SharedMemory
there = SharedMemory(create=True, size=1 << 20)
print(there.name, os.getpid())
signal.pause()
"""


@pytest.mark.parametrize("how", ["stop", "kill", "crash"])
def test_shared_memory_of_workers_that_were_ended_is_removed(client, how):
    """Python's resource_tracker, which outlives its worker, removes it."""
    client.start(python(CLEANING))
    name, pid = wait_for(client.path(0, "out")).split()
    if how == "crash":
        os.kill(int(pid), signal.SIGKILL)
        client.until("exit")
    client.server.send(Stop(signal.SIGTERM))
    if how == "kill":
        client.server.send(Kill())
    client.until("gone")
    assert not os.path.exists(f"/dev/shm/{name}")


def test_a_signal_goes_only_to_those_that_handle_it(client):
    handler = "trap 'echo usr1' USR1; echo up; while :; do sleep 0.02; done"
    client.start(sh(handler), sh("echo up; exec sleep 600"))
    for rank in (0, 1):
        wait_for(client.path(rank, "out"))
    client.server.send(Signal(signal.SIGUSR1))
    assert client.until("unhandled")["ranks"] == [1]
    deadline = time.monotonic() + LIMIT
    while "usr1" not in client.path(0, "out").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not client.events, "a worker ended"
    client.server.send(Kill())
    client.until("gone")


@pytest.mark.parametrize(
    "requests",
    [[Signal(signal.SIGUSR1)], [Offer(1, 0, signal.SIGUSR1), Give(1)]],
    ids=["signal", "notice"],
)
def test_a_program_that_a_shell_waits_for_gets_a_signal_that_it_handles(client, requests):
    handler = "trap 'echo usr1; exit' USR1; echo up; while :; do sleep 0.02; done"
    client.start(["bash", "-c", f'bash -c "{handler}"; exit'])
    wait_for(client.path(0, "out"))
    until_shells_wait(client)
    for request in requests:
        client.server.send(request)
    client.until("gone")
    assert client.path(0, "out").read_text() == "up\nusr1\n"
    assert not [reply for reply in client.events if reply["event"] == "unhandled"]


def test_a_default_notice_does_not_end_a_program_that_a_worker_waits_for(client):
    """Compilers and copies handle SIGTERM, too, and would be ended by it."""
    handlers = "trap 'echo term' TERM; trap 'ends=1' ALRM; echo up; "
    client.start(
        ["bash", "-c", f'bash -c "{handlers} until [ \\$ends ]; do sleep 0.02; done"; exit']
    )
    wait_for(client.path(0, "out"))
    until_shells_wait(client)
    for request in (Offer(1, 0, 0), Give(1), Signal(signal.SIGALRM)):
        client.server.send(request)
    client.until("gone")
    assert client.path(0, "out").read_text() == "up\n"


def test_nothing_outlives_a_killed_fork_server(client):
    client.start(sh("setsid sleep 600 & echo $! $$; wait"))
    pids = [int(word) for word in wait_for(client.path(0, "out")).split()]
    os.kill(client.pid, signal.SIGKILL)
    end_of(client)
    assert all(gone(pid) for pid in pids)


def end_of(client):
    """Wait until the fork server has ended."""
    deadline = time.monotonic() + LIMIT
    while not client.server.lost:
        assert time.monotonic() < deadline
        select.select([client.server], [], [], 0.1)
        client.hear()
    while not client.server.is_gone():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Dance(Message):
    steps: int


def test_one_that_does_not_know_a_request_ends(client, monkeypatch):
    for limit in ("GONE_LIMIT", "ABANDON_LIMIT"):
        monkeypatch.setattr(helper, limit, LIMIT)
    client.server.send(Dance(3))
    end_of(client)
    assert not client.server.was_killed()


def test_nothing_outlives_a_killed_agent(tmp_path):
    """The agent is a process of its own here, and really killed."""
    agent = subprocess.Popen(
        [sys.executable, "-c",
         "import sys, time; sys.path[:0] = sys.argv[2:]; import serving as t, pathlib\n"
         "c = t.Client(pathlib.Path(sys.argv[1]))\n"
         "c.start(t.sh('trap \"\" TERM; setsid sleep 600 & echo $! $$; wait'))\n"
         "time.sleep(600)", str(tmp_path), *map(str, Path(__file__).parents[:2])]
    )  # fmt: skip
    pids = [int(word) for word in wait_for(tmp_path / "rank-0.out").split()]
    (server,) = psutil.Process(agent.pid).children()
    agent.kill()
    agent.wait()
    assert all(gone(pid) for pid in (*pids, server.pid))


def test_signals_meant_for_the_agent_leave_it_alone(client):
    terminal = (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
    for signum in (signal.SIGTERM, signal.SIGUSR1, *terminal):
        os.kill(client.pid, signum)
    client.start(sh("exit 0"))
    client.until("gone")
