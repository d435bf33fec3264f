"""GPUs on Slurm: shared with MPS, and nodes with broken GPUs are cordoned.

Slurm's GPUs are files; NVML, the MPS control daemon and its clients are stand-ins
(tests/stand_ins). Slurm, the processes and the faults are real.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nvml
import pytest
from nvml import LOST, Gpu

from lines import only
from surroundings import SHORT

from .cluster import Cluster, eventually
from .conftest import AGENT, PATIENT, SCRIPTS
from .stand_in_gpus import OF_MPS, Gpus

pytestmark = pytest.mark.usefixtures("light_torch")

CLIENT = SCRIPTS / "client.py"
SIMPLE = SCRIPTS / "simple.py"
DAEMON = r"nvidia-cuda-mps-control -[df]"


@pytest.fixture
def gpus(cluster: Cluster, tmp_path: Path) -> Iterator[Gpus]:
    temporary = Path(tempfile.mkdtemp(prefix="gpu-", dir=SHORT))
    nvml.library().chmod(0o755)
    yield Gpus(cluster, tmp_path, temporary)
    shutil.rmtree(temporary)


def test_workers_that_share_gpus_are_clients_of_mps(cluster: Cluster, gpus: Gpus) -> None:
    job = gpus.launch("--nproc", 4, CLIENT, nodes=2)
    envs = gpus.wait_for_workers(8)
    assert all(t["client"] for t in envs)
    assert [t["CUDA_VISIBLE_DEVICES"] for t in envs] == sorted([nvml.uuid(0), nvml.uuid(1)] * 2) * 2
    assert {t["LOCAL_RANK"] for t in envs} == {"0"}
    assert len({t["CUDA_MPS_PIPE_DIRECTORY"] for t in envs}) == 4  # one daemon per GPU and node
    for host in ("n1", "n2"):
        assert len(cluster.processes(DAEMON, host=host)) >= 2
    for path in gpus.left():
        assert path.stat().st_mode & 0o777 == 0o700
    gpus.go()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "4 workers share 2 GPUs on n1, n2; each worker sees only its own" in ended.output
    assert "on n1: MPS runs for GPU 0, GPU 1; --mps off does without" in ended.output
    assert gpus.left() == []
    assert not cluster.processes(OF_MPS)


def test_each_worker_is_near_its_gpu(gpus: Gpus) -> None:
    gpus.driver([Gpu(cpus=(1,)), Gpu(cpus=(0,))])
    gpus.go()
    ended = gpus.launch(CLIENT, nodes=2).wait()
    assert ended.code == 0, str(ended)
    envs = gpus.wait_for_workers(4)
    assert [t["cpus"] for t in envs] == [[1], [0], [1], [0]]
    assert {t["OMP_NUM_THREADS"] for t in envs} == {"1"}
    assert {t["CUDA_DEVICE_ORDER"] for t in envs} == {"PCI_BUS_ID"}
    assert "a worker has 1 core" in ended.output  # the advice about data loaders
    (journal,) = gpus.directory.glob("hpclaunch-logs/*/journal.jsonl")
    assert "rank 0: GPU 0, CPUs 1" in journal.read_text()


def test_agents_of_one_node_share_a_daemon(cluster: Cluster, gpus: Gpus) -> None:
    options = ["--ntasks-per-node=3"]
    job = gpus.launch(CLIENT, nodes=1, gres="gpu:1", options=options)
    envs = gpus.wait_for_workers(3)
    assert all(t["client"] for t in envs)
    assert len({t["CUDA_MPS_PIPE_DIRECTORY"] for t in envs}) == 1
    (pipes,) = gpus.left()
    assert len([p for p in pipes.iterdir() if p.is_dir()]) == 1
    gpus.go()
    assert job.wait().code == 0
    assert gpus.left() == []


def test_a_fault_of_one_client_ends_all_and_the_next_round_has_mps_again(gpus: Gpus) -> None:
    job = gpus.launch("--nproc", 2, CLIENT, "1:0", nodes=1, gres="gpu:1")
    assert all(t["client"] for t in gpus.wait_for_workers(2, number=1))
    gpus.go()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in ended.output
    assert "restart 1 of 3" in ended.output
    assert gpus.left() == []


@pytest.mark.parametrize("how", ["scancel", "SIGKILL of the agent", "SIGKILL of the keeper"])
def test_nothing_of_mps_outlives_its_job(cluster: Cluster, gpus: Gpus, how: str) -> None:
    states = {"scancel": "CANCELLED", "SIGKILL of the agent": "FAILED"}
    job = gpus.launch("--nproc", 2, CLIENT, nodes=1, gres="gpu:1")
    gpus.wait_for_workers(2)
    if how == "scancel":
        job.cancel()
    elif how == "SIGKILL of the agent":
        agent = cluster.process(AGENT)
        agent.kill()
    else:
        keeper = cluster.process(r"hpclaunch\.worker\.mps")
        keeper.kill()
        assert all(t["client"] for t in gpus.wait_for_workers(2, number=1))
        gpus.go()
    ended = job.wait()
    assert ended.state == states.get(how, "COMPLETED"), str(ended)
    eventually("no process of MPS", lambda: not cluster.processes(OF_MPS))
    assert gpus.left() == []


def test_leftovers_of_a_killed_node_are_removed_by_the_next_job(
    cluster: Cluster, gpus: Gpus
) -> None:
    job = gpus.launch("--nproc", 2, CLIENT, nodes=1, gres="gpu:1", options=["-wn1"])
    gpus.wait_for_workers(2)
    for process in cluster.processes(host="n1"):
        with contextlib.suppress(ProcessLookupError):  # it may have ended together with another
            process.kill()
    job.wait()
    assert len(gpus.left()) == 1
    gpus.go()
    again = gpus.launch("--nproc", 1, SIMPLE, nodes=1, gres="gpu:1", options=["-wn1"])
    ended = again.wait()
    assert ended.code == 0, str(ended)
    assert gpus.left() == []


def test_without_the_control_daemon_workers_share_time_slices(gpus: Gpus) -> None:
    gpus.go()
    ended = gpus.launch("--nproc", 2, CLIENT, nodes=1, gres="gpu:1", path=False).wait()
    assert ended.code == 0, str(ended)
    assert not any(t["client"] for t in gpus.environments().values())
    line = "on n1: GPU 0: shared by time slices, without MPS: nvidia-cuda-mps-control is not in PAT"
    assert line in ended.output
    ended = gpus.launch("--mps=on", CLIENT, nodes=1, gres="gpu:1", path=False).wait()
    assert ended.code == 2, str(ended)
    assert "error: on n1: --mps on: GPU 0: nvidia-cuda-mps-control is not in PATH" in ended.output


def test_workers_that_evade_mps_are_named(gpus: Gpus) -> None:
    """The script removes the variable of the pipe directory, and CUDA does not complain."""
    evade = gpus.directory / "evade.py"
    evade.write_text(
        "import os, runpy\nos.environ.pop('CUDA_MPS_PIPE_DIRECTORY')\n"
        f"runpy.run_path({str(CLIENT)!r})\n"
    )
    job = gpus.launch("--nproc", 2, evade, nodes=1, gres="gpu:1")
    job.says("ranks 0, 1 on n1 run without MPS, taking turns on the GPU")
    gpus.go()
    assert job.wait().code == 0


def test_mps_off_and_an_exclusive_gpu(gpus: Gpus) -> None:
    gpus.driver([Gpu(mode=3)])
    ended = gpus.launch("--nproc=2", "--mps=off", CLIENT, nodes=1, gres="gpu:1").wait()
    assert ended.code == 2, str(ended)
    assert "its compute mode is EXCLUSIVE_PROCESS, and --mps is off" in ended.output


def test_a_node_with_a_broken_gpu_is_cordoned(cluster: Cluster, gpus: Gpus) -> None:
    gpus.driver([Gpu(), Gpu(ecc=3, recovery=None)], host="n2")
    job = gpus.launch("--nnodes=2:3", *PATIENT, SIMPLE)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    hosts = [env["hostname"] for env in job.environments().values()]
    assert hosts == ["n1", "n1", "n3", "n3"]
    assert "n2 is cordoned: GPU 1 ECC: 3 uncorrected memory errors" in ended.output
    line = only(ended.output, "  for the administrator: ")
    command = shlex.split(line.partition(": ")[2])
    assert command[:2] == ["scontrol", "update"]
    cluster.on("ctl", command)
    shown = cluster.on("ctl", ["scontrol", "show", "node", "n2"])
    assert f"job {job.id}: GPU 1 ECC: 3 uncorrected memory errors" in shown
    cluster.on("ctl", ["scontrol", "update", "NodeName=n2", "Comment="])


def test_too_few_nodes_are_fit(gpus: Gpus) -> None:
    gpus.driver([Gpu(error=LOST), Gpu()], host="n3")
    ended = gpus.launch(SIMPLE).wait()
    assert ended.code == 1, str(ended)
    assert "n3: GPUs: GPU 0: GPU is lost" in ended.output
    assert "2 of 3 nodes are left, and the job needs 3 (--nnodes 2:3 continues" in ended.output
    ended = gpus.launch("--health=off", "--nproc=2", SIMPLE, nodes=1, options=["-wn3"]).wait()
    assert ended.code == 0, str(ended)


def test_a_gpu_that_falls_off_the_bus_while_the_workers_run(gpus: Gpus) -> None:
    driver = gpus.driver([Gpu(), Gpu()], host="n2")
    job = gpus.launch("--nnodes=1:2", *PATIENT, SIMPLE, "--until", "go", nodes=2)
    job.wait_for_workers(4)
    for file in job.directory.glob("environ-*"):
        file.unlink()
    driver.gpus[1].error = LOST
    driver.xid(1, 79)
    job.wait_for_workers(2)
    gpus.go()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "n2 is cordoned: GPU 1" in ended.output
    assert "restart" not in ended.output  # no worker has failed


def test_an_xid_of_a_programs_fault_is_reported(gpus: Gpus) -> None:
    driver = gpus.driver([Gpu()])
    job = gpus.launch("--max-restarts=0", SIMPLE, "--fail", "0:go:1", nodes=1, gres="gpu:1")
    job.wait_for_workers(1)
    driver.xid(0, 31)
    job.says("Xid 31 on GPU 0: GPU memory page fault")
    gpus.go()
    ended = job.wait()
    assert ended.code == 1, str(ended)
    assert "    | Xid 31 on GPU 0: GPU memory page fault (an illegal address); an" in ended.output
