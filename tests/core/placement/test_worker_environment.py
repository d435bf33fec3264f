"""The environment that workers see is torchrun's."""

from __future__ import annotations

import pytest
from story import a_part

from hpclaunch.core.placement import mps_shares, worker_environment
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.protocol.model import Share

GPUS = (Gpu("0", "GPU-0"),)


def environment(part, inherited=None, *, offset=0, interface="eth0"):
    shared = worker_environment.common(
        part, inherited or {}, run_id="1234.0", max_restarts=3, interface=interface
    )
    return shared | worker_environment.per_worker(part, offset, error_file="/logs/rank.json")


def test_the_last_worker_of_two_nodes_with_two_each():
    part = a_part(1, checkpoint="/ckpt/step-20.pt")
    assert environment(part, offset=1) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "1234.0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_ERROR_FILE": "/logs/rank.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
        "HPCLAUNCH_LOCAL_RANK": "1",
        "HPCLAUNCH_RUN_ID": "1234.0",
        "HPCLAUNCH_STORE": "10.0.0.1:4000",
        "HPCLAUNCH_CHECKPOINT": "/ckpt/step-20.pt",
    }


def test_what_each_worker_has_of_its_own_is_named():
    """Variables that are known before the template loads are not listed."""
    variables = environment(a_part()).keys() - worker_environment.at_load({}, threads=1).keys()
    slurm = dict.fromkeys(worker_environment.OWN, "1")
    slurm |= {"SLURM_JOB_ID": "71", "SLURM_CPUS_ON_NODE": "1"}
    variables |= worker_environment.of_slurm(a_part(), 0, slurm, cpus=4).keys()
    for selector in (worker_environment.CUDA, worker_environment.HIP):
        variables |= worker_environment.of_gpus(
            Share((0,), sharers=2), GPUS, {}, isolated=True, selector=selector, backend="gloo"
        ).keys()
    settings = mps_shares.Settings("on", "auto", "4G")
    variables |= mps_shares.environment(settings, Share((0,), sharers=2), GPUS, "/pipes", {}).keys()
    assert variables <= worker_environment.OWN


def test_a_launcher_within_a_worker_knows_it():
    """A job or a step that a worker starts inherits its environment, and is none within it."""
    for step in ({}, {"SLURM_STEP_ID": "3"}):
        job = {"SLURM_JOB_ID": "71", **step}
        worker = job | environment(a_part(), job)
        assert not worker_environment.is_within(job)
        assert worker_environment.is_within(worker)
        assert not worker_environment.is_within(worker | {"SLURM_JOB_ID": "72"})
        assert not worker_environment.is_within(worker | {"SLURM_STEP_ID": "4"})
    assert not worker_environment.is_within(
        environment(a_part())
    )  # without Slurm there is nothing to know


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "8"),
        ("GLOO_SOCKET_IFNAME", "ib0"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
    ],
)
def test_what_the_user_has_set_is_kept(name, value):
    assert name not in environment(a_part(), {name: value})


@pytest.mark.parametrize("name", ["WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT"])
def test_what_a_round_decides_is_not_inherited(name):
    assert environment(a_part(), {name: "17"})[name] != "17"


def test_a_worker_that_is_alone_on_its_node_may_use_all_its_threads():
    assert "OMP_NUM_THREADS" not in environment(a_part(nproc=1, local_world_size=1))


def test_threads_are_limited_where_two_agents_with_one_worker_share_a_node():
    env = environment(a_part(nproc=1, local_world_size=2, first_local_rank=1))
    assert env["OMP_NUM_THREADS"] == "1"
    assert env["LOCAL_RANK"] == "1"


def test_no_interface_no_variable():
    assert "GLOO_SOCKET_IFNAME" not in environment(a_part(), interface="")


def test_a_start_from_the_beginning_says_so():
    """Set but empty: a variable that the job's own environment holds must not shine through."""
    assert environment(a_part(), {"HPCLAUNCH_CHECKPOINT": "old"})["HPCLAUNCH_CHECKPOINT"] == ""


STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_CPUS_ON_NODE": "8"}


def test_slurms_variables_describe_the_worker_as_a_task():
    assert worker_environment.of_slurm(a_part(), 1, STEP, cpus=4) == {
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_NTASKS": "4",
        "SLURM_NPROCS": "4",
        "SLURM_NNODES": "2",
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_CPUS_PER_TASK": "4",
    }


@pytest.mark.parametrize(("cpus", "found"), [("1", "1"), ("2", None), ("", None)])
def test_tasks_share_cpus_where_workers_do(cpus, found):
    there = STEP | {"SLURM_CPUS_ON_NODE": cpus}
    assert worker_environment.of_slurm(a_part(), 0, there, cpus=1).get("SLURM_OVERCOMMIT") == found


def test_what_only_some_steps_have_is_rewritten_where_it_is():
    names = ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"]
    names += ["SLURM_GTIDS", "SRUN_CPUS_PER_TASK", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"]
    names += ["SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"]
    there = STEP | dict.fromkeys(names, "1") | {"SLURM_TRES_PER_TASK": "cpu=8,gres/gpu=2"}
    part = a_part(first_local_rank=1, first_rank=3, hosts="n3,n1")
    found = worker_environment.of_slurm(part, 0, there, cpus=4)
    assert {name: found[name] for name in there if name in found} == {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_GTIDS": "2,3",
        "SRUN_CPUS_PER_TASK": "4",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n3,n1",
        "SLURM_NODELIST": "n3,n1",
        "SLURM_STEP_NODELIST": "n3,n1",
        "SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=2",
    }


def test_a_single_node_keeps_the_name_that_slurm_has_for_it():
    there = STEP | {"SLURM_JOB_NODELIST": "n1", "SLURMD_NODENAME": "n1"}
    part = a_part(group_world_size=1, hosts="n1.cluster")
    assert worker_environment.of_slurm(part, 0, there, cpus=1)["SLURM_JOB_NODELIST"] == "n1"


def test_without_slurm_nothing_is_made_up():
    assert worker_environment.of_slurm(a_part(), 0, {"PATH": "/bin"}, cpus=4) == {}
