"""The programs of `make test-kills` find their modules, which pytest would find for them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.starts


@pytest.mark.parametrize("name", ["node_kills.py", "random_kills.py"])
def test_it_starts(name, tmp_path):
    program = Path(__file__).with_name(name)
    words = [sys.executable, program, "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
