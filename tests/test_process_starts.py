"""A test that starts a process without its mark fails; any failure says how to run the test."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import environment

HERE = Path(__file__).parent
TESTS = """
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


@pytest.mark.starts
def test_each_way_to_start_a_process(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    options = ("-p", "conftest", "-c", HERE.parent / "pyproject.toml", "--rootdir", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env=environment(PYTHONPATH=HERE),
        capture_output=True,
        text=True,
    )
    failed = re.findall(r"^(?:FAILED|ERROR) test_it.py::(\S+)", done.stdout, re.MULTILINE)
    assert sorted(failed) == sorted(STARTS_WITHOUT_MARK), done.stdout
    for name, start in STARTS_WITHOUT_MARK.items():
        why = f"a process was started: {start}; mark this test with @pytest.mark.starts"
        assert why in done.stdout, name
    assert "/pytest test_it.py::test_fork\n" in done.stdout
    assert """/pytest 'test_it.py::test_parameter[it'"'"'s]'\n""" in done.stdout
