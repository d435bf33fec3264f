"""The job scripts that `hpclaunch sbatch` prints, on a real cluster."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from hpclaunch.cli import profiles

from .cluster import CONTROLLER, Cluster, Job
from .conftest import SCRIPTS

HOSTILE = ["a b", "it's", '"', "$HOME", "`id`", "a\n#SBATCH --nodes=9", "*", "\\", "", "--nodes"]


class User:
    """A user at the prompt of a login node, in a directory with `words.py`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        shutil.copy(SCRIPTS / "words.py", directory)

    def types(self, *words: str, stdin: str = "") -> str:
        return self.cluster.controller.run(
            words,
            env=self.cluster.environment(self.directory),
            cwd=self.directory,
            stdin=stdin,
        )

    def sees(self, id_: str) -> list[dict[str, object]]:
        """Wait for the end of a job; return what its ranks printed, by rank."""
        output = self.directory / f"slurm-{id_.strip()}.out"
        ended = Job(self.cluster, int(id_), self.directory, output).wait()
        assert ended.code == 0, str(ended)
        return printed(ended.output)


def printed(output: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda worker: int(worker["RANK"]))


@pytest.fixture
def user(cluster: Cluster, tmp_path: Path) -> User:
    return User(cluster, tmp_path)


def test_a_printed_script_runs_with_all_options(user: User) -> None:
    options = ["--gpus-per-node=2", "--cpus-per-task=2", "--mem=1G", "--time=5", "--partition=main"]
    options += ["--nnodes=1:2", "--signal=USR1@60", "--requeue", "--account=me"]
    script = user.types("hpclaunch", "sbatch", *options, "--nproc", "1", "words.py", *HOSTILE)
    workers = user.sees(user.types("sbatch", "--parsable", stdin=script))
    assert workers == [
        {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "SLURM_CPUS_PER_TASK": "2",
            "SLURM_GPUS_ON_NODE": "2",
            "args": HOSTILE,
        }
        for rank in range(2)
    ]


def test_submit(user: User) -> None:
    options = ["--nodes", "2", "--time", "5", "--submit"]
    id_ = user.types("hpclaunch", "sbatch", *options, "--", "words.py", "--epochs", "3")
    assert id_.strip().isdecimal()
    assert [worker["args"] for worker in user.sees(id_)] == [["--epochs", "3"]] * 2


def test_a_refusal_by_slurm_is_one_line(user: User) -> None:
    with pytest.raises(AssertionError, match="ended with 2: hpclaunch: error: sbatch did not take"):
        user.types("hpclaunch", "sbatch", "--partition", "none", "--submit", "words.py")


def test_interactive(user: User) -> None:
    options = ["--nodes", "2", "--cpus-per-task", "2", "--interactive"]
    salloc, *typed = user.types("hpclaunch", "sbatch", *options, "words.py").splitlines()
    output = user.types(*shlex.split(salloc), "bash", stdin="\n".join([*typed, "exit", ""]))
    assert [worker["SLURM_CPUS_PER_TASK"] for worker in printed(output)] == ["2", "2"]


@pytest.mark.parametrize("site", profiles.known())
def test_slurm_accepts_the_script_of_a_site(user: User, site: str) -> None:
    """Partition, GPUs, CPUs and memory are replaced by those of this cluster."""
    options = ["--profile", site, "--account", "me", "--nodes", "2", "--nnodes", "1:2"]
    options += ["--partition", "any"]  # the profile's may have fewer GPUs
    script = user.types("hpclaunch", "sbatch", *options, "--signal", "TERM@60", "words.py")
    here = ["--partition=main", "--cpus-per-task=2", "--mem=1G"]
    here.append("--gpus-per-node=4" if "--gpus-per-node" in script else "--gres=gpu:4")
    text = user.cluster.on(CONTROLLER, ["sbatch", "--test-only", *here], stdin=script)
    assert "to start at" in text
    assert "using 4 processors on nodes n[1-2] in partition main" in text
