"""The choice of programs that get a template, from a short look at their text."""

import os
import sys
import zipfile

import pytest

from hpclaunch.cli.program import RUN_PATH, Program
from hpclaunch.cli.warm_start import look_at
from hpclaunch.system.shared import program_text

SET = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"
PLAIN, WARM = (False, ""), (True, "")


def sets(file):
    return True, f"{file} sets OMP_NUM_THREADS in line 2, before it imports torch"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return the current directory, with a function that writes files below it."""
    monkeypatch.chdir(tmp_path)

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def look(*words, **environ):
    return look_at(Program((sys.executable, "-u", *words), sys.executable), environ)[:2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch", WARM),
        ("print('hello')", PLAIN),
        ("", PLAIN),
        (SET, PLAIN),
        (f"{SET}import torch", sets("train.py")),
        ("import numpy", WARM),
        ("def main():\n  import torchvision", WARM),
        ("import torch (", PLAIN),  # a syntax error: Python says so
        (b"# coding: latin-1\n# \xe9\nimport torch", WARM),
        (b"x = '\xe9'\nimport torch", PLAIN),  # no UTF-8: Python says so
        (b"\xef\xbb\xbfimport torch", WARM),
        ("#!/usr/bin/env python\r\nimport torch\r\n", WARM),
        ("x = '\\d'\nassert (x, 'warns')\nimport torch", WARM),
        ("import json\n" + "#" * program_text.MOST_BYTES, PLAIN),
        (b"PK\x03\x04\0\0", WARM),  # compiled, or an archive
    ],
)
def test_a_script(here, text, expected):
    here({"train.py": text})
    assert look("train.py", "--epochs", "3") == expected


def test_ways_to_name_a_program(here):
    here({"app/__main__.py": f"{SET}import torch", "pack/__init__.py": "", "pack/go.py": SET})
    assert look("app") == sets("app")
    assert look("-m", "app") == sets("app")
    assert look("-m", "pack.go") == look("-m", "json.tool") == look("-m", "no.such") == PLAIN
    assert look("-m", "torch.utils.collect_env") == WARM
    assert look("-c", f"{SET}import torch") == sets("the code after -c")
    assert look("-c", RUN_PATH, "pack/go.py") == PLAIN
    assert look("nowhere.py") == PLAIN
    with zipfile.ZipFile("app.pyz", "w") as archive:
        archive.write("app/__main__.py", "__main__.py")
    assert look("app.pyz") == WARM


def test_the_first_line_may_be_another_languages(here):
    here({"train.py": "@echo off\nimport torch"})
    assert look("train.py") == PLAIN
    assert look("-x", "train.py") == WARM


def test_what_can_be_read_only_once(here):
    """A file that can be read only once is left to the worker, which could not read it again."""
    os.mkfifo("pipe")
    assert look("pipe") == (True, "pipe can be read only once")
    assert look("/dev/null") == (True, "/dev/null can be read only once")


def test_what_is_set_already(here):
    here({"train.py": f"{SET}import torch"})
    assert look("train.py", OMP_NUM_THREADS="1") == WARM
    assert look("train.py", OMP_NUM_THREADS="2") == sets("train.py")


def test_other_reasons_come_first(here):
    here({"train.py": f"{SET}import torch"})
    assert look("-v", "train.py") == (True, "the option -v is to show all imports")
    python = Program((sys.executable, "train.py"), sys.executable, cold="another interpreter")
    assert look_at(python, {})[:2] == (True, "another interpreter")


def test_without_torch_nobody_waits_for_it(here, monkeypatch):
    here({"train.py": "import torch"})
    monkeypatch.setattr(program_text, "has_torch", lambda: False)
    assert look("train.py") == PLAIN


def test_nothing_is_run(here):
    here({"train.py": "raise SystemExit", "b/__main__.py": "raise SystemExit"})
    before = set(sys.modules)
    assert look("train.py") == look("-m", "b") == PLAIN
    assert set(sys.modules) == before
