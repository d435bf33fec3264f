"""The log directory, and the last lines of what is in it."""

import pytest

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.system.logs import log_directory


def test_the_tail_is_the_last_lines_of_the_first_file_with_any(tmp_path):
    err, out = tmp_path / "e", tmp_path / "o"
    out.write_text("\n".join(f"line {n}" for n in range(5000)))
    assert log_directory.tail({err: 0, out: 0}).splitlines()[-1] == "line 4999"
    assert len(log_directory.tail({err: 0, out: 0}).splitlines()) == log_directory.TAIL_LINES
    err.write_bytes(b"Traceback\nBoom \xff\n\n")
    assert log_directory.tail({err: 0, out: 0}) == "Traceback\nBoom �"
    assert log_directory.tail({tmp_path / "none": 0}) == ""


def test_the_tail_is_without_colours(tmp_path):
    (tmp_path / "e").write_text("\x1b[1;31mValueError\x1b[0m: no\x1b[K\n\x1b[0m\n")
    assert log_directory.tail({tmp_path / "e": 0}) == "ValueError: no"


def test_what_an_earlier_launch_has_written_is_not_in_the_tail(tmp_path):
    err, out = tmp_path / "e", tmp_path / "o"
    err.write_text("Traceback\nModuleNotFoundError\n")
    begins = {file: log_directory.size(file) for file in (err, out)}
    out.write_text("epoch 1\n")
    assert log_directory.tail(begins) == "epoch 1"


def test_the_log_directory_is_private_and_reused(tmp_path):
    directory = log_directory.LogDirectory(tmp_path / "logs" / "7.0")
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.round(3) == tmp_path / "logs" / "7.0" / "round-3"
    assert directory.round(3).stat().st_mode & 0o777 == 0o700
    log_directory.LogDirectory(tmp_path / "logs" / "7.0")


def test_a_log_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to the log directory"):
        log_directory.LogDirectory(tmp_path / "file" / "logs")
