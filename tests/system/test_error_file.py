"""The error file, which shows the cause of a worker's failure to the program that started us."""

import json
import os
import stat
from traceback import format_exc

import pytest

from hpclaunch.core.protocol.model import Failure
from hpclaunch.system.logs.error_file import TRACEBACK, files_of, hand_on, with_beginning

ERROR = {"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "1"}}}


def failure(rank, code=1, signal=0):
    return Failure(2, rank, "n1", code, signal, 0.0, "")


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "round-1").mkdir()
    (tmp_path / "round-2").mkdir()
    (tmp_path / "round-1" / "rank-0.error.json").write_text('"of another round"')
    return tmp_path


@pytest.fixture
def wanted(tmp_path):
    return tmp_path / "wanted.json"


def test_that_of_the_first_failure_which_left_any(logs, wanted):
    (logs / "round-2" / "rank-0.error.json").write_text('{"message": {"mess')  # was killed then
    (logs / "round-2" / "rank-1.error.json").write_text(json.dumps(ERROR) + "\n")
    (logs / "round-2" / "rank-2.error.json").write_text('{"message": "of the third"}')
    wanted.write_text("x" * 1000)
    failures = [failure(3), failure(0), failure(1, code=7), failure(2)]
    hand_on(files_of(failures, logs), str(wanted))
    message = ERROR["message"] | {"errorCode": 7}
    assert json.loads(wanted.read_text()) == {"message": message}
    wanted.unlink()
    hand_on(files_of([failure(2)], logs), str(wanted))
    assert json.loads(wanted.read_text()) == {"message": "of the third"}
    assert stat.S_IMODE(wanted.stat().st_mode) == 0o600


def test_a_signal_is_a_negative_code_as_torch_has_it(logs, wanted):
    (logs / "round-2" / "rank-1.error.json").write_text(json.dumps(ERROR))
    hand_on(files_of([failure(1, code=139, signal=11)], logs), str(wanted))
    assert json.loads(wanted.read_text())["message"]["errorCode"] == -11


@pytest.mark.parametrize("levels", [900, 1500, 50_000])
def test_one_that_is_nested_too_deeply_does_no_harm(logs, wanted, levels):
    text = json.dumps(ERROR).replace('"1"', "[" * levels + "]" * levels)
    (logs / "round-2" / "rank-1.error.json").write_text(text)
    hand_on(files_of([failure(1)], logs), str(wanted))
    assert not wanted.exists() or json.loads(wanted.read_text())


@pytest.mark.parametrize("name", [".", "no/such/directory"])
def test_one_that_cannot_be_written(logs, name):
    before = sorted(logs.rglob("*"))
    (logs / "round-2" / "rank-1.error.json").write_text(json.dumps(ERROR))
    hand_on(files_of([failure(1)], logs), str(logs / name))
    assert sorted(logs.rglob("*")) == sorted([*before, logs / "round-2" / "rank-1.error.json"])


def test_no_failure_left_any(logs, wanted):
    hand_on(files_of([failure(0)], logs), str(wanted))
    hand_on({}, str(wanted))
    assert not wanted.exists()


@pytest.mark.parametrize("text", ["[1]", '"x"', "3", "null"])
def test_a_file_that_is_somebody_elses(logs, wanted, text):
    (logs / "round-2" / "rank-1.error.json").write_text(text)
    hand_on(files_of([failure(1)], logs), str(wanted))
    assert not wanted.exists()


LONG = "Error(s) in loading state_dict for Net:\n" + "\n".join(
    f"\tsize mismatch for layers.{i}.weight" for i in range(40)
)


def load():
    raise RuntimeError(LONG)


def test_a_message_that_is_longer_than_the_last_lines(tmp_path):
    file = tmp_path / "rank-3.err"
    try:
        load()
    except RuntimeError as e:
        trace = {"message": f"RuntimeError: {e}", "extraInfo": {"py_callstack": format_exc()}}
        file.with_suffix(".error.json").write_text(json.dumps({"message": trace}))
    last = "\n".join(LONG.splitlines()[-12:])
    first, file_, code, *rest = with_beginning(last, file).splitlines()
    assert (first, code) == ("Traceback (most recent call last):", "    load()")
    assert file_.startswith(f'  File "{__file__}", line ')
    assert rest == [
        f'  File "{__file__}", line {load.__code__.co_firstlineno + 1}, in load',
        "    raise RuntimeError(LONG)",
        "RuntimeError: Error(s) in loading state_dict for Net:",
        "[... all of it is in rank-3.err]",
        *(f"\tsize mismatch for layers.{i}.weight" for i in (38, 39)),
    ]


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{",
        "[1]",
        '{"message": "of another launcher"}',
        '{"message": {"message": 3}}',
        '{"message": {"message": ""}}',
        '{"message": {"message": "ValueError: no", "extraInfo": null}}',
    ],
)
def test_the_last_lines_are_left_as_they_are(tmp_path, content):
    file = tmp_path / "rank-3.err"
    if content is not None:
        file.with_suffix(".error.json").write_text(content)
    assert with_beginning("Traceback\nValueError: no", file) == "Traceback\nValueError: no"


@pytest.mark.parametrize("name", ["rank-3.out", "rank-3.err"])
def test_an_exception_is_the_last_line(tmp_path, name):
    file = tmp_path / name
    file.with_suffix(".error.json").write_text('{"message": {"message": "ValueError: no"}}')
    last = "Traceback\nValueError: no"
    assert with_beginning(last, file) == last
    assert with_beginning(f"{last}\nbye", file) == f"{last}\nbye\nValueError: no"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("ImportError: no", ["ImportError: no"]),
        (
            "ValueError: many:\n1\n2\n3",
            ["ValueError: many:", "[... all of it is in rank-3.err]", "2", "3"],
        ),
    ],
)
def test_what_libraries_print_at_exit_hides_no_exception(tmp_path, message, shown):
    file = tmp_path / "rank-3.err"
    file.with_suffix(".error.json").write_text(json.dumps({"message": {"message": message}}))
    last = "\n".join(f"leaked function {i}" for i in range(12))
    assert with_beginning(last, file).splitlines() == [TRACEBACK, *shown]


@pytest.mark.parametrize("is_shown", [False, True])
def test_an_exception_that_a_shell_script_has_handled_long_ago_is_not_the_last_line(
    tmp_path, is_shown
):
    file, error = tmp_path / "rank-3.err", "ModuleNotFoundError: No module named 'flash_attn'"
    source = file.with_suffix(".error.json")
    source.write_text(json.dumps({"message": {"message": error}}))
    last = f"{error}\n" * is_shown + "step 1\nConnection closed by remote peer"
    file.write_text(last)
    later = source.stat().st_mtime + 60.0
    os.utime(file, (later, later))
    assert with_beginning(last, file).endswith("step 1\nConnection closed by remote peer")


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("x = (1,\ny = 2", "SyntaxError: '(' was never closed"),
        ("if x:\ny = 2", "IndentationError: expected an indented block"),
        ("assert not True", "AssertionError"),
    ],
)
def test_exceptions_whose_message_differs_from_what_python_prints(tmp_path, code, printed):
    file = tmp_path / "rank-3.err"
    try:
        exec(compile(code, "train.py", "exec"))
    except (SyntaxError, AssertionError) as e:
        message = {"message": f"{type(e).__name__}: {e}"}
        file.with_suffix(".error.json").write_text(json.dumps({"message": message}))
        last = format_exc().strip()
    assert last.splitlines()[-1].startswith(printed)
    assert with_beginning(last, file) == last


def test_colours_of_a_message_are_left_out_as_in_the_last_lines(tmp_path):
    file = tmp_path / "rank-3.err"
    message = {"message": "UnpicklingError: do those \33[1monly\33[0m if:\nyou trust it"}
    file.with_suffix(".error.json").write_text(json.dumps({"message": message}))
    last = "UnpicklingError: do those only if:\nyou trust it"
    assert with_beginning(last, file) == last
    shown = with_beginning("line 9\nyou trust it", file).splitlines()
    assert shown[1] == "UnpicklingError: do those only if:"


def test_a_message_without_a_traceback(tmp_path):
    file = tmp_path / "rank-3.err"
    file.with_suffix(".error.json").write_text('{"message": {"message": "ValueError: no"}}')
    assert with_beginning("bye", file).splitlines()[1] == "ValueError: no"
