"""Several machines without Slurm, of which the first one is lost: it has led the others."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from launching import LIMIT, fork_server, free_port, script, until
from launching import hpclaunch as command
from machines import MALFORMED, QUICK, is_open, start

from surroundings import talker

pytestmark = pytest.mark.starts

WAIT = """
import os, time
open(f"of-{os.environ['WORLD_SIZE']}-{os.environ['RANK']}", "w").close()
print("here", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
"""


MEET = f"""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
{WAIT}
dist.destroy_process_group()
"""


def three_machines(tmp_path, nnodes, *, numbered, options=(), text=WAIT, timing=None):
    """Return three agents, once they train, and the arguments of the first one, the head."""
    common = [f"--nnodes={nnodes}", "--nproc-per-node=1", "--wait-for-nodes=3", *options]
    common += ["--max-restarts=0", f"--rdzv-endpoint=127.0.0.1:{(port := free_port())}"]
    common += [] if numbered else ["--rdzv-backend=c10d"]
    lines = [
        [*common, *([f"--node-rank={rank}"] if numbered else []), script(tmp_path, text)]
        for rank in range(3)
    ]
    agents = [start(*lines[0], cwd=tmp_path, timing=timing)]
    until(lambda: is_open(port))
    agents += [start(*line, cwd=tmp_path, timing=timing) for line in lines[1:]]
    until(lambda: len(list(tmp_path.glob("of-3-*"))) == 3)
    return agents, lines[0]


def knows_goodput(leader, directory):
    """Return whether the agent leads, and has read the files of the head before it."""
    launches = json.loads(command("status", "--json", cwd=directory).stdout or "[]")
    jobs = [launch["job"] for launch in launches if launch["pid"] == leader.pid]
    return any(job["goodput"] is not None for job in jobs)


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "in any order"])
@pytest.mark.parametrize("nnodes", ["2:3", "1:3"])
def test_machines_lose_their_head(tmp_path, nnodes, numbered):
    """They go on where no two groups of them could be large enough. Their logs are one launch's."""
    shared = ("--log-dir=logs", "--notify=cat >> told")
    text = MEET if numbered and nnodes == "2:3" else WAIT
    agents, _ = three_machines(tmp_path, nnodes, numbered=numbered, options=shared, text=text)
    until(lambda: any(tmp_path.glob("logs/ledger-0-*")))  # from which the next head learns
    agents[0].kill()
    agents[0].communicate()
    if nnodes == "2:3":
        until(lambda: len(list(tmp_path.glob("of-2-*"))) == 2)
        until(lambda: any(knows_goodput(agent, tmp_path) for agent in agents[1:]))
    (tmp_path / "go").touch()
    ended = [(agent.communicate(timeout=LIMIT)[1], agent.returncode) for agent in agents[1:]]
    if nnodes == "2:3":
        assert [code for _, code in ended] == [0, 0]
        assert "the head on 127.0.0.1 was lost: " in ended[0][0] + ended[1][0]
        report = json.loads(command("report", "logs", "--json", cwd=tmp_path).stdout)
        assert len(report["launches"]) == 1
        said = command("logs", "logs", cwd=tmp_path).stdout
        assert re.search(r"^-- .* round 2, .*; round 0 ended: node lost$", said, re.MULTILINE)
        assert [(end["round"], end["cause"]) for end in report["ends"]] == [(0, "node lost")]
        lasted = report["seats"] * (report["end"] - report["begin"])
        assert report["total"] == pytest.approx(lasted, rel=0.01)
        over = json.loads((tmp_path / "told").read_text().splitlines()[-1])
        assert over["goodput"] == pytest.approx(report["goodput"], abs=0.05)
    else:
        assert [code for _, code in ended] == [1, 1]
        assert "the head on 127.0.0.1 was lost" in ended[0][0]


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "in any order"])
def test_the_first_machine_is_taken_back(tmp_path, numbered):
    """It is started anew while the others go on, as by a loop, and begins nothing of its own."""
    grow = ("--grow=now",)
    agents, line = three_machines(tmp_path, "2:3", numbered=numbered, options=grow, text=MEET)
    agents[0].kill()
    agents[0].communicate()
    until(lambda: len(list(tmp_path.glob("of-2-*"))) == 2)
    for file in tmp_path.glob("of-3-*"):
        file.unlink()
    agents[0] = start(*line, cwd=tmp_path)
    until(lambda: len(list(tmp_path.glob("of-3-*"))) == 3)
    (tmp_path / "go").touch()
    ended = [(agent.communicate(timeout=LIMIT)[1], agent.returncode) for agent in agents]
    assert [code for _, code in ended] == [0, 0, 0]
    assert re.search(r"leads no more: .* does", ended[0][0])


@pytest.mark.parametrize("words", [b"", MALFORMED], ids=["silent", "malformed"])
def test_a_stranger_takes_the_port_of_a_dead_machine(tmp_path, words):
    """No death notice is posted there. The loss timeout holds all the same."""
    agents, line = three_machines(tmp_path, "2:3", numbered=True, timing=QUICK)
    (port,) = (int(word.rpartition(":")[2]) for word in line if "--rdzv-endpoint" in str(word))
    agents[0].send_signal(signal.SIGSTOP)
    os.kill(fork_server(agents[0])[0], signal.SIGKILL)
    agents[0].kill()
    with talker(words, port) as same:
        assert same == port
        until(lambda: len(list(tmp_path.glob("of-2-*"))) == 2)
    agents[0].communicate()
    (tmp_path / "go").touch()
    ended = [(agent.communicate(timeout=LIMIT)[1], agent.returncode) for agent in agents[1:]]
    assert [code for _, code in ended] == [0, 0]
    said = ended[0][0] + ended[1][0]
    assert "the head on 127.0.0.1 was lost: " in said
    assert "it has died" not in said
    assert "Traceback" not in said
