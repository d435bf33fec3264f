"""A template that cannot serve ends, and never runs the script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpclaunch.worker
from surroundings import environment

WORKER = Path(hpclaunch.worker.__file__).parent


@pytest.mark.starts
@pytest.mark.parametrize("flags", [[], ["-s"]], ids=["after usercustomize", "without"])
@pytest.mark.parametrize(
    "file",
    ["messages.py", *(f"site/_hpclaunch_{name}.py" for name in ("template", "hooks", "startup"))],
)
def test_a_file_of_the_template_is_missing(tmp_path, file, flags):
    """The fork server reports the last line of its output."""
    shutil.copytree(WORKER, tmp_path / "worker", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "worker" / file).unlink()
    (tmp_path / "train.py").write_text("print('the script runs')")
    done = subprocess.run(
        [sys.executable, *flags, tmp_path / "train.py"],
        env=environment(
            PYTHONPATH=tmp_path / "worker" / "site", HPCLAUNCH_TEMPLATE=f"{os.getpid()},3,4,5"
        ),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (126, "")
    assert Path(file).stem in done.stderr.splitlines()[-1]
