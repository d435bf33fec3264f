"""Agents do not come at the same moment: whoever is first waits for the others."""

from __future__ import annotations

from .conftest import SCRIPTS, Launch

TELL = SCRIPTS / "tell.py"
# Seconds after which agents say for what they wait, and for how long they do at the end.
SOON = {"first_notice": 2.0, "goodbye": 3.0}


def late(who: str, seconds: int) -> str:
    return f"""srun bash -c '[ "$SLURM_NODEID" {who} ] && sleep {seconds}; hpclaunch "$@"' bash"""


def test_a_late_head(launch: Launch) -> None:
    """So late that the others say for whom they wait."""
    job = launch("--nproc", 1, TELL, srun=late("= 0", 5), timing=SOON)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert list(job.told()) == [0, 1, 2]
    for host in ("n2", "n3"):
        said = f"hpclaunch: {host} has waited 2 s for the head on n1: n1 (10.78.0.11) is up, but"
        assert said in ended.output


def test_late_members(launch: Launch) -> None:
    job = launch("--nproc", 1, TELL, srun=late("!= 0", 4))
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert list(job.told()) == [0, 1, 2]
    assert "hpclaunch:" not in ended.output


def test_one_task_of_several_on_each_node(launch: Launch) -> None:
    """Both nodes are there, and what is missing on them is said."""
    srun = """srun bash -c 'test $SLURM_LOCALID = 0 && hpclaunch "$@"' bash"""
    options = ["--ntasks-per-node=2"]
    job = launch("--nproc", 1, TELL, srun=srun, nodes=2, options=options, timing=SOON)
    job.says(
        "hpclaunch: waiting for n1, n2 (2 s so far); 2 of 4 agents are here; hpclaunch runs in 1 "
        "of 2 tasks on n1: start it in all of them, or ask Slurm for --ntasks-per-node=1"
    )
    job.cancel()
    job.wait()
