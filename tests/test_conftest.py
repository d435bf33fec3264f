"""A test without the marks that it needs fails, a failure shows how to run the test alone, signal
handlers are restored, and files that start processes run first."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import LIGHT_TORCH, environment

HERE = Path(__file__).parent
STARTS = """
import os, subprocess, threading
import pytest

@pytest.fixture(scope="module")
def shared():
    subprocess.run(["true"])

@pytest.fixture
def marking(starts):
    os.system("true")

@pytest.fixture
def ending():
    yield
    subprocess.run(["true"])

@pytest.mark.starts
def test_marked(shared): os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
def test_marked_by_a_fixture(marking): subprocess.run(["true"])
def test_starts_nothing(): open(os.devnull).close()
def test_fixture_of_another_ends(ending): pass

def test_popen(): subprocess.run(["echo", "hello"])
def test_fork(): os.fork()
def test_forkpty(): os.forkpty()
def test_posix_spawn(): os.posix_spawn("/bin/true", ["true"], {})
def test_system(): os.system("true")
def test_a_shared_fixture_that_started_before(shared): pass
@pytest.mark.parametrize("text", ["it's"])
def test_parameter(text): os.fork()
def test_thread():
    thread = threading.Thread(target=os.system, args=("true",))
    thread.start()
    thread.join()
"""
STARTS_WITHOUT_MARK = {
    "test_popen": "subprocess.Popen('echo', ['echo', 'hello'])",
    "test_fork": "os.fork()",
    "test_forkpty": "os.forkpty()",
    "test_posix_spawn": "os.posix_spawn('/bin/true', ['true'])",
    "test_system": "os.system(b'true',)",
    "test_a_shared_fixture_that_started_before": "its fixture shared",
    "test_parameter[it's]": "os.fork()",
    "test_thread": "os.system(b'true',)",
}


NEEDS = """
import pytest

def test_without_mark(): pytest.importorskip("no_such_library")
@pytest.mark.frameworks
def test_marked(): pytest.importorskip("no_such_library")
def test_skipped_for_another_reason(): pytest.skip("because")
def test_torch(): pytest.importorskip("torch.no_such_module")
"""

HANDLES = """
import signal

def test_leaves_a_handler(): signal.signal(signal.SIGTERM, lambda *_: None)
def test_finds_none(): assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""

pytestmark = pytest.mark.starts


def run(tests, directory):
    """Return the tests that failed, and the output."""
    (directory / "test_it.py").write_text(tests)
    options = ("-p", "conftest", "-c", HERE.parent / "pyproject.toml", "--rootdir", directory)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", directory],
        cwd=directory,
        env=environment(PYTHONPATH=f"{HERE}:{LIGHT_TORCH}"),
        capture_output=True,
        text=True,
    )
    return re.findall(r"^(?:FAILED|ERROR) test_it.py::(\S+)", done.stdout, re.M), done.stdout


def test_each_way_to_start_a_process(tmp_path):
    failed, output = run(STARTS, tmp_path)
    assert sorted(failed) == sorted(STARTS_WITHOUT_MARK), output
    for start in STARTS_WITHOUT_MARK.values():
        assert f"a process was started: {start}; mark this test with @pytest.mark.starts" in output
    assert "/pytest test_it.py::test_fork\n" in output
    assert """/pytest 'test_it.py::test_parameter[it'"'"'s]'\n""" in output


def test_a_library_that_is_missing(tmp_path):
    failed, output = run(NEEDS, tmp_path)
    assert failed == ["test_without_mark"], output
    assert "no_such_library is missing; mark this test with @pytest.mark.frameworks" in output
    assert "3 skipped" in output


def test_files_with_processes_begin_before_others(tmp_path):
    waits = "import pytest\n@pytest.mark.starts\ndef test_waits(): pass\n"
    (tmp_path / "test_later_by_its_name.py").write_text(waits)
    failed, output = run("def test_computes(): pass", tmp_path)
    assert failed == [], output
    assert output.index("test_later_by_its_name.py") < output.index("test_it.py")


def test_no_test_leaves_a_handler_of_a_signal(tmp_path):
    failed, output = run(HANDLES, tmp_path)
    assert failed == [], output
    assert "2 passed" in output
