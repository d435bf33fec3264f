"""The number of workers that a task starts, from Slurm's variables and the GPUs."""

import argparse
import ctypes
import os

import pytest
from launching import hpclaunch, script

from hpclaunch.cli import agent_config, worker_count
from hpclaunch.cli.options import build_parser
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import Allocation, Place
from hpclaunch.observe import console
from hpclaunch.system.gpus import inventory
from hpclaunch.system.gpus.inventory import GpuSurvey
from surroundings import LIGHT_TORCH, environment


def so_many(gpus):
    return GpuSurvey(tuple(Gpu(str(i), f"GPU-{i}", i) for i in range(gpus)))


def allocation(tasks=1):
    places = tuple(Place(i, 0, "n1") for i in range(tasks))
    return Allocation("7.0", "7.0", places, tasks - 1)


@pytest.mark.parametrize(
    ("nproc", "tasks", "gpus", "workers"),
    [
        (None, 1, 4, 4),  # one per GPU
        (None, 1, 0, 1),  # a script for CPUs, on a node with many
        (None, 4, 4, 1),  # started once per GPU, and each sees all of them
        (None, 4, 1, 1),  # or its own only
        ("auto", 1, 4, 4),
        ("auto", 1, 0, 16),
        ("auto", 4, 4, 1),
        ("gpu", 1, 4, 4),
        ("gpu", 2, 2, 2),  # said so, whatever the step looks like
        ("cpu", 1, 4, 16),
        ("3", 1, 4, 3),
        ("3", 2, 4, 3),
    ],
)
def test_the_number_of_workers(monkeypatch, nproc, tasks, gpus, workers):
    monkeypatch.setattr(worker_count, "survey", lambda environ: so_many(gpus))
    found = worker_count.count_workers(nproc, allocation(tasks), {}, python="python3", cpus=16)
    assert found.nproc == workers


@pytest.mark.parametrize("kind", ["gpu", "xpu"])
def test_a_kind_of_device_that_is_not_there(monkeypatch, kind):
    monkeypatch.setattr(worker_count, "survey", lambda environ: so_many(0))
    monkeypatch.setattr(worker_count, "_ask_torch", lambda python, device: 0)
    with pytest.raises(UsageError, match=f"--nproc {kind}, but no {kind.upper()} is visible here"):
        worker_count.count_workers(kind, allocation(), {}, python="python3", cpus=16)


def test_an_answer_of_nvml_that_cannot_be_read_is_not_called_silence(monkeypatch):
    def survey(environ, nvml):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)  # there is a driver
    monkeypatch.setattr(inventory, "survey", survey)
    broken = worker_count.survey({}).broken
    assert broken.startswith("NVML's answer cannot be read: UnicodeDecodeError(")


@pytest.fixture(scope="module")
def asked(starts, tmp_path_factory):
    """Return a launch for which torch was asked, and its directory, where other modules are."""
    directory = tmp_path_factory.mktemp("asked")
    for module in ("torch", "json"):
        script(directory, "open('imported', 'w').close()", f"{module}.py")
    (directory / "elsewhere").mkdir()
    words = ("--nproc", "xpu", script(directory / "elsewhere", ""))
    return hpclaunch(*words, cwd=directory), directory


def test_torch_is_asked_in_a_process_of_its_own(asked):
    """The real one, which has no such device here."""
    done, _ = asked
    if done.returncode == 0:
        pytest.skip("there is an XPU here")
    assert "--nproc xpu, but no XPU is visible here" in done.stderr


def test_no_torch_of_the_working_directory_is_imported(asked):
    """Others may write there. No worker imports from there either, unless its script is there."""
    _, directory = asked
    hpclaunch("doctor", cwd=directory, env=environment(PYTHONPATH=LIGHT_TORCH))
    assert not (directory / "imported").exists()


def notes(monkeypatch, tmp_path, *words, gpus=0, tasks=1, cpus=16, **environ):
    """Return the messages of the head at the start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker_count, "survey", lambda environ: so_many(gpus))
    script(tmp_path, "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n1",
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_CPUS_ON_NODE": str(cpus),
    }
    options: argparse.Namespace = build_parser(step | environ).parse_args([*words, "train.py"])
    return tuple(map(console.words, agent_config.configure(options, step | environ).notes))


def test_several_tasks_with_several_workers_each(monkeypatch, tmp_path):
    (note,) = notes(monkeypatch, tmp_path, "--nproc=4", tasks=4)
    assert note.startswith("4 tasks on n1, each with --nproc 4: leave --nproc out")


def test_fewer_cpus_than_workers(monkeypatch, tmp_path):
    (note,) = notes(monkeypatch, tmp_path, "--nproc=4", cpus=1)
    assert note.startswith("4 workers on n1 share 1 CPU: ask Slurm for more with --cpus-per-task=N")


def test_one_core_and_a_gpu(monkeypatch, tmp_path):
    (note,) = notes(monkeypatch, tmp_path, gpus=1, cpus=1)
    assert note.startswith("a worker has 1 core: ")
    assert "--cpus-per-task" in note
    assert notes(monkeypatch, tmp_path, gpus=1, cpus=2) == ()


def test_options_without_effect_are_named_in_one_line(monkeypatch, tmp_path):
    words = ["--monitor-interval=1", "--start-method=fork", "--event-log-handler=console"]
    words += ["--rdzv-conf=timeout=3,join_timeout=9"]
    (note,) = notes(monkeypatch, tmp_path, *words)
    assert note.startswith("without effect here: --monitor-interval")
    for name in ("--start-method", "--event-log-handler", "--rdzv-conf timeout"):
        assert name in note
    assert notes(monkeypatch, tmp_path, "--start-method=spawn", "--event-log-handler=null") == ()


@pytest.mark.parametrize(
    ("tasks", "why"), [(1, "this launch is on one machine"), (2, "Slurm knows all machines")]
)
def test_a_rendezvous_backend_that_is_not_needed(monkeypatch, tmp_path, tasks, why):
    (note,) = notes(monkeypatch, tmp_path, "--rdzv-backend=etcd", tasks=tasks)
    assert note == f"without effect here: --rdzv-backend etcd ({why})"


@pytest.mark.starts
def test_a_visible_device_that_is_not_there(monkeypatch, tmp_path):
    """Nobody knows without a driver, and nobody complains."""
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a GPU here")
    env = environment(CUDA_VISIBLE_DEVICES="7")
    assert hpclaunch("--nproc=1", script(tmp_path, ""), cwd=tmp_path, env=env).returncode == 0


def test_an_address_that_is_not_this_nodes(monkeypatch, tmp_path):
    (note,) = notes(monkeypatch, tmp_path, "--local-addr=192.0.2.1")
    assert note == "--local-addr 192.0.2.1 is not an address of n1 that others reach: ignored"
    assert notes(monkeypatch, tmp_path, "--local-addr=127.0.0.1") == ()
