"""Job scripts that call torchrun, with `hpclaunch shim` in front of PATH."""

from __future__ import annotations

from pathlib import Path

from .cluster import Cluster
from .conftest import SCRIPTS

TELL = SCRIPTS / "tell.py"
TRAIN = SCRIPTS / "train.py"
SHIM = 'export PATH="$(hpclaunch shim):$PATH"\n'
NESTED = """
import os, subprocess, sys, time
rank = os.environ["RANK"]
print("outer", rank, os.environ["WORLD_SIZE"], flush=True)
if len(sys.argv) < 2:
    words = ["torchrun", "--nproc-per-node=2", __file__, "inner"]
    sys.exit(subprocess.run(words).returncode)
"""


def test_nested(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "nested.py"
    script.write_text(NESTED)
    job = cluster.sbatch(f"{SHIM}srun torchrun {script}", directory=tmp_path, nodes=2)
    ended = job.wait()
    assert ended.code == 0
    assert sorted(ended.output.split("\n")) == []
