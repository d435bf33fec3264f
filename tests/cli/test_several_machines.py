"""Several machines without Slurm; here they are agents of one, and meet by torchrun's options."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest
from launching import crowd, fork_server, free_port, script, until
from launching import hpclaunch as command
from launching import start as start_agent

import hpclaunch
from hpclaunch.system.network.wire import VERSION
from surroundings import entered, environment, talker

pytestmark = pytest.mark.starts

TRAIN = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank, restarts = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
if rank == 1 and restarts == "0":
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
names = ("LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE")
print(rank, int(total), restarts, *(os.environ[n] for n in names))
dist.destroy_process_group()
"""


SAVE = """
import os, sys, torch
names = ("RANK", "TORCHELASTIC_RUN_ID", "HPCLAUNCH_CHECKPOINT")
rank, run, path = (os.environ[name] for name in names)
if path:
    sys.stdout.buffer.write(os.fsencode(f"{rank} {run} {path}\\n"))
elif rank == "0":
    torch.save({}, f"{run}.tmp")
    os.rename(f"{run}.tmp", f"{run}.pt")
    sys.exit(3)
"""


WAIT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
open(f"of-{dist.get_world_size()}-{dist.get_rank()}", "w").close()
print("here", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
dist.destroy_process_group()
"""


def start(*args, cwd, errors=None, **changes):
    """With a secret of the test's own."""
    environ = environment(**{"HPCLAUNCH_SECRET_FILE": cwd / "secret"} | changes)
    return start_agent(*args, cwd=cwd, environ=environ, errors=errors)


def finish(agents):
    done = []
    for agent in agents:
        out, err = agent.communicate(timeout=120)
        assert agent.returncode == 0, out + err
        done += out.splitlines()
    return sorted(done)


def test_numbered_machines_lose_a_worker(tmp_path):
    path = script(tmp_path, TRAIN)
    common = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1"]
    common.append(f"--master_port={free_port()}")
    agents = [start(*common, f"--node_rank={r}", path, cwd=tmp_path) for r in (1, 0)]
    assert finish(agents) == ["0 2 1 0 0 none 2", "1 2 1 0 1 none 2"]


@pytest.mark.skipif("descriptors" in entered, reason="no process may have as many connections")
def test_strangers_crowd_at_the_port(tmp_path):
    """There are more of them than a shell lets a process have open files. A member joins after
    they have come, and there is a restart while they go on coming."""
    path = script(tmp_path, TRAIN)
    common = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1"]
    common += [f"--master_port={(port := free_port())}", "--rdzv-conf=join_timeout=25"]
    with crowd(port, 1200) as strangers:
        agents = [start(*common, "--node_rank=0", path, cwd=tmp_path)]
        assert strangers.stdout.readline() == "held\n"
        agents.append(start(*common, "--node_rank=1", path, cwd=tmp_path))
        assert finish(agents) == ["0 2 1 0 0 none 2", "1 2 1 0 1 none 2"]
        assert strangers.poll() is None


MALFORMED = b"hpclaunch: dead: --5 x y\n"


def test_a_stranger_has_the_port_already(tmp_path):
    """What it says is not believed, and the head takes another of its ports."""
    with talker(MALFORMED) as port:
        common = ["--nnodes=2", "--nproc=1", "--rdzv-backend=c10d"]
        common += [f"--rdzv-endpoint=localhost:{port}", script(tmp_path, TRAIN)]
        agents = [start(*common, cwd=tmp_path) for _ in range(2)]
        assert finish(agents) == [f"{rank} 2 1 0 {rank} none 2" for rank in range(2)]


@pytest.mark.parametrize("words", [b"", MALFORMED], ids=["silent", "malformed"])
def test_a_stranger_takes_the_port_of_a_dead_machine(tmp_path, words):
    """No death notice is posted there. The loss timeout holds all the same."""
    agents, line = three_machines(tmp_path, "2:3", numbered=True)
    (port,) = (int(word.rpartition(":")[2]) for word in line if "--rdzv-endpoint" in str(word))
    agents[0].send_signal(signal.SIGSTOP)
    os.kill(fork_server(agents[0])[0], signal.SIGKILL)
    agents[0].kill()
    with talker(words, port) as same:
        assert same == port
        until(lambda: len(list(tmp_path.glob("of-2-*"))) == 2)
    agents[0].communicate()
    (tmp_path / "go").touch()
    ended = [(agent.communicate(timeout=60)[1], agent.returncode) for agent in agents[1:]]
    assert [code for _, code in ended] == [0, 0]
    said = ended[0][0] + ended[1][0]
    assert "the head on 127.0.0.1 was lost: " in said
    assert "it has died" not in said
    assert "Traceback" not in said


def test_machines_that_come_in_any_order(tmp_path):
    path = script(tmp_path, TRAIN)
    common = ["--nnodes=1:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=77"]
    common.append(f"--rdzv-endpoint=localhost:{free_port()}")
    agents = [start(*common, path, cwd=tmp_path) for _ in range(3)]
    assert finish(agents) == [f"{r} 3 1 0 {r} 77 3" for r in range(3)]


def three_machines(tmp_path, nnodes, *, numbered, options=()):
    """Three of them once they train, and how the first one was started: that is the head."""
    common = [f"--nnodes={nnodes}", "--nproc-per-node=1", "--wait-for-nodes=3", *options]
    common += ["--max-restarts=0", f"--rdzv-endpoint=127.0.0.1:{(port := free_port())}"]
    common += [] if numbered else ["--rdzv-backend=c10d"]
    lines = [
        [*common, *([f"--node-rank={rank}"] if numbered else []), script(tmp_path, WAIT)]
        for rank in range(3)
    ]
    agents = [start(*lines[0], cwd=tmp_path)]
    until(lambda: is_open(port))
    agents += [start(*line, cwd=tmp_path) for line in lines[1:]]
    until(lambda: len(list(tmp_path.glob("of-3-*"))) == 3)
    return agents, lines[0]


def knows_goodput(leader, directory):
    """Whether the agent leads, and has read what the head before it wrote."""
    launches = json.loads(command("status", "--json", cwd=directory).stdout or "[]")
    jobs = [launch["job"] for launch in launches if launch["pid"] == leader.pid]
    return any(job["goodput"] is not None for job in jobs)


def is_open(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "in any order"])
@pytest.mark.parametrize("nnodes", ["2:3", "1:3"])
def test_machines_lose_their_head(tmp_path, nnodes, numbered):
    """They go on where no two groups of them could be large enough. Their logs are one launch's."""
    shared = ("--log-dir=logs", "--notify=cat >> told")
    agents, _ = three_machines(tmp_path, nnodes, numbered=numbered, options=shared)
    agents[0].kill()
    agents[0].communicate()
    if nnodes == "2:3":
        until(lambda: len(list(tmp_path.glob("of-2-*"))) == 2)
        until(lambda: any(knows_goodput(agent, tmp_path) for agent in agents[1:]))
    (tmp_path / "go").touch()
    ended = [(agent.communicate(timeout=60)[1], agent.returncode) for agent in agents[1:]]
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
    agents, line = three_machines(tmp_path, "2:3", numbered=numbered, options=grow)
    agents[0].kill()
    agents[0].communicate()
    until(lambda: len(list(tmp_path.glob("of-2-*"))) == 2)
    for file in tmp_path.glob("of-3-*"):
        file.unlink()
    agents[0] = start(*line, cwd=tmp_path)
    until(lambda: len(list(tmp_path.glob("of-3-*"))) == 3)
    (tmp_path / "go").touch()
    ended = [(agent.communicate(timeout=60)[1], agent.returncode) for agent in agents]
    assert [code for _, code in ended] == [0, 0, 0]
    assert re.search(r"leads no more: .* does", ended[0][0])


OLD_NAME = os.fsdecode(b"gr\xf6\xdfe")  # in Latin-1


def test_names_in_another_encoding(tmp_path):
    """The checkpoint that all resume from has a name which is not UTF-8, and so has all else."""
    directory = tmp_path / OLD_NAME
    directory.mkdir()
    path = script(directory, SAVE, OLD_NAME)
    common = ["--nnodes=2", "--nproc=1", "--rdzv-backend=c10d", f"--rdzv-id={OLD_NAME}"]
    common += [f"--rdzv-endpoint=localhost:{free_port()}", f"--checkpoint-dir={directory}"]
    common += [f"--log-dir={directory}/logs", path]
    agents = [start(*common, cwd=directory, errors="surrogateescape") for _ in range(2)]
    point = directory / f"{OLD_NAME}.pt"
    assert finish(agents) == [f"{rank} {OLD_NAME} {point}" for rank in range(2)]
    logs = {log.name for log in (directory / "logs" / "round-1").iterdir()}
    assert {"rank-0.out", "rank-1.out"} <= logs  # both agents are of one launch


def test_a_machine_without_the_script_names_it(tmp_path):
    common = ["--nnodes=2", "--nproc=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    agents = [
        start(*common, f"--node-rank={rank}", name, cwd=tmp_path, errors="surrogateescape")
        for rank, name in enumerate((script(tmp_path, ""), OLD_NAME))
    ]
    head, member = (agent.communicate(timeout=60)[1] for agent in agents)
    assert [agent.returncode for agent in agents] == [2, 2]
    assert f"no script {OLD_NAME} in {tmp_path}\n" in head
    assert "Traceback" not in head + member


def test_a_machine_with_another_secret_is_told_why(tmp_path):
    """And the head hears of it, too."""
    common = ["--nnodes=2", "--nproc=1", "--rdzv-backend=c10d", "--rdzv-conf=join_timeout=12"]
    common.append(f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    path = script(tmp_path, "")
    agents = []
    for name, is_host in (("a", "1"), ("b", "0")):
        conf = f"--rdzv-conf=join_timeout=12,is_host={is_host}"
        own = tmp_path / name
        agents.append(start(*common, conf, path, cwd=tmp_path, HPCLAUNCH_SECRET_FILE=own))
    head, member = (agent.communicate(timeout=60)[1] for agent in agents)
    assert [agent.returncode for agent in agents] == [1, 1]
    waiting = r"waiting for machine 1 \(1\d s so far\); 1 of 2 agents .* did not know this"
    assert re.search(waiting, head)
    theirs = r"does not know our secret \(here [0-9a-f]{8}\)"
    assert re.search(rf"waited 1\d s for the head on 127.0.0.1: .*{theirs}", member)
    assert "Traceback" not in head + member


def test_nobody_at_the_endpoint(tmp_path):
    """What was found out is part of the last word."""
    args = [
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=127.0.0.1",
        f"--master-port={free_port()}",
    ]
    args += ["--nproc=1", "--rdzv-conf=join_timeout=11", script(tmp_path, "")]
    agent = start(*args, cwd=tmp_path)
    _, err = agent.communicate(timeout=60)
    assert agent.returncode == 1
    assert "did not answer" in err
    assert "nothing listens there" in err.splitlines()[-1]


def test_an_address_of_another_machine(tmp_path):
    args = ["--nnodes=2", "--node-rank=0", "--nproc=1", "--local-addr=192.0.2.1"]
    agent = start(*args, script(tmp_path, ""), cwd=tmp_path)
    _, err = agent.communicate(timeout=60)
    assert agent.returncode == 2
    assert "--local-addr 192.0.2.1 is no address of this host" in err


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_a_head_that_has_no_address(tmp_path, host):
    args = ["--nnodes=2", "--node-rank=1", "--nproc=1", f"--master-addr={host}"]
    agent = start(*args, script(tmp_path, ""), cwd=tmp_path)
    _, err = agent.communicate(timeout=60)
    assert agent.returncode == 2
    assert f"no address for {host}" in err
    assert "Traceback" not in err


def test_two_versions_do_not_work_together(tmp_path):
    """Each says so; neither waits for what cannot come."""
    other = tmp_path / "other"
    shutil.copytree(Path(hpclaunch.__file__).parent, other / "hpclaunch")
    wire = other / "hpclaunch/system/network/wire.py"
    wire.write_text(wire.read_text().replace(f"VERSION = {VERSION}", "VERSION = 999"))
    common = ["--nnodes=2", "--nproc=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    path = script(tmp_path, "")
    head = start(*common, "--node-rank=0", path, cwd=tmp_path)
    member = start(*common, "--node-rank=1", path, cwd=tmp_path, PYTHONPATH=other)
    for agent in (head, member):
        _, err = agent.communicate(timeout=60)
        assert agent.returncode == 1
        assert "one speaks version" in err
        assert "install the same hpclaunch on all nodes" in err
        assert "Traceback" not in err
