"""The GPUs that get an MPS daemon, why others do not, and the workers' environment."""

import re
from functools import partial

import pytest

from hpclaunch.core.placement import mps_shares
from hpclaunch.core.placement.devices import Gpu, Task, share_out
from hpclaunch.core.placement.mps_shares import (
    THREADS,
    Group,
    MpsSupport,
    Plan,
    Settings,
    environment,
    pipes_of,
    wanted,
)
from hpclaunch.core.protocol.model import Share
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.node_console import words_of_mps

HERE = MpsSupport("/usr/bin/nvidia-cuda-mps-control")
plan, without = (partial(f, host="n0") for f in (mps_shares.plan, mps_shares.without))
ON, AUTO, OFF = Settings("on"), Settings("auto"), Settings("off")


def gpus(n=2, **fields):
    return tuple(Gpu(f"{i}", f"GPU-{i}", i, **fields) for i in range(n))


def notes_of(plan):
    return [words_of_mps(note) for note in plan.notes]


def shares(nproc, n=2, per_worker=1):
    task = Task(nproc, tuple(gpu.uuid for gpu in gpus(n)))
    (own,) = share_out([task], per_worker=per_worker, isolate=True)
    return own


@pytest.mark.parametrize(
    ("settings", "nproc", "n", "expected"),
    [
        (AUTO, 2, 2, False),  # each has its own
        (AUTO, 3, 2, True),
        (ON, 2, 2, True),
        (ON, 2, 0, False),  # no GPU
        (OFF, 4, 2, False),
    ],
)
def test_whether_mps_has_anything_to_do(settings, nproc, n, expected):
    assert wanted(settings, shares(nproc, n)) is expected


def test_one_daemon_for_each_gpu_that_is_shared():
    decided = plan(AUTO, shares(3), gpus(), HERE)
    assert decided == Plan(groups=(Group(gpus(1), 2, owned=True),))


def test_on_means_every_gpu_that_has_a_worker():
    assert plan(ON, shares(3, 4), gpus(4), HERE).groups == tuple(
        Group((gpu,), 1, owned=True) for gpu in gpus(3)
    )


def test_a_worker_of_several_gpus_has_one_daemon_for_them():
    assert plan(AUTO, shares(4, 4, per_worker=2), gpus(4), HERE).groups == (
        Group(gpus(4)[:2], 2, owned=True),
        Group(gpus(4)[2:], 2, owned=True),
    )


def test_of_two_agents_that_share_a_gpu_the_first_has_the_daemon():
    tasks = [Task(1, ("GPU-0",)), Task(1, ("GPU-0",))]
    first, second = share_out(tasks, per_worker=1, isolate=False)
    assert plan(AUTO, first, gpus(1), HERE).groups == (Group(gpus(1), 2, owned=True),)
    assert plan(AUTO, second, gpus(1), HERE).groups == (Group(gpus(1), 2, owned=False),)


def test_what_is_left_when_no_daemon_can_be_had():
    left = without(AUTO, shares(4), gpus(), "it did not start")
    (note,) = notes_of(left)
    assert note == "GPU 0, GPU 1: shared by time slices, without MPS: it did not start"
    assert without(ON, shares(2), gpus(), "it did not start").error == "--mps on: it did not start"
    error = without(AUTO, shares(4), gpus(mode="exclusive"), "it did not start").error
    assert "its compute mode is EXCLUSIVE_PROCESS, and it did not start" in error


DEFAULT, EXCLUSIVE = gpus(1), gpus(1, mode="exclusive")
NOWHERE = MpsSupport()
PROHIBITED = "GPU 0: the compute mode is PROHIBITED"
SLICES = "GPU 0: shared by time slices, without MPS: "
CANNOT = "GPU 0: several workers cannot share it without MPS"


@pytest.mark.parametrize(
    ("settings", "nproc", "there", "found", "error"),
    [
        # No program can use it, with MPS or without.
        (AUTO, 2, gpus(1, mode="prohibited"), HERE, PROHIBITED),
        (ON, 1, gpus(1, mode="prohibited"), HERE, PROHIBITED),
        (OFF, 1, gpus(1, mode="prohibited"), NOWHERE, PROHIBITED),
        # Exclusive is shared through MPS or not at all.
        (AUTO, 2, EXCLUSIVE, HERE, ""),
        (AUTO, 1, EXCLUSIVE, NOWHERE, ""),
        (AUTO, 2, EXCLUSIVE, NOWHERE, f"{CANNOT}.*nvidia-cuda-mps-control is not in PATH"),
        (OFF, 2, EXCLUSIVE, NOWHERE, f"{CANNOT}.*--mps is off. Use --mps auto"),
        (OFF, 1, EXCLUSIVE, NOWHERE, ""),
        (AUTO, 2, gpus(1, mode="exclusive", mig=True), HERE, "MIG GPU-0: .* --mps on starts"),
        (OFF, 2, DEFAULT, NOWHERE, ""),
        # What was asked for is not there.
        (ON, 1, DEFAULT, NOWHERE, "--mps on: GPU 0: nvidia-cuda-mps-control is not in PATH"),
        (ON, 2, gpus(1, mig=True), HERE, ""),
    ],
)  # fmt: skip
def test_what_cannot_work(settings, nproc, there, found, error):
    planned = plan(settings, shares(nproc, 1), there, found)
    if error:
        assert re.search(error, planned.error)
        assert "\n" not in planned.error
        assert not planned.groups
    else:
        assert not planned.error


@pytest.mark.parametrize(
    ("nproc", "there", "found", "note"),
    [
        (2, DEFAULT, NOWHERE, "nvidia-cuda-mps-control is not in PATH. It comes with"),
        (2, gpus(1, mig=True), HERE, "it is an instance of a GPU (MIG). --mps on starts a daemon"),
    ],
)
def test_auto_continues_without_mps_where_that_is_safe(nproc, there, found, note):
    planned = plan(AUTO, shares(nproc, 1), there, found)
    assert notes_of(planned)[0].replace("MIG GPU-0", "GPU 0").startswith(SLICES + note)
    assert len(planned.notes) == 1
    assert not planned.groups
    assert not planned.error


def test_one_line_names_all_gpus_that_it_is_about():
    (note,) = notes_of(plan(AUTO, shares(10, 5), gpus(5), NOWHERE))
    assert note.startswith("GPU 0, GPU 1, GPU 2 and 2 more: ")


def test_an_exclusive_gpu_without_mps_has_a_way_out():
    planned = plan(AUTO, shares(4), gpus(2, mode="exclusive"), NOWHERE)
    assert planned.error.endswith("Ask the administrator for nvidia-smi -i 0,1 -c DEFAULT")


def test_a_foreign_daemon_is_used_and_none_is_ours():
    planned = plan(AUTO, shares(4), gpus(), MpsSupport(HERE.control, "/tmp/nvidia-mps"))
    assert planned.groups == ()
    assert planned.foreign == "/tmp/nvidia-mps"
    assert notes_of(planned) == [
        "MPS: the daemon at /tmp/nvidia-mps is used, which hpclaunch did not start and leaves "
        "running",
    ]


def test_a_foreign_daemon_that_is_not_trusted_is_replaced_with_a_word():
    refused = "the MPS daemon at /tmp/nvidia-mps is not used: /tmp/nvidia-mps belongs to bob"
    planned = plan(AUTO, shares(4), gpus(), replace(HERE, refused=refused))
    assert (len(planned.groups), notes_of(planned)) == (2, [refused])
    assert plan(AUTO, shares(2), gpus(), replace(HERE, refused=refused)).notes == ()


def test_a_foreign_daemon_is_not_used_where_nothing_is_shared():
    assert not plan(AUTO, shares(2), gpus(), MpsSupport(foreign="/tmp/nvidia-mps")).foreign


@pytest.mark.parametrize(
    ("settings", "share", "environ", "expected"),
    [
        (AUTO, Share((1,), 2), {}, {}),  # 100 is no limit
        (AUTO, Share((1,), 3), {}, {"THREAD_PERCENTAGE": "66.7"}),
        (AUTO, Share((1,), 8), {}, {"THREAD_PERCENTAGE": "25"}),
        (Settings(threads="30"), Share((1,), 8), {}, {"THREAD_PERCENTAGE": "30"}),
        (Settings(threads="100"), Share((1,), 8), {}, {"THREAD_PERCENTAGE": "100"}),
        (AUTO, Share((1,), 8), {THREADS: "10"}, {}),
        (Settings(threads="30"), Share((1,), 8), {THREADS: "10"}, {"THREAD_PERCENTAGE": "30"}),
        (Settings(memory="4G"), Share((1,), 2), {}, {"MEM_LIMIT": "0=4G"}),
        (Settings(memory="4G"), Share((0, 1), 2), {}, {"MEM_LIMIT": "0=4G,1=4G"}),
    ],
)
def test_the_environment_of_a_client(settings, share, environ, expected):
    env = environment(settings, share, gpus(), "/pipes", environ)
    assert env.pop("CUDA_MPS_PIPE_DIRECTORY") == "/pipes"
    assert env.pop("CUDA_VISIBLE_DEVICES") == ",".join(f"GPU-{i}" for i in share.gpus)
    full = {"THREAD_PERCENTAGE": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}
    full["MEM_LIMIT"] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    assert env == {full[name]: value for name, value in expected.items()}


@pytest.mark.parametrize(
    ("directories", "expected"),
    [({"GPU-0,GPU-1": "/ours"}, "/ours"), ({"GPU-1": "/ours"}, ""), ({"": "/theirs"}, "/theirs")],
)
def test_the_daemon_of_a_worker(directories, expected):
    assert pipes_of(Share((0, 1), 2), gpus(), directories) == expected
