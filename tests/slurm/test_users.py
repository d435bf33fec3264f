"""Jobs of an unprivileged user, and the secret that separates the users."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

import pytest

from hpclaunch.system.network import secret

from .cluster import Cluster, Job
from .conftest import SCRIPTS, Launch

SIMPLE = SCRIPTS / "simple.py"
USER = "nobody"


@pytest.fixture
def home(cluster: Cluster) -> Path:
    return cluster.directory_of(USER)


def test_a_job_of_an_unprivileged_user(launch: Launch, home: Path) -> None:
    job = launch("--nproc", 1, SIMPLE, user=USER, directory=home, nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert [env["hostname"] for env in job.environments().values()] == ["n1", "n2"]
    info = (home / "state" / "hpclaunch" / "secret").stat()
    assert info.st_uid == pwd.getpwnam(USER).pw_uid
    assert stat.S_IMODE(info.st_mode) == 0o600
    assert stat.S_IMODE((home / "state" / "hpclaunch").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("user", "env"),
    [
        ("root", {"HOME": "/sys/kernel", "XDG_STATE_HOME": ""}),
        (USER, {"HOME": "/", "XDG_STATE_HOME": ""}),
        (USER, {"XDG_STATE_HOME": "/nonexistent"}),
    ],
    ids=["not by root", "not by its user", "missing"],
)
def test_a_home_that_cannot_be_written(
    launch: Launch, home: Path, user: str, env: dict[str, str]
) -> None:
    """One error is printed for all agents, which says what to do."""
    job = launch("--nproc", 1, SIMPLE, user=user, directory=home, nodes=2, env=env)
    ended = job.wait()
    assert ended.code == 2, str(ended)
    assert job.codes == {0: 2, 1: 2}
    assert f"cannot use the secret file {env['XDG_STATE_HOME'] or env['HOME']}" in ended.output
    assert f"set {secret.VARIABLE} to a file that all nodes of the job share" in ended.output
    assert "Traceback" not in ended.output
    assert job.environments() == {}


def test_a_secret_that_is_not_private_is_refused(
    cluster: Cluster, launch: Launch, home: Path
) -> None:
    """Each secret is that of a step of the same job."""
    secrets = {
        "another": ("root", 0o644, "belongs to another user: remove it"),
        "open": (USER, 0o640, "is open to others (mode 0640), who could join your jobs: remove it"),
        "unreadable": ("root", 0o600, "Permission denied"),
    }
    steps = []
    for name, (owner, mode, _) in secrets.items():
        path = home / f"{name}.key"
        path.write_bytes(os.urandom(32))
        path.chmod(mode)
        os.chown(path, pwd.getpwnam(owner).pw_uid, -1)
        srun = f"{secret.VARIABLE}={path} srun {SCRIPTS}/agent.sh --nproc 1 {SIMPLE}"
        steps.append(f"mkdir {name}; cd {name}; {srun} >output 2>&1 || echo $? >>codes; cd ..")
    job = launch(srun="\n".join(steps), user=USER, directory=home, nodes=2)
    ended = job.wait()
    for name, (_, _, words) in secrets.items():
        step = Job(cluster, job.id, home / name, home / name / "output")
        assert step.codes == {0: 2, 1: 2}, str(ended)
        assert (home / name / "codes").read_text() == "2\n"
        assert "hpclaunch: error: " in step.output
        assert f"the secret file {home / name}.key" in step.output
        assert words in step.output
        assert "Traceback" not in step.output
        assert step.environments() == {}
