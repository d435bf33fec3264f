"""A job without failures: the workers' environment, and the files that it leaves."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

import timed

from .cluster import Cluster, Job
from .conftest import CALM, SCRIPTS, Launch, own_jobs

SIMPLE = SCRIPTS / "simple.py"


@pytest.fixture(scope="module")
def good(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return a job with two workers on each of three nodes."""
    body = f"srun {SCRIPTS}/agent.sh --nproc 2 {SIMPLE}"
    with own_jobs(cluster):
        env = timed.variables(cluster.env["PATH"], **CALM)
        job = cluster.sbatch(body, directory=tmp_path_factory.mktemp("good"), env=env)
        ended = job.wait()
        assert ended.code == 0, str(ended)
    return job


def test_every_worker_has_torchruns_environment(good: Job) -> None:
    envs = good.environments()
    assert list(envs) == list(range(6))
    port = envs[0]["MASTER_PORT"]
    for rank, env in envs.items():
        node = rank // 2
        expected = {
            "hostname": f"n{node + 1}",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "6",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": "3",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "6",
            "MASTER_ADDR": "10.78.0.11",
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "TORCHELASTIC_RUN_ID": f"{good.id}.0",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "HPCLAUNCH_CHECKPOINT": "",
        }
        assert {name: env.get(name) for name in expected} == expected


def test_a_script_on_standard_input(launch: Launch, tmp_path: Path) -> None:
    """srun copies its standard input to each task; every worker of each round reads all of it."""
    (tmp_path / "go").touch()
    agents = f"cat {SIMPLE} | srun {SCRIPTS}/agent.sh"
    job = launch("--nproc", 2, "-", "--fail", "3:go?:kill", srun=agents, nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    envs = job.environments()
    assert list(envs) == list(range(4))
    assert {env["TORCHELASTIC_RESTART_COUNT"] for env in envs.values()} == {"1"}


def test_no_script_on_standard_input(launch: Launch) -> None:
    job = launch("--nproc", 1, "-", srun=f"srun {SCRIPTS}/agent.sh </dev/null", nodes=2)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert job.codes == {0: 2, 1: 2}
    ours = [line for line in ended.output.splitlines() if line.startswith("hpclaunch:")]
    assert len(ours) == 1
    assert ours[0].endswith("- is a script on standard input, which is empty")


def test_logs_are_private_and_complete(good: Job) -> None:
    assert good.codes == {0: 0, 1: 0, 2: 0}
    logs = good.directory / "hpclaunch-logs" / f"{good.id}.0"
    for path in (logs, logs / "round-0"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for rank in range(6):
        text = (logs / "round-0" / f"rank-{rank}.out").read_text()
        assert text == f"rank {rank} is on n{1 + rank // 2}\n"
        assert (logs / "round-0" / f"rank-{rank}.err").read_text() == ""
    _check_journal(logs / "journal.jsonl", starts_with="Started", ends_with="Exit")
    for index in (1, 2):
        _check_journal(logs / f"journal-agent-{index}.jsonl", "Started", "Exit")


def _check_journal(path: Path, starts_with: str, ends_with: str) -> None:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert entries[0]["note"] == "core"
    assert entries[1]["event"] == starts_with
    assert [e["effect"] for e in entries if "effect" in e][-1] == ends_with
    times = [entry["now"] for entry in entries]
    assert times == sorted(times)


def test_a_good_job_prints_only_its_workers_output(good: Job) -> None:
    lines = sorted(good.output.splitlines())
    assert lines == [f"rank {rank} is on n{1 + rank // 2}" for rank in range(6)]


@pytest.mark.parametrize(
    ("nodes", "tasks", "srun", "hosts"),
    [
        (3, 1, "srun --nodes=2 --ntasks=2 --nodelist=n2,n3", ["n2", "n3"]),
        (2, 2, "srun", ["n1", "n1", "n2", "n2"]),
        (3, 2, "srun --nodes=2 --ntasks=3 --ntasks-per-node=2", ["n1", "n1", "n2"]),
    ],
    ids=["part of the job's nodes", "two tasks on every node", "fewer tasks on the last node"],
)
def test_ranks_are_those_of_the_step_not_of_the_job(
    launch: Launch, nodes: int, tasks: int, srun: str, hosts: list[str]
) -> None:
    options = [f"--ntasks-per-node={tasks}"]
    job = launch("--nproc", 1, SIMPLE, srun=f"{srun} hpclaunch", nodes=nodes, options=options)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    envs = job.environments()
    assert [env["hostname"] for env in envs.values()] == hosts
    assert {env["WORLD_SIZE"] for env in envs.values()} == {str(len(hosts))}
    assert [env["LOCAL_RANK"] for env in envs.values()] == [
        str(hosts[:rank].count(host)) for rank, host in enumerate(hosts)
    ]
    assert {env["MASTER_ADDR"] for env in envs.values()} == {f"10.78.0.1{hosts[0][1]}"}


def test_the_host_list_is_read_without_scontrol(launch: Launch, tmp_path: Path) -> None:
    """Most containers have no scontrol."""
    only = tmp_path / "bin"
    only.mkdir()
    srun = 'ln -s "$(command -v hpclaunch)" bin; srun env "PATH=$PWD/bin" hpclaunch'
    job = launch("--nproc", 1, SIMPLE, srun=srun, nodes=2, usual=True)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert [env["hostname"] for env in job.environments().values()] == ["n1", "n2"]
    assert {env["PATH"] for env in job.environments().values()} == {str(only)}
