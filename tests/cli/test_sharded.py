"""Sharded models, by the scripts that users start from: they are resharded, and continue."""

import re
from pathlib import Path

import pytest
from launching import hpclaunch

from surroundings import environment

pytestmark = pytest.mark.starts

WORKERS = Path(__file__).parents[2] / "workers"


def loss(directory: Path, script: str, workers: int, steps: int, how: str) -> tuple[float, str]:
    """Return the loss after so many steps on so many ranks, and the output.

    The last step is saved, too.
    """
    program = (WORKERS / script, "--dir", "saved", "--steps", steps, "--save-every", 3)
    done = hpclaunch(
        *("--nproc", workers, "--checkpoint-dir", "saved", *program, *how.split()),
        cwd=directory,
        env=environment(OMP_NUM_THREADS=1),
    )
    assert done.returncode == 0, done.stderr
    (reached,) = re.findall(r"^loss (\S+)$", done.stdout, re.MULTILINE)
    return float(reached), done.stdout


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("script", "first", "then", "at_once"),
    [
        ("fsdp_tp.py", (2, "--tp 2"), (2, "--tp 1"), (1, "")),
        ("pipeline.py", (2, "--schedule gpipe"), (2, "--schedule interleaved"), (1, "")),
    ],
)
def test_resharded_it_continues(script, first, then, at_once, tmp_path):
    for name in ("in two goes", "at once"):
        (tmp_path / name).mkdir()
    loss(tmp_path / "in two goes", script, first[0], 2, first[1])
    found, said = loss(tmp_path / "in two goes", script, then[0], 4, then[1])
    assert said.count("resuming after step 2\n") == 1
    expected, _ = loss(tmp_path / "at once", script, at_once[0], 4, at_once[1])
    assert found == pytest.approx(expected, abs=1e-3)  # sums are rounded otherwise
