"""The scripts to start from and their job scripts, without Slurm."""

import importlib.util
import re
from pathlib import Path

import pytest
from launching import hpclaunch, script

from surroundings import environment, free_port

ROOT = Path(__file__).parent.parent.parent
JOB_SCRIPTS = sorted((ROOT / "sbatch").glob("*.sbatch"))
WORKERS = sorted((ROOT / "workers").glob("*.py"))
SKLEARN = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn"
)


def test_they_come_in_pairs():
    workers = {p.stem for p in WORKERS}
    workers |= {p.parent.name for p in (ROOT / "workers").glob("*/CMakeLists.txt")}
    assert {p.stem for p in JOB_SCRIPTS} == workers


@pytest.mark.parametrize("path", JOB_SCRIPTS, ids=lambda path: path.stem)
def test_a_job_script_is_short(path):
    first, *lines = path.read_text().splitlines()
    assert first == "#!/bin/bash"
    assert len(lines) < 11
    asked = [line.startswith("#SBATCH ") for line in lines]
    assert asked == sorted(asked, reverse=True), "Slurm reads no #SBATCH after the first command"
    assert asked[0]
    text = "\n".join(lines)
    assert re.search(r"^srun .*hpclaunch ", text, re.MULTILINE)
    assert f"workers/{path.stem}" in text
    saved = re.findall(r"checkpoints\S*", text)
    assert saved == [f"checkpoints/{path.stem}"] * 2, "of no other example"


@pytest.mark.parametrize("path", WORKERS, ids=lambda path: path.stem)
def test_a_worker_saves_where_its_job_script_says(path):
    saved = re.findall(r"(?:dir |default=\")(checkpoints[/\w]*)", path.read_text())
    assert saved == [f"checkpoints/{path.stem}"] * 3, (
        "twice as the docstring has it, and by default"
    )


FOR_ONE = ("single", "data_parallel")
# Each worker runs both scripts, one after the other, and ends as they do.
RUNS_ALL = """
import runpy, sys, torch
codes = set()
for path in sys.argv[1:]:
    sys.argv = [path]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as e:
        codes.add(e.code)
(code,) = codes
sys.exit(code)
"""


@pytest.fixture(scope="module")
def several(starts, tmp_path_factory):
    """Return a launch with two workers of scripts that are for one, and its directory."""
    directory = tmp_path_factory.mktemp("several")
    launch = ("--preload", "sklearn.datasets", "--nproc", 2)
    scripts = [ROOT / "workers" / f"{name}.py" for name in FOR_ONE]
    path = script(directory, RUNS_ALL)
    return hpclaunch(*launch, path, *scripts, cwd=directory), directory


@SKLEARN
@pytest.mark.parametrize("name", FOR_ONE)
def test_one_worker_is_not_several(name, several):
    done, directory = several
    assert done.returncode == 2
    assert f"{name}.py: error: this is for one worker: start it with --nproc 1" in done.stderr
    assert not (directory / "checkpoints").exists()


# Of four workers, three train together, and the last one alone.
TWO_TRAININGS = """
import os, runpy, sys, torch
path, port = sys.argv[1:]
is_alone = os.environ["RANK"] == "3"
if is_alone:
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": port}
os.environ["WORLD_SIZE"] = directory = "1" if is_alone else "3"
os.chdir(directory)
sys.argv = [path, "--epochs", "1"]
sys.stdout = open("printed-" + os.environ["RANK"], "w")
runpy.run_path(path, run_name="__main__")
sys.stdout.close()
"""


@pytest.mark.starts
@SKLEARN
def test_elastic_takes_the_same_steps_with_uneven_shares(tmp_path):
    """64 digits a batch: 22, 21 and 21 for three workers, and 32 fit into the memory of one."""
    for workers in (1, 3):
        (tmp_path / str(workers)).mkdir()
    launch = ("--preload", "sklearn.datasets,torch._dynamo", "--nproc", 4)
    words = (script(tmp_path, TWO_TRAININGS), ROOT / "workers" / "elastic.py", free_port())
    done = hpclaunch(*launch, *words, cwd=tmp_path, env=environment(OMP_NUM_THREADS=1))
    assert done.returncode == 0, done.stderr
    epochs = {}
    for workers in (1, 3):
        place = tmp_path / str(workers)
        assert (place / "checkpoints" / "elastic" / "step-23.pt").exists()  # the last one
        printed = (place / "printed-0").read_text()
        epochs[workers] = [float(x) for x in re.findall(r"loss (\S+),", printed)]
    assert len(epochs[1]) == 1
    assert epochs[3] == pytest.approx(epochs[1], rel=0.01)  # sums are rounded otherwise
