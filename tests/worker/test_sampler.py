"""Samples of how workers keep pace: of real processes, that really wait for what they wait for."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from falling_asleep import LIMIT, until_asleep
from hpclaunch.worker import sampler
from hpclaunch.worker.sampler import Sampler, Used, is_blocked
from hpclaunch.worker.sock_diag import tcp_connections

QUOTAS = Path("/sys/fs/cgroup/cpu")
SLEEPS = "import time\nprint(flush=True)\ntime.sleep(600)"
SPINS = "print(flush=True)\nwhile True: pass"


class Pace:
    """A stand-in for ProgressWatch with the steps that the test sets."""

    def __init__(self):
        self.steps = (0, 0.0)
        self.asked = []
        self.disregarded = 0

    def ask_arrivals(self, pids):
        self.asked.append(dict(pids))

    def disregard(self):
        self.disregarded += 1

    def arrivals_of(self, rank):
        return {"arrivals": {"0": {"1": 5}} if rank else {}, "steps": {}, "blind": False}

    def steps_of(self, rank):
        return self.steps


@pytest.fixture
def program(starts):
    """Yield a function that starts a Python program, and returns once it has written a line; kill
    them at the end.
    """
    with contextlib.ExitStack() as stack:

        def start(source, **options):
            command = [sys.executable, "-c", source]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
            stack.enter_context(process)
            stack.callback(process.kill)
            process.stdout.readline()
            if source == SLEEPS:
                until_asleep(process.pid)
            return process.pid

        yield start


def sample(taker, pids):
    found = None
    for found in taker.take(lambda: pids):
        if isinstance(found, float):
            time.sleep(found)
    return found


def used_for(pid, seconds):
    before = Used(pid, [pid], 0, 0.0)
    time.sleep(seconds)
    return Used(pid, [pid], 0, 0.0).since(before)


def test_the_second_sample_has_what_was_done_since_the_first(program):
    pids = {0: program(SPINS), 1: program(SLEEPS)}
    pace = Pace()
    taker = Sampler(pace)
    taker.begin()
    first = sample(taker, pids)
    assert first["ways"] == {}
    assert first["ranks"] == [
        {"rank": 0, "arrivals": {}, "steps": {}, "blind": False},
        {"rank": 1, "arrivals": {"0": {"1": 5}}, "steps": {}, "blind": False},
    ]
    assert sample(taker, pids)["ranks"][0]["pace"] == 0.0  # since when, nobody knows
    pace.steps = (8, 2.0)
    sample(taker, pids)
    pace.steps = (16, 4.0)
    time.sleep(0.5)
    busy, idle = sample(taker, pids)["ranks"]
    assert (busy["pace"], idle["pace"]) == (0.25, 0.25)
    assert busy["cpu"] + busy["queued"] > 0.5
    assert (idle["cpu"], idle["blocked"], idle["throttled"]) == (0.0, 0.0, 0.0)
    assert (pace.asked, pace.disregarded) == ([pids] * 4, 4)


def test_another_worker_of_the_rank_is_not_compared_with_it(program):
    taker = Sampler(Pace())
    taker.begin()
    sample(taker, {0: program(SLEEPS)})
    (rank,) = sample(taker, {0: program(SLEEPS)})["ranks"]
    assert "pace" not in rank


def test_a_worker_that_ends_meanwhile(program):
    taker = Sampler(Pace())
    pid = program(SLEEPS)
    living = {0: pid}
    steps = taker.take(lambda: living)
    next(steps)
    living.clear()
    *_, found = steps
    assert found == {"ranks": [], "ways": {}}


def test_processes_that_share_a_cpu_wait_for_it(program):
    cpu = {sorted(os.sched_getaffinity(0))[0]}
    spins = f"import os; os.sched_setaffinity(0, {cpu})\n{SPINS}"
    pid, _ = program(spins), program(spins)
    assert used_for(pid, 1.0)["queued"] > 0.2


def test_a_thread_that_waits_counts_though_others_do_not(program):
    cpu = {sorted(os.sched_getaffinity(0))[0]}
    spins = f"import os; os.sched_setaffinity(0, {cpu})\n{SPINS}"
    beside = (
        "import os, threading, time\n"
        "def spin():\n"
        f"    os.sched_setaffinity(0, {cpu})\n"
        "    print(flush=True)\n"
        "    while True: pass\n"
        "threading.Thread(target=spin, daemon=True).start()\n"
        "time.sleep(100)\n"
    )
    program(spins)
    pid = program(beside)
    assert used_for(pid, 1.0)["queued"] > 0.2


@pytest.mark.skipif(not os.access(QUOTAS / "cgroup.procs", os.W_OK), reason="no cgroups v1 of ours")
def test_a_quota_that_is_used_up(program):
    """The quota is that of the cgroup above the process's own."""
    group = QUOTAS / f"quota-{os.getpid()}"
    (group / "below").mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("5000")
    pid = program(SPINS)
    try:
        (group / "below" / "cgroup.procs").write_text(str(pid))
        # On a machine that does much else, it may not come to use its quota up at once.
        limit = time.monotonic() + LIMIT
        while used_for(pid, 1.0)["throttled"] <= 0.3:
            assert time.monotonic() < limit
    finally:
        (QUOTAS / "cgroup.procs").write_text(str(pid))
        (group / "below").rmdir()
        group.rmdir()


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        (["0::/a"], {"a": "usage_usec 9\nnr_throttled 2\nthrottled_usec 1500000\n"}),
        *(
            (
                ["3:cpuset:/x", f"2:{both}:/a"],
                {f"{both}/a": "nr_throttled 2\nthrottled_time 1500000000\n"},
            )
            for both in ("cpu,cpuacct", "cpuacct,cpu")
        ),
        (["1:cpu:/a", "0::/"], {"cpu/a": "throttled_time 1500000000\n"}),
    ],
)
def test_files_of_cgroups_with_quotas(tmp_path, monkeypatch, lines, files):
    monkeypatch.setattr(sampler, "CGROUPS", str(tmp_path))
    for directory, text in files.items():
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "cpu.stat").write_text(text)
        if "," in directory:
            (tmp_path / "cpu").symlink_to(directory.partition("/")[0])
    found = sampler.throttled_in([line.split(":", 2) for line in lines])
    assert list(found.values()) == [1.5]


def test_the_clock_of_the_cpu_that_a_worker_runs_on(program, tmp_path, monkeypatch):
    """This machine may be a virtual one, whose kernel does not know it."""
    monkeypatch.setattr(sampler, "CLOCK", f"{tmp_path}/{{}}")
    cpu = sorted(os.sched_getaffinity(0))[-1]
    pid = program(f"import os; os.sched_setaffinity(0, {{{cpu}}})\n{SPINS}")
    taker = Sampler(Pace())
    taker.begin()
    sample(taker, {0: pid})
    (unknown,) = sample(taker, {0: pid})["ranks"]
    (tmp_path / str(cpu)).write_text("1200000\n")
    (known,) = sample(taker, {0: pid})["ranks"]
    assert (unknown["clock"], known["clock"]) == (0.0, 1.2)


def test_a_process_that_waits_for_storage(program, tmp_path):
    """The parent of a vfork() is in the same state as in fsync() on a slow disk."""
    os.mkfifo(tmp_path / "fifo")
    waits = (
        "import os\n"
        "print(flush=True)\n"
        'opened = (os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)\n'
        'os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[opened])\n'
    )
    pid = program(waits, cwd=tmp_path)
    limit = time.monotonic() + LIMIT
    while not is_blocked(pid):
        assert time.monotonic() < limit
        time.sleep(0.01)
    (tmp_path / "fifo").open("w").close()  # lets both continue


def test_the_ways_to_other_nodes():
    """An address of its own counts as another node."""
    taker, pids = Sampler(Pace()), {0: os.getpid()}
    taker.begin()
    with socket.create_server(("127.0.0.2", 0)) as server:
        one = socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 0))
        two, _ = server.accept()
        with one, two:
            one.sendall(b"x")
            two.recv(1)
            assert sample(taker, pids)["ways"] == {}
            assert sample(taker, pids)["ways"] == {}  # there was no traffic
            one.sendall(bytes(sampler.TRAFFIC))
            two.recv(sampler.TRAFFIC, socket.MSG_WAITALL)
            ways = sample(taker, pids)["ways"]
            assert 0 < ways["127.0.0.2"] < 1


def test_a_connection_within_the_node_is_no_way():
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
        with one, two:
            inode = os.fstat(one.fileno()).st_ino
            assert tcp_connections()[inode].peer == ""
