"""docs/quickstart.md: what it shows on a laptop is what is printed; the rest is in tests/slurm."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from console import Step, follow, sections

from surroundings import environment

ROOT = Path(__file__).parents[2]
SECTIONS = sections(ROOT / "docs" / "quickstart.md")
LAPTOP = ["On a laptop", "When a worker dies"]
CLUSTER = ["On a node with GPUs", "On several nodes", "When a node is lost", "Save in memory"]


def test_every_section_is_followed_somewhere() -> None:
    assert sorted(SECTIONS) == sorted(LAPTOP + CLUSTER)


@pytest.mark.starts
@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")
@pytest.mark.skipif(shutil.which("pkill") is None, reason="needs pkill")
@pytest.mark.parametrize("title", LAPTOP)
def test_on_a_laptop(title: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "workers", tmp_path / "workers")
    env = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    follow(SECTIONS[title], run, {"laptop": socket.gethostname()})


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["epoch 1: loss 0.5"], "epoch 1: loss 0.7125\n"),
        (["one", "...", "two"], "one\ntwo\n"),
        (["one", "...", "two"], "one\nx\ny\ntwo\n"),
        (["port 29400"], "port 31234\n"),
        (["saved in .../x.pt"], "saved in /home/you/x.pt\n"),
    ],
)
def test_what_matches(shown: list[str], printed: str) -> None:
    follow([Step("", tuple(shown))], lambda _: printed, {})


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (["epoch 1: loss 0.5"], "epoch 2: loss 0.5\n"),
        (["one"], "one\ntwo\n"),
        (["one", "two"], "one\n"),
        (["one", "...", "two"], "one\nx\n"),
    ],
)
def test_what_does_not_match(shown: list[str], printed: str) -> None:
    with pytest.raises(AssertionError, match="printed:"):
        follow([Step("", tuple(shown))], lambda _: printed, {})


def test_a_number_alone_is_a_name() -> None:
    commands = []
    steps = [Step("submit", ("71",)), Step("cat slurm-71.out", ("job 71",))]

    def run(command: str) -> str:
        commands.append(command)
        return "9\n" if command == "submit" else "job 9\n"

    follow(steps, run, {})
    assert commands == ["submit", "cat slurm-9.out"]
