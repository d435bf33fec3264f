"""--metrics in a job on several nodes, and with several agents on one node."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as older

from .asking import PAUSE, PORT, Metrics, scrape, values
from .cluster import Cluster, eventually
from .conftest import SCRIPTS

WAITING = """\
import os, time
while not os.path.exists("over"):
    time.sleep(0.05)
"""


def written(file: Path) -> Metrics:
    return values(older(file.read_text()))


def test_files_of_all_nodes(cluster: Cluster) -> None:
    """Each agent of an unprivileged user writes a file; that of the head remains at the end."""
    directory = cluster.directory_of("nobody")
    textfile = directory / "textfile"
    textfile.mkdir()
    os.chown(textfile, directory.stat().st_uid, directory.stat().st_gid)
    script = directory / "waiting.py"
    script.write_text(WAITING)
    script.chmod(0o644)
    body = f"srun {SCRIPTS}/agent.sh --cold --nproc 1 --metrics {textfile} {script}"
    job = cluster.sbatch(body, directory=directory, nodes=2, user="nobody")
    first, second = (textfile / f"hpclaunch-{job.id}.0-{n}.prom" for n in (0, 1))
    eventually("both files", lambda: first.exists() and second.exists())
    assert first.stat().st_mode & 0o777 == 0o644
    assert written(second)["leads",] == 0
    (directory / "over").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert os.listdir(textfile) == [first.name]
    last = written(first)
    assert (last["over",], last["exit_code",]) == (1, 0)


def test_several_agents_on_one_node_have_consecutive_ports(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    options = f"--cold --nproc 1 --metrics 0.0.0.0:{PORT}"
    body = f"srun --ntasks=2 {SCRIPTS}/agent.sh {options} '{script}'"
    tasks = ("--ntasks-per-node=2",)
    job = cluster.sbatch(body, directory=tmp_path, nodes=1, options=tasks)
    found: list[Metrics] = []

    def both() -> bool:
        found[:] = [scrape(cluster, "ctl", at="n1", port=PORT + n) for n in (0, 1)]
        return all(found)

    eventually("both ports, from another host", both, pause=PAUSE)
    assert [metrics["leads",] for metrics in found] == [1, 0]
    (tmp_path / "over").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert "no metrics" not in ended.output
