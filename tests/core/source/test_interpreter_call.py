"""The command line of an interpreter, as CPython understands it."""

import pytest

from hpclaunch.cli.program import RUN_PATH
from hpclaunch.core.source.interpreter_call import parse, why_cold


@pytest.mark.parametrize(
    ("words", "kind", "program"),
    [
        (["-u", "train.py", "-m", "a"], "", "train.py"),
        (["-u", "-m", "pack.train", "a"], "m", "pack.train"),
        (["-Bmpack", "a"], "m", "pack"),
        (["-c", "import torch", "a"], "c", "import torch"),
        (["-c", RUN_PATH, "train.py", "a"], "", "train.py"),
        (["-u", "-"], "", "-"),
        (["-u"], "", "-"),
        (["-OBqW", "ignore", "-Xdev", "--check-hash-based-pycs", "never", "x.py"], "", "x.py"),
        (["-O", "-X", "dev", "-W", "error", "--", "x.py"], "", "x.py"),
    ],
)
def test_what_it_runs(words, kind, program):
    call = parse(words)
    assert (call.kind, call.program, call.runs) == (kind, program, True)


@pytest.mark.parametrize("word", ["-V", "-h", "-?", "--version", "--help-env", "-VV"])
def test_options_that_run_nothing(word):
    assert not parse([word, "train.py"]).runs


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-O -X dev -W error -P -b -B -s -q -d -i", ""),
        ("-E", "the option -E keeps hpclaunch out of the interpreter"),
        ("-IS", "the option -I keeps hpclaunch out of the interpreter"),
        ("-sE", "the option -E keeps hpclaunch out of the interpreter"),
        ("-S", "the option -S keeps hpclaunch out of the interpreter"),
        ("-v", "the option -v is to show all imports"),
        ("-X importtime", "the option -X importtime is to measure all imports"),
        ("-Ximporttime=2", "the option -X importtime is to measure all imports"),
    ],
)
def test_options_that_need_a_new_interpreter(words, reason):
    for program in (["train.py"], ["-c", "import torch"], ["--", "train.py"]):
        assert why_cold(parse([*words.split(), *program]), {}) == reason


@pytest.mark.parametrize("name", ["PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME"])
def test_variables_that_need_a_new_interpreter(name):
    call = parse(["train.py"])
    assert why_cold(call, {name: "1"}) == f"{name} is to show all imports"
    assert why_cold(call, {name: ""}) == ""
