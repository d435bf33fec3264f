"""docs/python.md: every program that it shows runs; that of submitit in tests/slurm."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import environment

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PROGRAMS = [block for block in BLOCKS if block.startswith("import hpclaunch")]
TRAIN = """\
import argparse, os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--out")
args = parser.parse_args()
if args.fail:
    raise ValueError("a bad batch")
if args.out and os.environ["RANK"] == "0":
    with open(args.out, "w") as out:
        out.write("0.7 0.5 0.4")
"""
# What the programs print, and all of them end with 0.
SAID = {
    "job.wait()\nprint": "0 all workers ended with 0\n",
    "--fail": "exception: ValueError: a bad batch\ngoodput ",
    "def train": "rank 1 of 2, 0.1\n",
    "def test_": "1 passed",
}


def test_all_of_them_are_known() -> None:
    unknown = [block for block in PROGRAMS if not any(words in block for words in SAID)]
    assert len(unknown) == 1
    assert "import submitit" in unknown[0]
    compile(unknown[0], str(PAGE), "exec")


@pytest.mark.starts
@pytest.mark.parametrize("words", SAID)
def test_a_program_that_is_shown(words: str, tmp_path: Path) -> None:
    (block,) = [block for block in PROGRAMS if words in block]
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "test_shown.py").write_text(block)
    runs_tests = ["-m", "pytest", "-p", "no:cacheprovider"] if "def test_" in block else []
    done = subprocess.run(
        [sys.executable, *runs_tests, "test_shown.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert SAID[words] in done.stdout
