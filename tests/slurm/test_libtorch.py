"""A C++ program with LibTorch as the worker, built against the installed torch."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import Cluster
from .recipes.jobs import HERE, KILLS_RANK_1, rounds, submit, weights

COMPILERS = ("cmake", "make", "g++")
missing = [tool for tool in COMPILERS if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
    pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}"),
]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("libtorch") / "build"
    command = [sys.executable, "-c", "import torch.utils; print(torch.utils.cmake_prefix_path)"]
    prefix = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    configure = ["cmake", "-G", "Unix Makefiles", "-S", HERE / "libtorch", "-B", build]
    for step in ([*configure, f"-DCMAKE_PREFIX_PATH={prefix}"], ["cmake", "--build", build]):
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
    return build / "main"


def test_libtorch(cluster: Cluster, tmp_path: Path, program: Path) -> None:
    """Two ranks on each of two nodes; one of them dies once."""
    (tmp_path / "build").mkdir()
    shutil.copy(program, tmp_path / "build")
    weights(submit(cluster, tmp_path, "libtorch/main.sh", env=KILLS_RANK_1), world=4)
    assert rounds(tmp_path) == 2
