"""The recipes of cluster documentation run unchanged under hpclaunch (see `recipes`)."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from surroundings import SHORT

from .cluster import CONTROLLER, Cluster, JobResult
from .recipes.jobs import KILLS_RANK_1, Run, copy, learns, rounds, submit, weights

pytestmark = [
    pytest.mark.recipes,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Run:
    return partial(submit, cluster, tmp_path)


# MIT


def test_ddp_by_a_script_that_starts_its_own_processes(run: Run) -> None:
    weights(run("mit/multigpu.sh"), world=2)


def test_ddp_on_two_nodes_with_the_word_python_left_in(run: Run, tmp_path: Path) -> None:
    """Each task has one launcher, each node two tasks, and rank 1 is killed."""
    ended = run("mit/multinode.sh", env=KILLS_RANK_1)
    weights(ended, world=4)
    assert rounds(tmp_path) == 2
    assert ended.output.count("resumes at epoch 2") == 4, str(ended)
    assert "python before the script is not needed" in ended.output


def test_ddp_on_two_nodes_without_srun(run: Run) -> None:
    """With the site's launcher, it silently trains on the first node only."""
    ended = run("mit/multinode_without_srun.sh")
    assert ended.code == 2, str(ended)
    assert "prefix with srun" in ended.output


def test_fsdp_by_a_script_that_starts_its_own_processes(run: Run) -> None:
    weights(run("mit/fsdp.sh"), world=2)


def test_fsdp_and_tensor_parallel_on_one_node(run: Run, cluster: Cluster) -> None:
    """The port in the script is taken, as on a node that several jobs share."""
    neighbour = "import socket; s = socket.create_server(('', 1234)); print('here'); input()"
    command = cluster.nodes["n1"].command([sys.executable, "-uc", neighbour])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "here\n"
        ended = run("mit/fsdp_tp_one_node.sh", options=["--nodelist=n1"])
        process.communicate("\n")
    weights(ended, world=4)


def test_fsdp_and_tensor_parallel_on_two_nodes(run: Run, tmp_path: Path) -> None:
    """Tensor parallelism stays within the nodes, before and after the loss of rank 1."""
    ended = run("mit/fsdp_tp_two_nodes.sh", env=KILLS_RANK_1)
    weights(ended, world=4)
    assert rounds(tmp_path) == 2
    pairs = dict(re.findall(r"rank (\d) shares its tensors within (\S+)", ended.output))
    assert pairs == {"0": "n1+n1", "1": "n1+n1", "2": "n2+n2", "3": "n2+n2"}, str(ended)


# Alliance


def test_training_on_cpus(run: Run) -> None:
    ended = run("alliance/multi_cpu.sh", env={"TMPDIR": SHORT})  # for sockets of a DataLoader
    learns(ended)
    assert "2 threads" in ended.output


def test_training_on_cpus_without_cpus_per_task(run: Run) -> None:
    """Without `-c`, Slurm does not set the number of CPUs, which the script reads."""
    learns(run("alliance/multi_cpu_uncounted.sh"))


def test_eight_replicas_of_one_node(run: Run) -> None:
    """Each replica is a task, and the script gives no ranks to init_process_group."""
    weights(run("alliance/gpu_mps.sh", env={"BACKEND": "--backend=gloo"}), world=8)


def test_a_backend_that_torch_lacks(run: Run) -> None:
    ended = run("alliance/gpu_mps.sh", options=["--tasks-per-node=2"])
    assert ended.code == 1, str(ended)
    assert "doesn't have MPI built in" in ended.output, str(ended)


def test_ddp_with_a_rendezvous_of_its_own(run: Run, tmp_path: Path) -> None:
    weights(run("alliance/ddp.sh", env=KILLS_RANK_1), world=4)
    assert rounds(tmp_path) == 2


def test_ddp_with_a_file_rendezvous(cluster: Cluster) -> None:
    directory = cluster.directory_of("root")  # the script does not quote its path
    weights(submit(cluster, directory, "alliance/ddp_file.sh", env=KILLS_RANK_1), world=2)
    assert rounds(directory) == 2


def test_pipeline_in_one_process_with_rpc(run: Run) -> None:
    learns(run("alliance/pipelined_rpc.sh"))


def test_a_pipeline_in_each_process_and_ddp_over_all(run: Run, tmp_path: Path) -> None:
    weights(run("alliance/model_data_par.sh", env=KILLS_RANK_1), world=4)
    assert rounds(tmp_path) == 2


def test_rpc_between_all_ranks(run: Run, tmp_path: Path) -> None:
    weights(run("alliance/rpc_ring.sh", env=KILLS_RANK_1), world=2)
    assert rounds(tmp_path) == 2


def test_a_checkpoint_under_one_name(run: Run, tmp_path: Path) -> None:
    ended = run("alliance/checkpoint.sh", env=KILLS_RANK_1)
    weights(ended, world=2)
    starts = re.findall(r"rank \d starts at epoch (\d)", ended.output)
    assert sorted(starts) == ["0", "0", "2", "2"], str(ended)


def test_a_checkpoint_that_was_half_written(run: Run) -> None:
    """All ranks resume from the previous checkpoint."""
    ended = run("alliance/checkpoint_torn.sh")
    weights(ended, world=2)
    starts = re.findall(r"rank \d starts at epoch (\d)", ended.output)
    assert sorted(starts) == ["0", "0", "2", "2"], str(ended)


# CSC


def test_ddp_on_one_node_by_a_wrapper(run: Run) -> None:
    weights(run("csc/run-gpu4-dist.sh", "mnist_ddp.py", "--epochs=2"), world=4)


def test_ddp_on_two_nodes_by_a_wrapper(run: Run) -> None:
    weights(run("csc/run-gpu8-dist.sh", "mnist_ddp.py", "--epochs=2"), world=4)


# UTSA


def test_in_an_interactive_shell(cluster: Cluster, tmp_path: Path) -> None:
    """Start the scripts within `srun --pty bash`, without srun before the launcher."""
    copy("utsa/data_parallel.py", tmp_path)
    terminal = ["script", "-qec", shlex.join(["srun", "-n", "1", "-N", "1", "--pty", "bash"])]
    typed = "".join(
        f"hpclaunch --nproc 1 {name}.py\n" for name in ("data_parallel", "model_parallel")
    )
    home = ["env", "-C", str(tmp_path), f"HOME={tmp_path}"]
    text = cluster.on(CONTROLLER, [*home, *terminal], stdin=f"{typed}exit\n")
    learns(JobResult("COMPLETED", 0, text), times=2)
