"""The interpreter of the workers, as the launcher compares it with its own."""

import os
import sys

from hpclaunch.cli import program


def test_an_interpreter_in_the_working_directory_that_path_has_as_an_empty_entry(
    tmp_path, monkeypatch
):
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{os.devnull}:")
    assert "another interpreter" in program._why_cold("python")
    monkeypatch.chdir(os.path.dirname(sys.executable))
    assert program._why_cold(os.path.basename(sys.executable)) == ""
