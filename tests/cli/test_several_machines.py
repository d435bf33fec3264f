"""Several machines without Slurm; here they are agents of one, and meet by torchrun's options."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from launching import LIMIT, crowd, end, said, script, until
from machines import MALFORMED, QUICK, is_open, start

import hpclaunch
from hpclaunch.system.network.wire import VERSION
from surroundings import LIGHT_TORCH, STAND_INS, entered, free_port, talker

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


LIGHT = """
import os, signal, time
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
if restarts == "0":
    os.kill(os.getpid(), signal.SIGKILL) if rank == "1" else time.sleep(600)
names = ("LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE")
print(rank, os.environ["WORLD_SIZE"], restarts, *(os.environ[n] for n in names))
"""


SAVE = """
import os, saving, sys
names = ("RANK", "TORCHELASTIC_RUN_ID", "HPCLAUNCH_CHECKPOINT")
rank, run, path = (os.environ[name] for name in names)
if path:
    sys.stdout.buffer.write(os.fsencode(f"{rank} {run} {path}\\n"))
elif rank == "0":
    saving.save({}, f"{run}.tmp")
    os.rename(f"{run}.tmp", f"{run}.pt")
    sys.exit(3)
"""


def finish(agents):
    done = []
    for agent in agents:
        out, err = agent.communicate(timeout=LIMIT)
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
    """More strangers connect than a shell allows open files. A member joins after them,
    and the job restarts while more of them connect."""
    path = script(tmp_path, LIGHT)
    common = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1"]
    common += [f"--master_port={(port := free_port())}", "--rdzv-conf=join_timeout=100"]
    with crowd(port, 1200) as strangers:
        agents = [start(*common, "--node_rank=0", path, cwd=tmp_path)]
        assert strangers.stdout.readline() == "held\n"
        agents.append(start(*common, "--node_rank=1", path, cwd=tmp_path))
        assert finish(agents) == ["0 2 1 0 0 none 2", "1 2 1 0 1 none 2"]
        assert strangers.poll() is None


def test_a_stranger_has_the_port_already(tmp_path):
    """The stranger's answer is not believed, and the head takes another of its ports."""
    with talker(MALFORMED) as port:
        common = ["--nnodes=2", "--nproc=1", "--rdzv-backend=c10d"]
        common += [f"--rdzv-endpoint=localhost:{port}", script(tmp_path, LIGHT)]
        agents = [start(*common, cwd=tmp_path) for _ in range(2)]
        assert finish(agents) == [f"{rank} 2 1 0 {rank} none 2" for rank in range(2)]


def test_machines_that_come_in_any_order(tmp_path):
    path = script(tmp_path, LIGHT)
    common = ["--nnodes=1:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=77"]
    common.append(f"--rdzv-endpoint=localhost:{free_port()}")
    agents = [start(*common, path, cwd=tmp_path) for _ in range(3)]
    assert finish(agents) == [f"{r} 3 1 0 {r} 77 3" for r in range(3)]


OLD_NAME = os.fsdecode(b"gr\xf6\xdfe")  # in Latin-1


def test_names_in_another_encoding(tmp_path):
    """The checkpoint that all resume from has a name which is not UTF-8, and so has all else."""
    directory = tmp_path / OLD_NAME
    directory.mkdir()
    path = script(directory, SAVE, OLD_NAME)
    common = ["--nnodes=2", "--nproc=1", "--rdzv-backend=c10d", f"--rdzv-id={OLD_NAME}"]
    common += [f"--rdzv-endpoint=localhost:{free_port()}", f"--checkpoint-dir={directory}"]
    common += [f"--log-dir={directory}/logs", path]
    how = {"errors": "surrogateescape", "PYTHONPATH": f"{STAND_INS}:{LIGHT_TORCH}"}
    agents = [start(*common, cwd=directory, **how) for _ in range(2)]
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
    head, member = (agent.communicate(timeout=LIMIT)[1] for agent in agents)
    assert [agent.returncode for agent in agents] == [2, 2]
    assert f"no script {OLD_NAME} in {tmp_path}\n" in head
    assert "Traceback" not in head + member


def test_a_machine_with_another_secret_learns_why(tmp_path):
    """The head reports the other secret, too."""
    common = ["--nnodes=2", "--nproc=1", "--rdzv-backend=c10d"]
    common.append(f"--rdzv-endpoint=127.0.0.1:{(port := free_port())}")
    path = script(tmp_path, "")
    agents = []
    for name, conf in (("a", "join_timeout=600,is_host=1"), ("b", "join_timeout=10,is_host=0")):
        own = {"HPCLAUNCH_SECRET_FILE": tmp_path / name, "timing": QUICK}
        agents.append(start(*common, f"--rdzv-conf={conf}", path, cwd=tmp_path, **own))
        until(lambda: is_open(port))
    head = said(agents[0], "with another secret than this")
    assert re.search(r"waiting for machine 1 \(\d+ s so far\); 1 of 2 agents .* with", head)
    _, member = agents[1].communicate(timeout=LIMIT)
    assert agents[1].returncode == 1
    code, _, rest = end(agents[0])
    assert code == 128 + signal.SIGTERM
    theirs = r"does not know our secret \(here [0-9a-f]{8}\)"
    assert re.search(rf"waited \d+ s for the head on 127.0.0.1: .*{theirs}", member)
    assert "Traceback" not in rest + member


def test_nobody_at_the_endpoint(tmp_path):
    """The last message includes what was found out."""
    args = [
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=127.0.0.1",
        f"--master-port={free_port()}",
    ]
    args += ["--nproc=1", "--rdzv-conf=join_timeout=10", script(tmp_path, "")]
    agent = start(*args, cwd=tmp_path, timing=QUICK)
    _, err = agent.communicate(timeout=LIMIT)
    assert agent.returncode == 1
    assert "did not answer" in err
    assert "nothing listens there" in err.splitlines()[-1]


def test_an_address_of_another_machine(tmp_path):
    args = ["--nnodes=2", "--node-rank=0", "--nproc=1", "--local-addr=192.0.2.1"]
    agent = start(*args, script(tmp_path, ""), cwd=tmp_path)
    _, err = agent.communicate(timeout=LIMIT)
    assert agent.returncode == 2
    assert "--local-addr 192.0.2.1 is no address of this host" in err


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_a_head_that_has_no_address(tmp_path, host):
    args = ["--nnodes=2", "--node-rank=1", "--nproc=1", f"--master-addr={host}"]
    quick = {"system.network.route.PAUSE": 0.1}
    agent = start(*args, script(tmp_path, ""), cwd=tmp_path, timing=quick)
    _, err = agent.communicate(timeout=LIMIT)
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
    head = start(*common, "--node-rank=0", path, cwd=tmp_path, timing=QUICK)
    member = start(*common, "--node-rank=1", path, cwd=tmp_path, PYTHONPATH=other, timing=QUICK)
    for agent in (head, member):
        _, err = agent.communicate(timeout=LIMIT)
        assert agent.returncode == 1
        assert "one speaks version" in err
        assert "install the same hpclaunch on all nodes" in err
        assert "Traceback" not in err
