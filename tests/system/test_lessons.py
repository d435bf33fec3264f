"""What is remembered of a script's imports from one launch to the next."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpclaunch.worker
from hpclaunch.cli.program import RUN_PATH
from hpclaunch.system import lessons
from hpclaunch.system.lessons import NO_LESSON, Lesson

SITE = Path(hpclaunch.worker.__file__).parent / "site"
STEPS = [["import", "wave", "/lib/wave.py"], ["set", "A", None], ["seed", "numpy", None]]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import wave\n")
    return path


@pytest.fixture
def of(tmp_path, script):
    """The lesson for a command line of the script, and its file."""
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def of(*args, command=(), environ=environ):
        return lessons.of_command(
            (sys.executable, "-u", *(command or (str(script),)), *args), environ
        )

    return of


def remembered(path, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": 1, "steps": STEPS, "avoided": ["x"]} | changes))


def test_the_next_launch_knows_it(of):
    found, path = of()
    assert found == NO_LESSON
    remembered(path)
    assert of() == (Lesson(STEPS, ["x"]), path)


def test_another_text_or_another_option_is_another_script(of, script):
    _, path = of("--model", "small")
    assert of("--model", "large")[1] != path
    assert of("--model", "small")[1] == path
    script.write_text("import wave, chunk\n")
    assert of("--model", "small")[1] != path


def test_a_copy_is_the_same_script(of, script):
    copy = script.with_name("copy.py")
    copy.write_text(script.read_text())
    assert of(command=(str(copy),))[1] == of()[1]


def test_numbers_make_no_difference(of):
    assert of("--lr", "0.1", "--epochs=3")[1] == of("--lr", "1e-4", "--epochs=90")[1]


def test_modules_and_scripts_by_runpy(of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack" / "run").mkdir(parents=True)
    for name in ("__init__", "train", "run/__init__", "run/__main__"):
        (tmp_path / "pack" / f"{name}.py").write_text(f"'{name}'")
    paths = [of(command=("-m", f"pack.{name}"))[1] for name in ("train", "run", "nowhere")]
    paths.append(of(command=("-c", RUN_PATH, "train.py"))[1])
    assert len(set(paths)) == 4
    assert of(command=("-c", RUN_PATH, "nowhere.py")) == (NO_LESSON, None)


DAMAGED = [
    {"version": 2},
    {"steps": None},
    {"steps": [["import", "wave"]]},
    {"steps": [["import", "wave", None]]},
    {"steps": [["exec", "wave", ""]]},
    {"steps": [["set", "A\0", "1"]]},
    {"avoided": [1]},
]


@pytest.mark.parametrize("changes", DAMAGED, ids=str)
def test_a_damaged_file_counts_as_none(of, changes):
    _, path = of()
    remembered(path, **changes)
    assert of()[0] == NO_LESSON


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100000, b"[1]", b'"\xff"', b" " * (2 << 20)])
def test_so_does_one_that_is_no_lesson(of, data):
    _, path = of()
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert of()[0] == NO_LESSON


def test_a_link_is_not_followed(of, tmp_path):
    _, path = of()
    remembered(tmp_path / "elsewhere.json")
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere.json")
    assert of()[0] == NO_LESSON


def test_the_oldest_go(of, monkeypatch):
    monkeypatch.setattr(lessons, "KEPT", 3)
    _, path = of()
    path.parent.mkdir(parents=True)
    for number in range(5):
        (path.parent / f"{number}.json").touch()
        os.utime(path.parent / f"{number}.json", (number, number))
    of()
    assert sorted(os.listdir(path.parent)) == ["2.json", "3.json", "4.json"]


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "here", "XDG_CACHE_HOME": "there"}])
def test_without_a_home(of, environ):
    assert of(environ=environ) == (NO_LESSON, None)


def test_what_the_text_of_a_new_script_shows(of, script):
    """Installed modules; the script's own and Python's own are imported by the workers."""
    script.write_text("import wave, numpy\nimport train\nimport torch.optim\n")
    steps = of()[0].steps
    assert [(kind, name) for kind, name, _ in steps] == [
        ("import", "numpy"),
        ("import", "torch.optim"),
        ("import", "torch._dynamo"),
    ]
    assert steps[0][2].endswith("numpy/__init__.py")


@pytest.mark.parametrize("text", ["this is no Python", "x = '\0'", "(" * 100000])
def test_what_is_no_program_shows_nothing(of, script, text):
    script.write_text(text)
    assert of()[0] == NO_LESSON


SEEDS = """
import sys
sys.path.insert(0, sys.argv[1])
import random, _hpclaunch_lesson
telling = _hpclaunch_lesson.Telling(sys.argv[2])
from random import seed
for _ in range(5):
    seed(1)
    telling.stepped(None)
print(len(telling.changes))
"""


@pytest.mark.starts
def test_seeds_are_noted_until_it_is_told(tmp_path):
    """Also by what the script has taken from its module."""
    command = [sys.executable, "-c", SEEDS, SITE, tmp_path / "lesson"]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"2\n"
    assert json.loads((tmp_path / "lesson").read_text()) != []
