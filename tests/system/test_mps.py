"""MPS with real processes: what is started and verified, and that nothing stays.

Daemons and clients are stand-ins (tests/stand_ins); everything else is real, the kills too.
"""

import contextlib
import os
import pwd
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import LIMIT, eventually, gone

import surroundings
from damaged_data import damaged
from helper_programs import program_after
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.placement.mps_shares import Group
from hpclaunch.system.gpus import foreign_mps, mps
from hpclaunch.system.gpus.mps import MpsKeeperClient, find, stale
from hpclaunch.system.shared import helper
from hpclaunch.worker import mps_daemon
from living import living
from surroundings import SHORT

pytestmark = pytest.mark.starts

STAND_INS = Path(__file__).parent.parent / "stand_ins"
CONTROL = str(STAND_INS / "nvidia-cuda-mps-control")
CLIENT = str(STAND_INS / "cuda_client.py")
REAL = os.environ.get("HPCLAUNCH_REAL_MPS_CONTROL") or shutil.which("nvidia-cuda-mps-control")
USER = os.geteuid()
ONE = Group((Gpu("1", "GPU-1"),), 2, owned=True)
TWO = Group((Gpu("2", "GPU-2"),), 2, owned=True)
OTHERS = Group((Gpu("1", "GPU-1"),), 2, owned=False)


MARK = "HPCLAUNCH_TEST"  # of what a test has started, in its environment


def of_mps():
    """Return this test's living processes of MPS: daemons, servers and front ends."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError, psutil.Error):
            if path.read_bytes().startswith(b"nvidia-cuda-mps"):  # others may be no text
                process = psutil.Process(int(path.parent.name))
                if process.environ().get(MARK) == os.environ[MARK]:  # a zombie has none
                    found.append(process)
    return found


# What is to be waited for only briefly is set by the tests.
PATIENT = (
    "mps_daemon.ANSWER_LIMIT = mps_daemon.START_LIMIT = mps_daemon.SERVER_LIMIT = "
    "mps_daemon.LISTED_LIMIT = mps_daemon.KILL_LIMIT = mps_keeper.OTHERS_LIMIT = LONG"
)


def set_limits(monkeypatch, *statements):
    """Have the keepers of this test run these statements first."""
    imports = (
        "from limits import LONG, Patience, Until; "
        "from hpclaunch.worker import mps_daemon, mps_keeper"
    )
    monkeypatch.setattr(helper, "_PROGRAM", program_after(imports, PATIENT, *statements))


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    monkeypatch.setenv(MARK, str(uuid.uuid4()))
    set_limits(monkeypatch)
    monkeypatch.setattr(mps, "CLOSE_LIMIT", LIMIT)
    yield
    deadline = time.monotonic() + LIMIT
    while left := of_mps():
        if time.monotonic() > deadline:
            described = [(process.pid, process.cmdline()) for process in left]
            for process in left:
                process.kill()
            raise AssertionError(f"left behind: {described}")
        time.sleep(0.02)


@pytest.fixture
def base(monkeypatch):
    """Make a SLURM_TMPDIR."""
    path = Path(tempfile.mkdtemp(dir=SHORT))
    monkeypatch.setenv("SLURM_TMPDIR", str(path))
    yield path
    shutil.rmtree(path)


class Agent:
    """The agent's end of a keeper, and the events from it."""

    def __init__(self, job="7.0", control=CONTROL, **more):
        self.keeper = MpsKeeperClient(job, control, first_look=0.01, **more)
        self.events = []

    @property
    def pid(self):
        return self.keeper._process.pid

    def receive(self, timeout=0.1):
        if select.select([self.keeper], [], [], timeout)[0]:
            self.events += [{"event": e.op, **e.fields()} for e in self.keeper.hear()]

    def until(self, *events):
        seen = 0
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for reply in self.events[seen:]:
                seen += 1
                if reply["event"] in events:
                    self.events.remove(reply)
                    return reply
            self.receive()
        raise AssertionError(f"no {events} within {LIMIT} s, only {self.events}")

    def prepare(self, number, *groups, foreign=""):
        """Return {key: pipe directory}."""
        self.keeper.prepare(number, groups, foreign)
        event = self.until("ready", "failed")
        assert event["event"] == "ready", event
        assert event["number"] == number
        return event["directories"]

    def fails(self, number, *groups, foreign=""):
        self.keeper.prepare(number, groups, foreign)
        return self.until("failed")["why"]

    def until_lost(self):
        deadline = time.monotonic() + LIMIT
        while not self.keeper.lost:
            assert time.monotonic() < deadline
            self.receive()
        self.keeper.abandon()


@pytest.fixture
def agents():
    """Yield a function that makes agents; end them."""
    made = []

    def make(*words, **more):
        made.append(Agent(*words, **more))
        return made[-1]

    yield make
    for agent in made:
        agent.keeper.close()


@pytest.fixture
def clients():
    """Yield a function that starts workers that use CUDA; end them."""
    made = []

    def make(pipes, uuids="GPU-1", **env):
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_VISIBLE_DEVICES": uuids, **env}
        client = subprocess.Popen(
            [sys.executable, "-IS", CLIENT], env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        made.append(client)
        client.says = client.stdout.readline().strip()
        return client

    yield make
    for client in made:
        client.kill()
        with client:  # closes its pipes
            pass


def send(client, word):
    client.stdin.write(f"{word}\n")
    client.stdin.flush()
    return client.stdout.readline().strip()


def end(client):
    client.stdin.close()
    client.wait()


def ask(pipes, *commands, control=CONTROL):
    asked = subprocess.run(
        [control], input="".join(f"{c}\n" for c in commands), text=True, capture_output=True,
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes}, timeout=LIMIT, check=False,
    )  # fmt: skip
    return asked.stdout.splitlines() if asked.returncode == 0 else None


def daemon_of(pipes):
    """Return the oldest process with this directory that is no server."""
    found = [p for p in of_mps() if p.environ().get("CUDA_MPS_PIPE_DIRECTORY") == pipes]
    return min(found, key=lambda p: (p.create_time(), p.pid))


# A round


def test_a_daemon_for_each_group_and_its_end(agents, base, clients):
    agent = agents()
    pipes = agent.prepare(0, ONE, TWO)
    assert sorted(pipes) == ["GPU-1", "GPU-2"]
    for gpu, directory in pipes.items():
        assert directory.startswith(f"{base}/hpclaunch-mps-{USER}-7.0/")
        (server,) = ask(directory, "get_server_list")
        environ = daemon_of(directory).environ()
        assert environ["CUDA_VISIBLE_DEVICES"] == gpu
        client = clients(directory, gpu)
        assert client.says == "client"
        assert "Starting control daemon" in Path(directory, "../log/control.log").read_text()
        assert ask(directory, "get_server_list") == [server]
        assert ask(directory, f"get_server_status {server}") == ["ACTIVE"]
        end(client)
    assert clients(pipes["GPU-1"], "GPU-2").says == "CUDA_ERROR_NO_DEVICE"
    agent.keeper.close()
    assert not of_mps()
    assert list(base.iterdir()) == []


def test_nobody_else_can_enter_its_directories(agents, base):
    agents().prepare(0, ONE)
    found = [path for path in base.rglob("*") if path.is_dir()]
    assert len(found) == 4  # the job's, the group's, its pipes and its log
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o700}


def test_two_agents_of_a_job_share_a_daemon(agents, base, clients):
    first, second = agents(), agents()
    second.keeper.prepare(0, [OTHERS])
    own = first.prepare(0, ONE)
    assert second.until("ready")["directories"] == own
    assert len(of_mps()) == 2
    second.keeper.close()
    assert len(ask(own["GPU-1"], "get_server_list")) == 1
    first.keeper.close()
    assert list(base.iterdir()) == []


def test_the_other_agent_takes_over(agents, base):
    """The first one has left the node, or has failed: the second leads the GPU from now on."""
    first, second = agents(), agents()
    first.prepare(0, ONE)
    second.prepare(0, OTHERS)
    second.keeper.prepare(1, [ONE])
    first.keeper.close()
    assert second.until("ready", "failed")["event"] == "ready"
    assert len(of_mps()) == 2


def test_a_daemon_goes_with_its_group(agents, base):
    agent = agents()
    agent.prepare(0, ONE, TWO)
    assert list(agent.prepare(1, TWO)) == ["GPU-2"]
    assert len(of_mps()) == 2


@pytest.mark.parametrize("traits", ["", "warns", "slow-start", "535", "535,complains"])
def test_the_server_takes_clients_before_the_workers_start(
    agents, base, clients, monkeypatch, traits
):
    monkeypatch.setenv("MPS_STAND_IN", traits)
    pipes = agents().prepare(0, ONE)["GPU-1"]
    assert clients(pipes).says == "client"


@pytest.fixture
def late(tmp_path):
    """Return the file whose existence ends the limits."""
    return tmp_path / "late"


def until_logged(base, words):
    """Wait until a daemon has written these words to its log."""
    logs = "*/*/log/control.log"
    eventually(lambda: any(words in log.read_text() for log in base.glob(logs)))


@pytest.mark.parametrize(
    ("traits", "limit", "logged", "why"),
    [
        ("initializing", "SERVER", "Starting new server", "its state is INITIALIZING"),
        ("broken", "LISTED", "exited with status", "there is none"),
    ],
)
def test_a_server_that_takes_no_clients(
    agents, base, monkeypatch, late, traits, limit, logged, why
):
    set_limits(monkeypatch, f"mps_daemon.{limit}_LIMIT = Until({str(late)!r})")
    monkeypatch.setenv("MPS_STAND_IN", traits)
    agent = agents()
    agent.keeper.prepare(0, [ONE])
    until_logged(base, logged)
    late.touch()
    assert agent.until("failed")["why"] == f"the MPS server for GPU-1 does not start: {why}"
    assert not of_mps()


def test_a_daemon_with_other_agents_clients_stays_if_an_agents_daemon_is_not_ready(
    agents, base, clients, monkeypatch, late
):
    set_limits(monkeypatch, f"mps_keeper.OTHERS_LIMIT = Until({str(late)!r})")
    first, second = agents(), agents()
    first.keeper.prepare(0, [ONE, Group((Gpu("2", "GPU-2"),), 2, owned=False)])
    eventually(lambda: list(base.glob("*/*/ready")))
    client = clients(second.prepare(0, OTHERS)["GPU-1"])
    assert client.says == "client"
    late.touch()
    assert first.until("ready", "failed")["why"] == (
        "another agent has not started the MPS daemon for GPU-2 in time"
    )
    client.stdin.write("synchronize\n")
    client.stdin.close()
    assert client.stdout.read().strip() == "done"


def test_daemons_are_ready_for_others_once_all_of_their_agent_are(agents, base, monkeypatch, late):
    until = f"Until({str(late)!r})"
    set_limits(monkeypatch, f"mps_keeper.OTHERS_LIMIT = mps_daemon.LISTED_LIMIT = {until}")
    monkeypatch.setenv("MPS_STAND_IN", "broken@GPU-2")
    agent = agents()
    agent.keeper.prepare(0, [ONE, TWO])
    until_logged(base, "exited with status")
    late.touch()
    why = "the MPS server for GPU-2 does not start: there is none"
    assert agent.until("failed")["why"] == why
    assert not of_mps()
    assert agents().fails(0, OTHERS).startswith("another agent has not started the MPS daemon for ")


@pytest.mark.parametrize(
    ("how", "traits"),
    [
        ("SIGKILL", ""),
        ("SIGKILL", "slow"),
        ("a fault", ""),
        ("a fault", "stuck"),
        ("a fault", "535"),
        ("it ended well", ""),
    ],
)
def test_the_next_round_has_a_daemon_of_its_own(agents, base, clients, monkeypatch, traits, how):
    """A client that died with work on the GPU may have left the server in an undefined state."""
    monkeypatch.setenv("MPS_STAND_IN", traits)
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    one, other = clients(pipes), clients(pipes)
    old = of_mps()
    if how == "SIGKILL":
        one.kill()
    elif how == "a fault":
        assert send(one, "fault") == "CUDA_ERROR_ILLEGAL_ADDRESS"
        assert send(other, "synchronize") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    else:
        end(one)
    other.kill()
    for client in (one, other):
        client.wait()
    assert agent.prepare(1, ONE) == {"GPU-1": pipes}
    assert len(old) == 2
    assert all(gone(process.pid) for process in old)
    assert clients(pipes).says == "client"


@pytest.fixture
def hanging(monkeypatch, tmp_path):
    """Return a file for the pid of a daemon that hangs. The keepers of this test wait only briefly
    for it, and for what does not end.
    """
    file = tmp_path / "hanging"
    set_limits(
        monkeypatch,
        "mps_keeper.LAST_CLIENTS_LIMIT = mps_keeper.ANOTHER_USER_LIMIT = 0.3",
        f"mps_daemon.ANSWER_LIMIT = Patience(1.0, {str(file)!r})",
    )
    return file


@pytest.mark.usefixtures("hanging")
def test_a_client_that_does_not_end_ends_with_its_daemon(agents, base, clients):
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    client = clients(pipes)
    agent.prepare(1, ONE)
    assert send(client, "synchronize") == "CUDA_ERROR_MPS_RPC_FAILURE"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_is_killed_or_hangs_is_replaced(agents, base, clients, hanging, signum):
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    end(clients(pipes))
    (server,) = ask(pipes, "get_server_list")
    daemon = daemon_of(pipes)
    hanging.write_text(str(daemon.pid))
    daemon.send_signal(signum)
    if signum == signal.SIGSTOP:
        eventually(lambda: daemon.status() == psutil.STATUS_STOPPED)
    agent.prepare(1, ONE)
    assert gone(daemon.pid)
    assert gone(int(server))


def test_a_daemon_that_hangs_at_the_end(agents, base, hanging):
    agent = agents()
    daemon = daemon_of(agent.prepare(0, ONE)["GPU-1"])
    hanging.write_text(str(daemon.pid))
    daemon.suspend()
    eventually(lambda: daemon.status() == psutil.STATUS_STOPPED)
    agent.keeper.close()
    assert not of_mps()
    assert list(base.iterdir()) == []


def test_a_daemon_that_does_not_start(agents, base, monkeypatch):
    monkeypatch.setenv("MPS_STAND_IN", "refuses")
    why = agents().fails(3, ONE)
    assert why == (
        "the MPS daemon for GPU-1 does not start: Cannot access the GPU: this stand-in refuses to "
        "start"
    )


def test_signals_for_all_leave_keeper_and_daemon_alone(agents, base):
    """scancel sends SIGTERM to every process, and the workers that save still need the daemon."""
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(agent.pid, signum)
        daemon_of(pipes).send_signal(signum)
    assert len(ask(pipes, "get_server_list")) == 1
    assert os.getsid(daemon_of(pipes).pid) != os.getsid(0)


# Who is a client


def test_the_workers_are_clients(agents, base, clients):
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    pids = {rank: clients(pipes).pid for rank in (4, 5)}
    agent.keeper.watch(pids)
    assert agent.until("clients", "outside") == {"event": "clients", "counts": {"GPU-1": 2}}


WATCHER = """
import ctypes, threading
ctypes.CDLL(None).prctl(15, b"cuda00001400006", 0, 0, 0)  # a thread of NVML's, by its name
print("watches", flush=True)
threading.Event().wait()
"""


def test_a_worker_that_runs_without_mps_is_named(agents, base, clients):
    """One that uses no GPU is not, nor one that only watches it, by NVML."""
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    inside = clients(pipes)
    outside = clients("/nowhere")
    words = [sys.executable, "-IS", "-c", WATCHER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as watcher:
        assert watcher.stdout.readline() == b"watches\n"
        agent.keeper.watch({0: inside.pid, 1: outside.pid, 2: watcher.pid})
        assert agent.until("clients", "outside")["ranks"] == [1]
        watcher.kill()


@pytest.mark.parametrize("trait", ["elsewhere", "blind"])
def test_a_foreign_daemon_whose_pids_say_nothing_here(agents, foreign, clients, monkeypatch, trait):
    """In a container its pids are not those of the host: nobody is accused."""
    monkeypatch.setenv("MPS_STAND_IN", trait)
    pipes = foreign()
    agent = agents()
    assert agent.prepare(0, foreign=pipes) == {"": pipes}
    agent.keeper.watch({0: clients(pipes, "").pid})
    assert agent.until("clients", "outside", "unmapped")["event"] == "unmapped"


def test_a_program_below_the_worker_is_its_client_too(agents, base, clients):
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_VISIBLE_DEVICES": "GPU-1"}
    worker = subprocess.Popen(
        ["sh", "-c", f"{sys.executable} -IS {CLIENT}; true"], env=env, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    agent.keeper.watch({0: worker.pid})
    assert agent.until("clients")["counts"] == {"GPU-1": 1}
    worker.communicate()


# Deaths


def test_nothing_outlives_a_killed_keeper(agents, base, clients):
    agent = agents()
    pipes = agent.prepare(0, ONE)["GPU-1"]
    clients(pipes)
    assert len(of_mps()) == 2
    os.kill(agent.pid, signal.SIGKILL)
    agent.until_lost()
    assert not of_mps()
    successor = Agent.__new__(Agent)
    successor.keeper, successor.events = agent.keeper.successor(), []
    assert successor.until("swept")["names"] == [f"hpclaunch-mps-{USER}-7.0"]
    assert successor.prepare(1, ONE) == {"GPU-1": pipes}
    successor.keeper.close()
    assert list(base.iterdir()) == []


LAUNCH = """
import sys, time
import pytest
sys.path[:0] = sys.argv[1:]
from test_mps import Agent, ONE, set_limits
set_limits(pytest.MonkeyPatch())
agent = Agent("8.0")
print(agent.prepare(0, ONE)["GPU-1"], agent.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def launch(clients):
    """Yield a function that starts an agent: (process, pipe directory, its keeper's pid)."""
    made = []

    def make(*prefix):
        agent = subprocess.Popen(
            [*prefix, sys.executable, "-c", LAUNCH, *map(str, Path(__file__).parents[:2])],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        made.append(agent)
        pipes, pid = agent.stdout.readline().split()
        return agent, pipes, int(pid)

    yield make
    for agent in made:
        with agent:
            agent.kill()


def test_nothing_outlives_a_killed_agent(launch, base, clients):
    agent, pipes, keeper = launch()
    client = clients(pipes)
    (server,) = ask(pipes, "get_server_list")
    daemon = daemon_of(pipes).pid
    agent.kill()
    end(client)  # the fork server sees to it
    assert all(gone(pid) for pid in (keeper, daemon, int(server)))
    assert list(base.iterdir()) == []


def test_the_next_keeper_sweeps_what_is_left_when_all_were_killed(launch, agents, base, clients):
    agent, pipes, keeper = launch()
    clients(pipes)
    (server,) = ask(pipes, "get_server_list")
    assert not stale(os.environ)
    for pid in (agent.pid, keeper, daemon_of(pipes).pid):
        os.kill(pid, signal.SIGKILL)
    assert gone(keeper)
    assert living([int(server)]), "the stand-in's servers outlive all of these"
    # A child of the keeper has its lock until it executes a program.
    eventually(lambda: stale(os.environ))
    other = agents()
    assert other.until("swept")["names"] == [f"hpclaunch-mps-{USER}-8.0"]
    assert gone(int(server))
    assert not stale(os.environ)
    assert list(base.iterdir()) == []


def test_a_living_job_is_not_swept(agents, base):
    pipes = agents("7.0").prepare(0, ONE)["GPU-1"]
    assert list(agents("7.1").prepare(0, ONE)) == ["GPU-1"]
    assert len(ask(pipes, "get_server_list")) == 1
    assert len(of_mps()) == 4


def test_the_name_service_and_the_path_are_not_asked_before_each_round(monkeypatch, tmp_path):
    """Either may hang when workers start again."""
    environ, asked = {"PATH": str(tmp_path)}, []
    monkeypatch.setattr(pwd, "getpwuid", asked.append)
    monkeypatch.setattr(shutil, "which", lambda *_, path: asked.append(path))
    for _ in range(2):
        assert mps.installed(environ) == (mps.MpsSupport(""), "")
        stale(environ)
    assert asked == [str(tmp_path)]


# Places


def occupy(path, kind, tmp_path):
    """Occupy `path` with something that is no directory of this user."""
    if kind == "link":
        path.symlink_to(tmp_path)
    elif kind == "file":
        path.write_text("mine")
    else:
        if os.geteuid():
            pytest.skip("only root can make a directory of another user")
        path.mkdir()
        os.chown(path, 65534, 65534)


@pytest.fixture
def job():
    """Yield a job that no other test uses; remove its directories in /tmp."""
    name = f"{os.getpid()}.7"
    yield name
    for place in ("/tmp", "/dev/shm"):
        path = Path(place, f"hpclaunch-mps-{USER}-{name}")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["link", "file", "other user"])
def test_something_else_is_in_the_way(agents, base, tmp_path, clients, job, kind):
    """Whoever guesses the name cannot keep the job from its daemon: the next place is used."""
    name = f"hpclaunch-mps-{USER}-{job}"
    occupy(base / name, kind, tmp_path)
    assert not stale(os.environ)
    first, second = agents(job), agents(job)
    pipes = first.prepare(0, ONE)["GPU-1"]
    assert pipes.startswith(f"/tmp/{name}/")
    assert second.prepare(0, OTHERS) == {"GPU-1": pipes}
    assert clients(pipes).says == "client"
    assert list(tmp_path.iterdir()) == []


def test_something_else_is_in_the_way_everywhere(agents, base, tmp_path, job):
    name = f"hpclaunch-mps-{USER}-{job}"
    occupy(base / name, "file", tmp_path)
    occupy(Path("/tmp") / name, "link", tmp_path)
    assert agents(job).prepare(0, ONE)["GPU-1"].startswith(f"/dev/shm/{name}/")
    other = agents(f"{job}-b")
    occupy(base / f"{name}-b", "file", tmp_path)
    for place in ("/tmp", "/dev/shm"):
        occupy(Path(place) / f"{name}-b", "file", tmp_path)
    why = other.fails(0, ONE)
    for place in ("/tmp", "/dev/shm"):
        (Path(place) / f"{name}-b").unlink()
    assert why.startswith(f"{base}/{name}-b is in the way: it is not a directory of this user")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a:b", "two words", "für"])
def test_a_place_with_an_unusual_name(agents, base, clients, monkeypatch, name):
    if not name.isascii() and "locale" in surroundings.entered:
        pytest.skip("an agent and its keeper have the same locale; this process has another")
    place = base / name
    place.mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(place))
    pipes = agents().prepare(0, ONE)["GPU-1"]
    assert pipes.startswith(f"{place}/hpclaunch-mps-")
    assert clients(pipes).says == "client"


@pytest.mark.parametrize("name", ["x" * 90, "missing"])
def test_a_place_that_cannot_have_sockets(agents, base, monkeypatch, name):
    place = base / name
    if name != "missing":
        place.mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(place))
    pipes = agents("a job whose name is far longer than it should be").prepare(0, ONE)["GPU-1"]
    assert pipes.startswith(f"/tmp/hpclaunch-mps-{USER}-a_job_whose-")
    assert len(ask(pipes, "get_server_list")) == 1


# Who may read everything can start a Python that lies in root's home.
NOBODY = [
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--"),
]
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@root
def test_an_unprivileged_user(launch, base):
    base.chmod(0o777)
    agent, pipes, keeper = launch(*NOBODY)
    assert Path(pipes).stat().st_uid == 65534
    assert daemon_of(pipes).uids().real == 65534
    assert pipes.startswith(f"{base}/hpclaunch-mps-65534-8.0/")
    agent.kill()
    assert gone(keeper)


# Daemons of others


@pytest.fixture
def foreign(base, monkeypatch):
    """Yield a function that starts an administrator's daemon."""
    started = []

    def start(*prefix):
        pipes, logs = base / "pipes", base / "logs"
        base.chmod(0o755)
        for path in (pipes, logs):
            path.mkdir()
            path.chmod(0o777)
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes))
        monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(logs))
        subprocess.run([*prefix, CONTROL, "-d"], check=True)
        started.append(daemon_of(str(pipes)))
        return str(pipes)

    monkeypatch.setenv("PATH", f"{STAND_INS}:{os.environ['PATH']}")
    yield start
    for daemon in started:
        for process in [*daemon.children(), daemon]:
            process.kill()


def test_a_foreign_daemon_is_found_used_and_left_running(agents, base, clients, foreign):
    pipes = foreign()
    found = find(os.environ)
    assert found == mps.MpsSupport(CONTROL, pipes)
    agent = agents()
    assert agent.prepare(0, foreign=pipes) == {"": pipes}
    client = clients(pipes, "")
    agent.keeper.watch({0: client.pid})
    assert agent.until("clients")["counts"] == {"": 1}
    end(client)
    assert agent.prepare(1, foreign=pipes) == {"": pipes}
    agent.keeper.close()
    assert len(of_mps()) == 2
    assert ask(pipes, "get_server_list") != []
    assert not list(base.glob("hpclaunch*"))


def test_a_foreign_daemon_that_ends_between_two_rounds(agents, foreign):
    pipes = foreign()
    agent = agents()
    agent.prepare(0, foreign=pipes)
    daemon_of(pipes).kill()
    assert agent.fails(1, foreign=pipes) == f"the MPS daemon at {pipes} no longer answers"


STRANGER = pwd.getpwuid(65534).pw_name


@root
def test_a_daemon_of_a_stranger_is_not_used(foreign):
    pipes = foreign(*NOBODY)
    found = find(os.environ)
    assert found.foreign == ""
    assert found.refused == (
        f"the MPS daemon at {pipes} is not used: {pipes}/control belongs to {STRANGER}"
    )


@root
@pytest.mark.parametrize("what", ["its directory", "its process"])
def test_a_daemon_that_a_stranger_may_replace_is_not_used(foreign, what):
    if what == "its process":
        pipes = foreign(*NOBODY)
        os.chown(f"{pipes}/control", 0, 0)
    else:
        pipes = foreign()
        os.chown(pipes, 65534, 65534)
    found = find(os.environ)
    assert found.foreign == ""
    belongs = f"{pipes if what == 'its directory' else what} belongs to {STRANGER}"
    assert found.refused == f"the MPS daemon at {pipes} is not used: {belongs}"


def test_what_is_left_of_a_foreign_daemon(foreign):
    pipes = foreign()
    daemon_of(pipes).kill()
    assert find(os.environ) == mps.MpsSupport(CONTROL)


@pytest.fixture
def a_stranger(clients, monkeypatch):
    """Yield a function that starts clients of another user; end them."""

    def make(pipes):
        client = subprocess.Popen(
            [*NOBODY, sys.executable, "-IS", CLIENT], text=True, start_new_session=True,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipes},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        made.append(client)
        assert client.stdout.readline() == "client\n"
        return client

    made = []
    yield make
    for client in made:
        client.kill()
        with client:
            pass


@root
def test_a_foreign_daemon_that_serves_another_user_is_waited_for(agents, foreign, a_stranger):
    pipes = foreign()
    client = a_stranger(pipes)
    agent = agents()
    agent.keeper.prepare(0, [], pipes)
    event = agent.until("waiting")
    assert event["number"] == 0
    assert event["why"].startswith(f"the MPS daemon at {pipes} serves {STRANGER}, ")
    end(client)
    assert agent.until("ready", "failed")["event"] == "ready"
    assert [reply["event"] for reply in agent.events] == []  # it is reported once


@root
@pytest.mark.usefixtures("hanging")
def test_a_foreign_daemon_that_serves_another_user_for_long(agents, foreign, a_stranger):
    pipes = foreign()
    a_stranger(pipes)
    agent = agents()
    agent.keeper.prepare(0, [], pipes)
    event = agent.until("occupied", "ready", "failed")
    assert event["event"] == "occupied"
    assert event["why"].startswith(f"the MPS daemon at {pipes} still serves {STRANGER} after ")
    agent.keeper.prepare(1, [], pipes)
    agent.until("waiting")
    agent.keeper.close()  # it does not wait for that


@root
def test_an_idle_server_of_another_user_is_in_nobodys_way(agents, foreign, a_stranger, clients):
    """The daemon ends it for the next user."""
    pipes = foreign()
    end(a_stranger(pipes))
    assert ask(pipes, "get_server_list") != []
    assert agents().prepare(0, foreign=pipes) == {"": pipes}
    assert clients(pipes, "").says == "client"


def test_a_foreign_daemon_that_does_not_answer(foreign, monkeypatch):
    monkeypatch.setenv("MPS_STAND_IN", "silent")
    monkeypatch.setattr(foreign_mps, "LIMIT", 0.3)
    foreign()
    assert find(os.environ).foreign == ""


def test_a_node_without_mps(tmp_path):
    assert find({"PATH": str(tmp_path), "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) == (
        mps.MpsSupport()
    )


# The stand-in beside the real one

COMMANDS = """
get_server_list
get_client_list 1
get_client_list
ps
ps -p 1
get_server_status 1
get_device_client_list
get_device_client_list 1
get_default_active_thread_percentage
set_default_active_thread_percentage 50
set_default_active_thread_percentage 150
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 4G
get_default_device_pinned_mem_limit 0
get_default_client_priority
terminate_client 1 1
shutdown_server 1
start_server
bogus
""".strip().splitlines()


class Program:
    """A control program, real or not: its answers, effects and files."""

    def __init__(self, path, pipes, logs):
        self.path = str(path)
        self.pipes, self.logs = pipes, logs
        self.env = {
            **os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs), "MPS_STAND_IN": "535,broken", "PATH": "/usr/bin",
        }  # fmt: skip

    def run(self, *options, given=""):
        ended = subprocess.run(
            [self.path, *options], input=given, env=self.env, text=True, capture_output=True,
            timeout=LIMIT, check=False,
        )  # fmt: skip
        out = re.sub(r"^\[[-0-9 :.]+ Control +\d+\]", "[]", ended.stdout, flags=re.M)
        return ended.returncode, out.replace(str(self.pipes), "PIPES"), ended.stderr

    def foreground(self):
        daemon = subprocess.Popen([self.path, "-f"], env=self.env, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + LIMIT
        while self.run(given="get_server_list\n")[0]:
            assert daemon.poll() is None
            assert time.monotonic() < deadline
        return daemon

    def files(self):
        return {path.name: stat.filemode(path.lstat().st_mode) for path in self.pipes.iterdir()}

    def files_without(self, name):
        """Return the files after this one is removed; the front end does not wait for that."""
        deadline = time.monotonic() + LIMIT
        while (self.pipes / name).exists():
            assert time.monotonic() < deadline
        return self.files()

    def story(self):
        yield "nobody there", self.run(given="get_server_list\n"), self.files()
        yield "a bad option", self.run("-x")[0]
        daemon = self.foreground()
        yield "in the foreground", self.files()
        for command in COMMANDS:
            yield command, self.run(given=f"{command}\n")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with connection:
            connection.connect(str(self.pipes / "control"))
        yield "a connection that says nothing", self.run(given="get_server_list\n")
        yield "two commands", self.run(given="get_server_list\nps\n")
        yield "a second one", self.run("-f"), self.run("-d")
        # The exit status of this front end is not always the same.
        yield "quit", self.run(given="quit -t 2\n")[1:], daemon.wait(), self.files()
        for signum in (signal.SIGTERM, signal.SIGKILL):
            daemon = self.foreground()
            daemon.send_signal(signum)
            yield f"signal {signum}", daemon.wait(), self.files()
            yield "nobody there", self.run(given="get_server_list\n")
        daemon = self.foreground()
        yield "over what was left", self.files()
        yield "a server that cannot start", self.run(given=f"start_server -uid {os.geteuid()}\n")
        deadline = time.monotonic() + LIMIT
        while self.run(given="get_server_list\n")[1]:
            assert time.monotonic() < deadline
        yield "quit", self.run(given="quit\n")[1:], daemon.wait()
        yield "in the background", self.run("-d"), self.files()
        yield "its logs", sorted(path.name for path in self.logs.iterdir())
        yield "quit", self.run(given="quit -t 2\n")[1:], self.files_without("log")
        long = Program(self.path, self.pipes / ("x" * 90), self.logs)
        long.pipes.mkdir()
        yield "a long path", long.run("-d")[0], long.run(given="ps\n")[0]
        long.pipes.chmod(0o700)


@pytest.mark.skipif(not REAL, reason="NVIDIA's nvidia-cuda-mps-control is not here")
def test_the_stand_in_is_like_the_real_one(base):
    stories = []
    for name, program in (("real", REAL), ("stand-in", CONTROL)):
        directories = [base / name / "p", base / name / "l"]
        for path in directories:
            path.mkdir(parents=True)
        stories.append(list(Program(program, *directories).story()))
    for real, ours in zip(*stories, strict=True):
        assert ours == real


@pytest.mark.skipif(not REAL, reason="NVIDIA's nvidia-cuda-mps-control is not here")
def test_a_keeper_of_the_real_daemon(agents, base, tmp_path):
    control = tmp_path / "nvidia-cuda-mps-control"
    control.symlink_to(REAL)
    agent = agents(control=str(control))
    pipes = agent.prepare(0, ONE)["GPU-1"]
    daemon = daemon_of(pipes)
    assert daemon.environ()["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert "Starting control daemon" in Path(pipes, "../log/control.log").read_text()
    daemon.send_signal(signal.SIGTERM)  # to which it is deaf
    assert daemon.is_running()
    assert agent.prepare(1, ONE) == {"GPU-1": pipes}
    daemon_of(pipes).kill()
    assert agent.prepare(2, ONE) == {"GPU-1": pipes}
    os.kill(agent.pid, signal.SIGKILL)
    agent.until_lost()
    assert not of_mps()
    successor = agents(control=str(control))
    successor.prepare(3, ONE)
    successor.keeper.close()
    assert not of_mps()
    assert list(base.iterdir()) == []


@pytest.mark.fuzz
@given(st.lists(damaged([b"4711\n815\n", b"ACTIVE\n", b"Unknown command\n"]), max_size=6))
def test_any_answer_of_a_daemon(answers):
    front = mps_daemon.FrontEnd("", "")
    lines = [answer.decode(errors="replace").split("\n")[:-1] for answer in answers]
    front.ask = lambda _: lines.pop() if lines else None
    assert front.clients() is None or isinstance(front.clients(), set | None)
    front.another_user()
    assert front.reports_our_pids() in (True, False)
