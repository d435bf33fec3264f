"""The GPUs that a task has, and those that its workers see."""

from __future__ import annotations

import subprocess

import pytest

from hpclaunch.system.gpus import inventory

from .conftest import Launch, ask_torch
from .jobs import HPCLAUNCH, SCRIPTS, Machine, environment


@pytest.mark.parametrize(
    "selection",
    ["unset", "", "0", "{first}", "{short}", "{backwards}", "0,99", "GPU-none,{first}"],
)
def test_the_survey_is_what_torch_sees(machine: Machine, selection: str) -> None:
    uuids = machine.torch["uuids"]
    names = {"first": uuids[0], "short": uuids[0][:16], "backwards": ",".join(reversed(uuids))}
    chosen = {}
    if selection != "unset":
        chosen["CUDA_VISIBLE_DEVICES"] = selection.format(**names)
    found = inventory.survey(chosen, machine.nvml)
    assert [gpu.uuid for gpu in found.gpus] == ask_torch(**chosen)["uuids"]
    assert not found.broken
    assert bool(found.wrong) == (selection in ("0,99", "GPU-none,{first}"))


def test_the_survey_knows_the_gpu(machine: Machine) -> None:
    (gpu, *_) = inventory.survey({}, machine.nvml).gpus
    assert (gpu.entry, gpu.uuid, gpu.index, gpu.model) == ("0", machine.uuid, 0, machine.model)


@pytest.mark.parametrize("by", ["index", "uuid"])
def test_a_worker_for_each_gpu_that_is_named(launch: Launch, machine: Machine, by: str) -> None:
    job = launch("--nproc", "gpu", visible="0" if by == "index" else machine.uuid)
    (state,) = job.states(1)
    assert state["devices"] == 1
    assert state["first"] == state["by_local_rank"] == machine.uuid
    assert state["env"]["LOCAL_RANK"] == state["env"]["HPCLAUNCH_LOCAL_RANK"] == "0"
    assert state["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert state["product"] == 64**3
    assert "CUDA_MPS_PIPE_DIRECTORY" not in state["env"]
    assert job.go() == 0, job.output


@pytest.mark.parametrize("options", [(), ("--virtual-local-rank",)])
def test_every_gpu_of_the_machine(
    launch: Launch, machine: Machine, options: tuple[str, ...]
) -> None:
    """All workers see all GPUs and select one by LOCAL_RANK; or each sees its own as device 0."""
    uuids = machine.torch["uuids"]
    if len(uuids) < 2:
        pytest.skip("needs several GPUs")
    job = launch("--nproc", "gpu", *options, visible=None)
    states = job.states(len(uuids))
    assert [t["by_local_rank"] for t in states] == uuids
    assert {t["devices"] for t in states} == {1 if options else len(uuids)}
    assert job.go() == 0, job.output


def test_no_gpu_is_named(machine: Machine) -> None:
    done = subprocess.run(
        [HPCLAUNCH, "--nproc", "gpu", SCRIPTS / "nccl.py"],
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no GPU is visible here" in done.stderr
