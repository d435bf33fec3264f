"""A worker prints into a file that cannot grow: real processes, and a limit in place of a disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpclaunch
from surroundings import environment

pytestmark = pytest.mark.starts

SITE = Path(hpclaunch.__file__).parent / "worker" / "site"
SCRIPT = """
import resource, sys
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
print("before")
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
print("far too much for it")
print("and more")
sys.stdout.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print("after")
"""


def run(directory, *options, out="rank-0.out", script=SCRIPT):
    """Run a worker; return its exit code and the content of the file."""
    env = environment(
        PYTHONPATH=str(SITE),
        HPCLAUNCH_STORE="127.0.0.1:1",
        TORCHELASTIC_ERROR_FILE=str(directory / "rank-0.error.json"),
    )
    with (directory / out).open("ab") as file:
        done = subprocess.run(
            [sys.executable, *options, "-c", script], stdout=file, stderr=subprocess.PIPE, env=env
        )
    return done.returncode, (directory / out).read_text()


def test_it_continues_and_counts_lost_bytes(tmp_path):
    code, written = run(tmp_path, "-u")
    assert code == 0
    lost = "far too much for it\nand more\n"
    why = os.strerror(27)
    rest = len("before\n" + lost) - 10
    assert written == f"before\nfar\nhpclaunch: {rest} bytes are lost here: {why}\nafter\n"


def test_lost_bytes_are_counted_on_if_their_number_does_not_fit(tmp_path):
    limit = 'resource.setrlimit(resource.RLIMIT_FSIZE, (15, hard)); print("x")\n'
    last = "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))\n"
    code, written = run(tmp_path, "-u", script=SCRIPT.replace(last, limit + last))
    assert code == 0
    rest = len("before\nfar too much for it\nand more\nx\n") - 10
    lost = f"\nhpclaunch: {rest} bytes are lost here: {os.strerror(27)}\n"
    assert written == f"before\nfar{lost[:5]}{lost}after\n"


def test_below_a_symbolic_link(tmp_path):
    """The log directory may be a link, and so may be any directory above it."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    code, written = run(tmp_path / "link", "-u")
    assert code == 0
    assert written.endswith("after\n")


def test_with_a_buffer_as_well(tmp_path):
    code, written = run(tmp_path)
    assert code == 0
    assert written.startswith("before\nfar\nhpclaunch: ")
    assert written.endswith("after\n")


@pytest.mark.parametrize("out", ["rank-1.out", "other"])
def test_any_other_file_fails_as_ever(tmp_path, out):
    code, _ = run(tmp_path, "-u", out=out)
    assert code != 0


def test_a_failure_of_another_kind_is_raised(tmp_path):
    script = "import os; print(1); os.close(1); print(2)"
    assert run(tmp_path, "-u", script=script) == (1, "1\n")
