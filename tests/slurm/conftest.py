"""The cluster for the session, and what every test owes: that nothing is left running."""

from __future__ import annotations

import compileall
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

import hpclaunch
import surroundings
import timed

from .cluster import TOOLS, Cluster, Job, eventually, remove_stale

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SCRIPTS = HERE / "scripts"
NODES = 4
# Command lines, for `Cluster.processes`
AGENT = r"^\S*python\S* \S*/hpclaunch "
FORK_SERVER = r"hpclaunch\.worker\.fork_server"
WORKER = r"^\S*python\S* -u "
LIGHT_TORCH = {"PYTHONPATH": surroundings.LIGHT_TORCH}  # of jobs in which torch weighs nothing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(f"{HERE}/"):  # for thousands of items
            item.add_marker(pytest.mark.slurm)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the jobs of a failing test, and those of its fixtures."""
    report = yield
    if report.failed:
        values = list(getattr(item, "funcargs", {}).values())
        values += [getattr(value, "job", None) for value in values]
        values += [job for value in values if isinstance(value, Cluster) for job in value.submitted]
        for job in dict.fromkeys(value for value in values if isinstance(value, Job)):
            report.sections.append((f"job {job.id}", _shown(job)))
    return report


def _shown(job: Job) -> str:
    try:
        return str(job)
    except Exception as e:  # it would end the whole run
        return f"cannot be shown: {e!r}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with cluster_of(NODES) as it:
        yield it


@contextmanager
def cluster_of(nodes: int) -> Iterator[Cluster]:
    """Idle nodes, n1, n2 and so on, with four GPUs each that are none."""
    if reason := _why_not():
        if "HPCLAUNCH_SLURM_REQUIRED" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    remove_stale()
    package = Path(hpclaunch.__file__).parent
    prefixes = [Path(sys.base_prefix), Path(sys.prefix)]
    usual = os.umask(0o022)  # every user reads what is compiled
    compileall.compile_dir(package, quiet=1)  # once, and not in every agent
    os.umask(usual)
    it = Cluster(open_to_all=[*prefixes, package.parent, ROOT])
    try:
        it.up(nodes=nodes, gpus=4, cpus=8)
        yield it
    finally:
        it.down()


def _why_not() -> str:
    if os.geteuid():
        return "a Slurm cluster needs root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"a Slurm cluster needs {', '.join(missing)}"
    trial = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(trial, capture_output=True, text=True)
    return f"no namespaces for hosts here: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture(autouse=True)
def nothing_left(cluster: Cluster) -> Iterator[None]:
    with own_jobs(cluster):
        yield


@contextmanager
def own_jobs(cluster: Cluster) -> Iterator[None]:
    """Begin on idle nodes, and leave no job, and no agent, fork server, store or worker."""
    cluster.submitted.clear()
    # Jobs that are just completing would keep the first nodes from this test.
    with suppress(AssertionError):
        eventually("idle nodes", cluster.is_idle, timeout=5)
    try:
        yield
    finally:
        for job in cluster.jobs():
            cluster.on("ctl", ["scancel", job])
        try:
            eventually("nodes with nothing of ours", lambda: not cluster.processes())
        except AssertionError as e:
            left = cluster.processes()
            for process in left:
                process.kill()
            raise AssertionError(f"{e}: {left}") from None


@pytest.fixture
def light_torch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all jobs of a test find the torch that weighs nothing."""
    for name, value in LIGHT_TORCH.items():
        monkeypatch.setitem(cluster.env, name, value)


def with_spare(node: int) -> str:
    """Return an srun in which the node of this number is the spare: its task begins when the others
    have begun the first round."""
    begun = "-e hpclaunch-logs/*/round-0/rank-0.out"
    wait = f'while [ "$SLURM_NODEID" = {node} ] && ! [ {begun} ]; do sleep 0.1; done'
    return f"srun bash -c '{wait}; exec hpclaunch \"$@\"' bash"


class Launch(Protocol):
    def __call__(
        self,
        *args: object,
        srun: str = ...,
        after: str = ...,
        timing: Mapping[str, float] = ...,
        **options: Any,
    ) -> Job: ...


@pytest.fixture
def launch(cluster: Cluster, tmp_path: Path) -> Launch:
    """Submit a job that starts hpclaunch with `args` on all nodes, in the test's own directory.

    The agents' exit codes are kept for `Job.codes`; `srun` may be another command before theirs,
    `after` is what the job script does next, and `timing` has other time-outs than the usual.
    """

    def launch(
        *args: object,
        srun: str = f"srun {SCRIPTS}/agent.sh",
        after: str = "",
        timing: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Job:
        command = f"{srun} {shlex.join(map(str, args))}\n{after}"
        if timing:
            options["env"] = timed.variables(cluster.env["PATH"], **timing) | options.get("env", {})
        return cluster.sbatch(command, **{"directory": tmp_path} | options)

    return launch
