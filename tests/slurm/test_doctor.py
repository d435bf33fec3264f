"""hpclaunch doctor on all nodes of a step prints one table, and finds real faults."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .cluster import Cluster, eventually
from .conftest import Launch

DOCTOR = "srun hpclaunch doctor"
lightly = pytest.mark.usefixtures("light_torch")


@lightly
def test_nodes_in_order_are_in_one_table(launch: Launch) -> None:
    ended = launch(srun=DOCTOR).wait()
    assert ended.code == 0, str(ended)
    lines = ended.output.splitlines()
    assert lines[0] == "hpclaunch doctor on n[1-3]"
    assert sum("hpclaunch doctor on" in line for line in lines) == 1
    assert any("ok    rendezvous" in x and "all 3 tasks connected to n1, port " in x for x in lines)
    assert any("ok    clocks" in x and "within 0." in x for x in lines)
    assert any("ok    Slurm" in x and "3 hosts, 3 tasks" in x for x in lines)
    assert "FAIL" not in ended.output
    assert "Traceback" not in ended.output


@lightly
def test_another_secret_and_a_name_that_resolves_to_loopback(
    launch: Launch, tmp_path: Path
) -> None:
    """n2 has another secret. n3 resolves the head's name to loopback, and has no scontrol."""
    secrets = [tmp_path / "secret", tmp_path / "other"]
    for path in secrets:
        path.write_bytes(os.urandom(32))
        path.chmod(0o600)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 n1\n10.78.0.13 n3\n")
    breaking = tmp_path / "break.sh"
    breaking.write_text(
        f"""case $SLURM_NODEID in
        1) mount --bind '{secrets[1]}' '{secrets[0]}' ;;
        2) mount --bind '{hosts}' /etc/hosts; mount --bind /bin/false "$(command -v scontrol)" ;;
        esac
        exec "$@"
        """
    )
    srun = f"srun unshare --mount sh {breaking.name} hpclaunch doctor --timeout 6"
    ended = launch(srun=srun, env={"HPCLAUNCH_SECRET_FILE": str(secrets[0])}).wait()
    assert ended.code == 1, str(ended)
    tables = {text.split()[0]: text for text in ended.output.split("hpclaunch doctor on ")[1:]}
    assert set(tables) == {"n1", "n2", "n3"}, str(ended)
    text = ended.output  # srun forwards output in pieces: the tables may be interleaved
    assert "no connection from n[2-3] to n1, port " in text
    assert "FAIL  rendezvous" in text
    assert "another secret file or --rdzv-id, from which the ports derive" in _words(text)
    assert text.count("fingerprint") >= 2
    assert "FAIL  route" in text
    assert "n1 resolves to loopback here" in _words(text)
    assert "Traceback" not in ended.output


@lightly
def test_a_node_whose_link_is_down_is_named(cluster: Cluster, launch: Launch) -> None:
    # Cut only after the tasks have started: srun ends a step that it cannot start everywhere.
    until = "until [ -e cut ]; do sleep 0.1; done"
    tasks = f"touch here-$SLURM_PROCID; {until}; exec hpclaunch doctor --timeout 12"
    job = launch(srun=f"srun bash -c '{tasks}'")
    for task in range(3):
        eventually(f"task {task}", (job.directory / f"here-{task}").exists)
    cluster.nodes["n3"].cut()
    try:
        (job.directory / "cut").touch()
        job.says("no connection from n3 to n1, port ")
    finally:
        cluster.nodes["n3"].heal()
        job.cancel()
    eventually("idle nodes", lambda: not cluster.jobs())


# It replaces the workers' interpreter: on n2, products of matrices are wrong.
FAULTY_PYTHON = """\
#!/bin/sh
case $2 in
*/measurement.py) [ "$(hostname)" = n2 ] && shift && exec {python} -u '{faulty}' "$@" ;;
esac
exec {python} "$@"
"""
FAULTY = """\
import runpy, sys
import torch
multiply = torch.mm
torch.mm = lambda *args, **more: multiply(*args, **more).add_(1)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_node_that_computes_wrong_results_is_named(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "faulty.py").write_text(FAULTY)
    python = tmp_path / "python"
    python.write_text(FAULTY_PYTHON.format(python=sys.executable, faulty=tmp_path / "faulty.py"))
    python.chmod(0o755)
    (tmp_path / "temporary").mkdir()
    env = {"PYTHON_EXEC": str(python), "TMPDIR": str(tmp_path / "temporary")}
    ended = launch(srun=f"{DOCTOR} --measure", env=env).wait()
    assert ended.code == 1, str(ended)
    text = _words(ended.output)
    assert "hpclaunch doctor on n[1-3]" in text
    assert "3 x " in text.partition("compute")[2]
    assert "1 x pairs across nodes, all-reduce with gloo" in text
    assert "FAIL results n2 rank 1 on n2: a product of matrices is wrong" in text
    assert "hpclaunch: " not in ended.output
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not cluster.processes("measurement")


@lightly
def test_in_the_batch_shell_of_several_nodes(launch: Launch) -> None:
    ended = launch(srun="hpclaunch doctor", nodes=2).wait()
    assert ended.code == 1, str(ended)
    assert "FAIL  Slurm" in ended.output
    assert "prefix with srun" in _words(ended.output)


def _words(table: str) -> str:
    """Return the table's words without line breaks."""
    return " ".join(table.split())
