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
from _hpclaunch_parking import spec_of
lesson = _hpclaunch_lesson.Lesson(sys.argv[2], spec_of)
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


ODD = """
import sys
sys.path.insert(0, sys.argv[1])
import _hpclaunch_lesson
from _hpclaunch_parking import spec_of
lesson = _hpclaunch_lesson.Lesson(sys.argv[2], spec_of)
import importlib.machinery, pathlib, types, wave

class Odd(types.ModuleType):
    def __getattr__(self, name):
        raise ValueError(f"{name} is asked of an odd module")

sys.modules["odd"] = Odd("odd")
del sys.modules["odd"].__spec__
sys.modules["fake"] = types.SimpleNamespace(__spec__=types.SimpleNamespace(name="fake"))
sys.modules["vendored"] = types.ModuleType("vendored")
sys.modules["vendored"].__spec__ = importlib.machinery.ModuleSpec(
    "vendored", None, origin=pathlib.Path("vendored")
)
for _ in range(2):
    lesson.stepped(None)
"""


@pytest.mark.starts
def test_odd_objects_in_sys_modules_leave_the_script_and_the_lesson_alone(tmp_path):
    """One raises ValueError for what it lacks, another one has no real spec, or an odd origin."""
    command = [sys.executable, "-c", ODD, SITE, tmp_path / "lesson"]
    subprocess.run(command, check=True)
    steps = json.loads((tmp_path / "lesson").read_text())
    assert "wave" in [name for _, name, _ in steps]
    assert "vendored" not in [name for _, name, _ in steps]
