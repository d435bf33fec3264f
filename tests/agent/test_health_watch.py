"""The health of a node from the agent's side: checks whose helpers cannot start, or answer late."""

from __future__ import annotations

import errno
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hpclaunch.agent.health_watch import HealthWatch
from hpclaunch.core.health.gpu_rules import XidSeen
from hpclaunch.core.health.host_rules import Disk, Host
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.placement.worker_environment import CUDA
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.model import NO_RANK, Job, Place
from hpclaunch.core.protocol.wording import GIB
from hpclaunch.system.gpus import gpu_watcher_client
from hpclaunch.system.hosts import host
from hpclaunch.system.logs import messages


class Watcher:
    """A stand-in for the GPU watcher; `failure` is why it cannot start."""

    failure: OSError | None = None

    def __init__(self, *_):
        if Watcher.failure is not None:
            raise Watcher.failure
        self.lost, self.checked = False, []

    def check(self, number, dead):
        self.checked.append(number)


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def asked():
    """Return what to call with the answer of the log service, for each question."""
    return []


@pytest.fixture
def tasks():
    """Return the number of tasks of the node."""
    return 1


@pytest.fixture
def health(monkeypatch, recorded, asked, tasks):
    monkeypatch.setattr(gpu_watcher_client, "GpuWatcherClient", Watcher)
    places = tuple(Place(index, 0, "n1") for index in range(tasks))
    config = SimpleNamespace(
        job=Job(places),
        place=places[0],
        gpus=(Gpu("0", "GPU-0", 0),),
        selector=CUDA,
        logs=None,
        nproc=1,
        broken=(),
    )
    return HealthWatch(
        SimpleNamespace(
            config=config,
            host="n1",
            logs=SimpleNamespace(ask=lambda _, done, limit: asked.append(done), service=1),
            record=recorded.append,
            note=lambda *_: None,
        )
    )


@pytest.fixture
def health_with_logs(health, tmp_path):
    health._config.logs, health._config.gpus, health._gpus = SimpleNamespace(path=tmp_path), (), ()
    return health


def check(health):
    return health.performs()[effects.CheckHealth](effects.CheckHealth())


@pytest.mark.parametrize(
    ("tasks", "pids", "rank"),
    [
        (1, (10,), 0),
        (1, (10, 11), NO_RANK),  # it may be the fault of either
        (1, (12,), NO_RANK),
        (1, (), NO_RANK),
        (2, (10,), 0),
        (2, (12,), None),  # the agent to whose worker this process belongs records it
        (2, (), NO_RANK),
        (2, (13, 11, 9), 1),  # a child of a worker, with its ancestors
    ],
)
def test_an_xid_has_the_rank_of_the_only_worker_that_used_the_gpu(health, recorded, pids, rank):
    health.started(0, 10)
    health.started(1, 11)
    seen = XidSeen("GPU-0", "GPU 0", 31, pids)
    for _ in range(2):
        health._on_fault(seen)
    assert [fault.rank for fault in recorded] == ([] if rank is None else [rank])


@pytest.mark.parametrize("tasks", [8])
def test_the_memory_has_to_be_enough_for_the_workers_of_all_tasks(health, recorded, monkeypatch):
    reading = Host(workers=0, memory=GIB)
    monkeypatch.setattr(host, "read", lambda workers, **_: replace(reading, workers=workers))
    check(health)
    assert [warning.found for warning in recorded] == ["1.0 GiB available for 8 workers"]


def test_gpus_are_not_checked_where_no_process_can_start_and_the_next_check_tries_again(
    health, recorded, monkeypatch
):
    monkeypatch.setattr(Watcher, "failure", OSError(errno.EAGAIN, "no further process"))
    assert check(health) == [events.HealthFound("")]
    (warning,) = [fact for fact in recorded if fact.check == "NVML"]
    assert warning.found == (
        "cannot start the process that reads it: no further process: "
        "the GPUs of this host were not checked"
    )
    monkeypatch.setattr(Watcher, "failure", None)
    assert check(health) == []
    assert health._watcher.checked == [1]


def test_without_an_answer_about_the_disk_the_check_continues_with_a_warning(
    health_with_logs, asked, recorded
):
    assert check(health_with_logs) == []
    (done,) = asked
    assert done(None) == [events.HealthFound("")]
    assert "its file system does not answer" in recorded[0].found


def test_the_successor_of_a_killed_log_service_is_asked_about_the_disk(
    health_with_logs, asked, recorded
):
    assert check(health_with_logs) == []
    health_with_logs._logs.service += 1
    assert asked.pop()(None) == []
    disk = messages.DiskFound(1, Disk("/logs", free=1 << 40))
    assert asked.pop()(disk) == [events.HealthFound("")]
    assert not any("does not answer" in fact.found for fact in recorded)
