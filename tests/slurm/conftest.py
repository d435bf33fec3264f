"""Fixtures: the cluster for the session, and the check that a test leaves no process."""

from __future__ import annotations

import compileall
import os
import re
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
from .hosts import LIMIT

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SCRIPTS = HERE / "scripts"
NODES = 4
TEST_LIMIT = 4 * LIMIT  # seconds for a test and its fixtures
# Options of elastic jobs in which the hosts themselves confirm each death. No agent is lost because
# a busy machine keeps it silent.
PATIENT = ("--loss-timeout", 30)
# On a busy machine, agents may start long after one another: no line says so. The last lines of
# jobs are waited for.
CALM = {"first_notice": LIMIT, "agent.logs.LINES_LIMIT": 60.0}
# n2 is first in line, but on a busy machine it may not answer in time.
NEW_HEAD = re.compile(r"hpclaunch: the head on n1 was lost: n[23] leads now")
# Command lines, for `Cluster.processes`
AGENT = r"^\S*python\S* \S*/hpclaunch "
FORK_SERVER = r"hpclaunch\.worker\.fork_server"
WORKER = r"^\S*python\S* -u "
LIGHT_TORCH = {"PYTHONPATH": surroundings.LIGHT_TORCH}  # for jobs with the stand-in for torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(f"{HERE}/"):  # fast: there are thousands of items
            item.add_marker(pytest.mark.slurm)
            item.add_marker(pytest.mark.timeout(TEST_LIMIT))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the jobs of a failed test and of its fixtures."""
    report = yield
    if report.failed:
        values = list(getattr(item, "funcargs", {}).values())
        values += [getattr(value, "job", None) for value in values]
        values += [job for value in values if isinstance(value, Cluster) for job in value.submitted]
        for job in dict.fromkeys(value for value in values if isinstance(value, Job)):
            report.sections.append((f"job {job.id}", _text(job)))
    return report


def _text(job: Job) -> str:
    try:
        return str(job)
    except Exception as e:  # otherwise it would end the whole test run
        return f"cannot be shown: {e!r}"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with cluster_of(NODES) as it:
        yield it


@contextmanager
def cluster_of(nodes: int) -> Iterator[Cluster]:
    """Start a cluster with idle nodes n1, n2, ..., each with four GPUs that do not exist."""
    if reason := _why_not():
        if "HPCLAUNCH_SLURM_REQUIRED" in os.environ:
            pytest.fail(reason)
        pytest.skip(reason)
    remove_stale()
    package = Path(hpclaunch.__file__).parent
    prefixes = [Path(sys.base_prefix), Path(sys.prefix)]
    usual = os.umask(0o022)  # all users must be able to read the compiled files
    compileall.compile_dir(package, quiet=1)  # once, instead of in every agent
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
    return f"namespaces are not available: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture(autouse=True)
def no_process_is_left(cluster: Cluster) -> Iterator[None]:
    with own_jobs(cluster):
        yield


@contextmanager
def own_jobs(cluster: Cluster) -> Iterator[None]:
    """Wait for idle nodes; at the end, fail if a process of a job is left."""
    cluster.submitted.clear()
    # Jobs that are completing would still occupy the first nodes.
    with suppress(AssertionError):
        eventually("idle nodes", cluster.is_idle, timeout=120)
    try:
        yield
    finally:
        for job in cluster.jobs():
            cluster.on("ctl", ["scancel", job])
        try:
            eventually("nodes without processes of jobs", lambda: not cluster.processes())
        except AssertionError as e:
            left = cluster.processes()
            for process in left:
                process.kill()
            raise AssertionError(f"{e}: {left}") from None


@pytest.fixture
def light_torch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all jobs of a test use the stand-in for torch."""
    for name, value in LIGHT_TORCH.items():
        monkeypatch.setitem(cluster.env, name, value)


def with_spare(node: int) -> str:
    """Return an srun in which the node of this number is the spare.

    Its task begins after the first round has begun on the others.
    """
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
        usual: bool = ...,
        **options: Any,
    ) -> Job: ...


@pytest.fixture
def launch(cluster: Cluster, tmp_path: Path) -> Launch:
    """Submit a job that starts hpclaunch with `args` on all nodes, in the test's own directory.

    `srun` is the command before `args`; by default it also records exit codes for `Job.codes`.
    `after` is the rest of the job script. `timing` overrides time-outs. `usual`: start the usual
    program, whose time-outs are those of users.
    """

    def launch(
        *args: object,
        srun: str = f"srun {SCRIPTS}/agent.sh",
        after: str = "",
        timing: Mapping[str, float] = {},
        usual: bool = False,
        **options: Any,
    ) -> Job:
        command = f"{srun} {shlex.join(map(str, args))}\n{after}"
        if not usual:
            variables = timed.variables(cluster.env["PATH"], **(CALM | dict(timing)))
            options["env"] = variables | options.get("env", {})
        return cluster.sbatch(command, **{"directory": tmp_path} | options)

    return launch
