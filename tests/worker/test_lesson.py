"""The steps of a script that a worker notes until it has sent its lesson."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hpclaunch.worker

SITE = Path(hpclaunch.worker.__file__).parent / "site"
SEEDS = """
import sys
sys.path.insert(0, sys.argv[1])
import random, _hpclaunch_lesson
lesson = _hpclaunch_lesson.Lesson(sys.argv[2])
from random import seed
for _ in range(5):
    seed(1)
    lesson.stepped(None)
print(len(lesson.changes))
"""


@pytest.mark.starts
def test_seeds_are_noted_until_the_lesson_is_sent(tmp_path):
    """Also by a function that the script has imported by its name."""
    command = [sys.executable, "-c", SEEDS, SITE, tmp_path / "lesson"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"2\n"
    assert json.loads((tmp_path / "lesson").read_text()) != []
