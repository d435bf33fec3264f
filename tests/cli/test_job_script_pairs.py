"""Every script to start from has its job script, and the other way round."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
JOB_SCRIPTS = sorted((ROOT / "sbatch").glob("*.sbatch"))


def test_they_come_in_pairs():
    workers = {p.stem for p in (ROOT / "workers").glob("*.py")}
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
