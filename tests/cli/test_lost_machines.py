"""Several machines without Slurm, of which some are lost. The first one leads."""

from __future__ import annotations

import os
import signal

import pytest
from launching import LIMIT, fork_server, script, until
from machines import MALFORMED, QUICK, is_open, start

from surroundings import free_port, talker

pytestmark = pytest.mark.starts

WAIT = """
import os, time
open(f"of-{os.environ['WORLD_SIZE']}-{os.environ['RANK']}", "w").close()
print("here", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
"""


def three_machines(tmp_path, *, numbered, **more):
    """Return three agents, the first one first, once they train, and the port of that one."""
    common = ["--nnodes=1:3", "--nproc-per-node=1", "--wait-for-nodes=3", "--max-restarts=0"]
    common += [f"--rdzv-endpoint=127.0.0.1:{(port := free_port())}"]
    common += [] if numbered else ["--rdzv-backend=c10d"]
    lines = [
        [*common, *([f"--node-rank={rank}"] if numbered else []), script(tmp_path, WAIT)]
        for rank in range(3)
    ]
    agents = [start(*lines[0], cwd=tmp_path, **more)]
    until(lambda: is_open(port))
    agents += [start(*line, cwd=tmp_path, **more) for line in lines[1:]]
    until(lambda: len(list(tmp_path.glob("of-3-*"))) == 3)
    return agents, port


ENDS = "Without Slurm, a job ends with its first machine"


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "in any order"])
def test_the_job_ends_with_its_first_machine(tmp_path, numbered):
    """The job ends as under torchrun, and each of the other machines says why."""
    agents, _ = three_machines(tmp_path, numbered=numbered)
    agents[0].kill()
    agents[0].communicate()
    for agent in agents[1:]:
        _, said = agent.communicate(timeout=LIMIT)
        assert agent.returncode == 1
        lost = "the head on 127.0.0.1 was lost: its host confirmed that it exited"
        assert f"{lost}. {ENDS}" in said.splitlines()[-1]


def test_the_first_machine_continues_without_the_others(tmp_path):
    """Nobody else can lead, so it needs no half of them."""
    agents, _ = three_machines(tmp_path, numbered=True)
    for agent in agents[1:]:
        agent.kill()
        agent.communicate()
    until(lambda: (tmp_path / "of-1-0").exists())
    (tmp_path / "go").touch()
    _, said = agents[0].communicate(timeout=LIMIT)
    assert agents[0].returncode == 0, said


@pytest.mark.parametrize("words", [b"", MALFORMED], ids=["silent", "malformed"])
def test_a_stranger_takes_the_port_of_a_dead_machine(tmp_path, words):
    """No death notice is posted there. The loss timeout holds all the same."""
    agents, port = three_machines(tmp_path, numbered=True, timing=QUICK, loss=6)
    agents[0].send_signal(signal.SIGSTOP)
    os.kill(fork_server(agents[0])[0], signal.SIGKILL)
    agents[0].kill()
    with talker(words, port) as same:
        assert same == port
        ended = [(agent.communicate(timeout=LIMIT)[1], agent.returncode) for agent in agents[1:]]
    agents[0].communicate()
    assert [code for _, code in ended] == [1, 1]
    for said, _ in ended:
        assert "the head on 127.0.0.1 was lost: " in said
        assert "confirmed that it exited" not in said
        assert ENDS in said
        assert "Traceback" not in said
