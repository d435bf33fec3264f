"""A job that fails: every agent ends with the exit code of the cause, which is also printed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import AGENT, SCRIPTS, WORKER, Launch

SIMPLE = SCRIPTS / "simple.py"


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [("kill", 137, "was killed by SIGKILL"), ("3", 3, "exited with code 3")],
)
def test_the_last_failure_is_the_exit_code(
    launch: Launch, tmp_path: Path, how: str, code: int, words: str
) -> None:
    (tmp_path / "now").touch()
    arguments = ("--until", "never", "--fail", f"1:now:{how}")
    job = launch("--nproc", 1, "--max-restarts", 1, SIMPLE, *arguments)
    ended = job.wait()
    assert ended.code == code, str(ended)
    assert job.codes == {0: code, 1: code, 2: code}
    assert f"rank 1 on n2 {words}; restart 1 of 1\n" in ended.output
    verdict = (
        f"rank 1 on n2 {words} in round 1, and the only restart is used up (exit code {code})\n"
    )
    assert f"hpclaunch: {verdict}" in ended.output
    assert "  the last lines of rank 1:\n    | last words of rank 1\n" in ended.output
    assert "as a consequence" not in ended.output
    for host in ("n2", "n3"):  # one line each, since their output may go elsewhere
        assert f"hpclaunch: {host}: {verdict}" in ended.output


def test_one_bad_exit_that_kills_the_step(launch: Launch, tmp_path: Path) -> None:
    """With KillOnBadExit=1, Slurm ends the other agents as soon as the first one has ended.

    The exit code and the last lines must nevertheless be complete.
    """
    (tmp_path / "now").touch()
    arguments = ("--until", "never", "--fail", "1:now:3")
    options = ("--nproc", 1, "--max-restarts", 0)
    job = launch(*options, SIMPLE, *arguments, srun="srun -K hpclaunch", nodes=2)
    ended = job.wait()
    assert ended.code == 3, str(ended)
    assert "  the last lines of rank 1:\n    | last words of rank 1\n" in ended.output


def test_a_later_failure_is_a_consequence(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Rank 2 fails after rank 1, but its agent learns of rank 1's failure only later.

    The agent on n3 is stopped meanwhile, so it cannot have asked its worker to end.
    """
    arguments = ("--until", "never", "--fail", "1:first:kill", "--fail", "2:second:9")
    job = launch("--nproc", 1, "--max-restarts", 0, SIMPLE, *arguments)
    job.wait_for_workers(3)
    agent = cluster.process(AGENT, host="n3")
    agent.kill(signal.SIGSTOP)
    # That no worker is left on n1 shows that the head has learned of the first failure.
    for file, host in (("first", "n1"), ("second", "n3")):
        (tmp_path / file).touch()
        eventually("its end", lambda h=host: not cluster.processes(WORKER, host=h))
    agent.kill(signal.SIGCONT)
    ended = job.wait()
    assert ended.code == 137, str(ended)
    assert job.codes == {0: 137, 1: 137, 2: 137}
    reason = "no restarts were allowed (--max-restarts 0)"
    assert f"rank 1 on n2 was killed by SIGKILL in round 0, and {reason}" in ended.output
    assert "  failed as a consequence: rank 2 on n3 exited with code 9\n" in ended.output
