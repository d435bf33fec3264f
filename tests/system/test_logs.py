"""The log directory, who uses it, and the last lines of what is in it."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.system.logs import log_directory
from hpclaunch.system.logs.log_directory import LogDirectory
from surroundings import SHORT, full_disk


def test_the_tail_is_the_last_lines(tmp_path):
    err, out = tmp_path / "e", tmp_path / "o"
    out.write_text("\n".join(f"line {n}" for n in range(5000)))
    assert log_directory.tail(out, 0).splitlines()[-1] == "line 4999"
    assert len(log_directory.tail(out, 0).splitlines()) == log_directory.TAIL_LINES
    err.write_bytes(b"Traceback\nBoom \xff\n\n")
    assert log_directory.tail(err, 0) == "Traceback\nBoom �"
    assert log_directory.tail(tmp_path / "none", 0) == ""


def test_the_tail_is_without_colours(tmp_path):
    (tmp_path / "e").write_text("\x1b[1;31mValueError\x1b[0m: no\x1b[K\n\x1b[0m\n")
    assert log_directory.tail(tmp_path / "e", 0) == "ValueError: no"


def test_what_an_earlier_launch_has_written_is_not_in_the_tail(tmp_path):
    file = tmp_path / "o"
    file.write_text("Traceback\nModuleNotFoundError\n")
    begin = log_directory.size(file)
    assert log_directory.tail(file, begin) == ""
    with file.open("a") as f:
        f.write("epoch 1\n")
    assert log_directory.tail(file, begin) == "epoch 1"


def test_the_log_directory_is_private_and_reused(tmp_path):
    directory = log_directory.LogDirectory(tmp_path / "logs" / "7.0", "7.0")
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.round(3) == tmp_path / "logs" / "7.0" / "round-3"
    log_directory.LogDirectory(tmp_path / "logs" / "7.0", "7.0")


@pytest.fixture
def temporary(monkeypatch, tmp_path_factory):
    """Make a temporary directory, in one of this user's that others may enter."""
    tmp_path_factory.getbasetemp()  # before another directory is the temporary one
    above = Path(tempfile.mkdtemp(dir=SHORT, prefix="hpclaunch-test-"))
    above.chmod(0o755)
    place = above / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    shutil.rmtree(above)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777])
def test_a_temporary_directory_has_a_name_that_nobody_can_guess(temporary, mode):
    temporary.chmod(mode)
    made = [log_directory.make_temporary("logs-") for _ in range(2)]
    assert made[0] != made[1]
    assert [(each.parent, each.stat().st_mode & 0o777) for each in made] == [(temporary, 0o700)] * 2


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_none_where_others_can_rename_it(temporary, mode):
    temporary.chmod(mode)
    with pytest.raises(OSError, match=f"others can rename its contents: '{temporary}'"):
        log_directory.make_temporary("logs-")
    temporary.parent.chmod(0o700)  # now nobody else gets there
    log_directory.make_temporary("logs-")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("mode", [0o755, 0o1777])
@pytest.mark.parametrize("is_above", [False, True])
def test_none_below_a_directory_of_another_user(temporary, tmp_path, mode, is_above, monkeypatch):
    if is_above:
        (temporary / "mine").mkdir()
        (tmp_path / "link").symlink_to(temporary / "mine")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    temporary.chmod(mode)
    os.chown(temporary, 65534, 65534)
    with pytest.raises(OSError, match=f"it belongs to another user: .*{temporary}"):
        log_directory.make_temporary("logs-")


def test_a_log_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to the log directory"):
        log_directory.LogDirectory(tmp_path / "file" / "logs", "7.0")


USES = """
import sys
from pathlib import Path
from hpclaunch.system.logs import log_directory
sys.stdin.readline()
print(log_directory.unused(Path("logs"), sys.argv[1], sys.argv[2])[0], flush=True)
sys.stdin.read()
"""


@pytest.mark.starts
def test_each_of_many_launches_at_once_has_a_directory_that_its_agents_share(tmp_path):
    """Four launches of three agents each; two of them have one name, as in a batch script."""
    launches = [("7.batch", "1"), ("7.batch", "2"), ("8.0", "3"), ("9.0", "4")]
    agents = [
        subprocess.Popen(
            [sys.executable, "-c", USES, *launch],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for launch in launches * 3
    ]
    for agent in agents:
        agent.stdin.write("go\n")
        agent.stdin.flush()
    found = [agent.stdout.readline().strip() for agent in agents]
    for agent in agents:
        agent.communicate()
    assert found[:4] == found[4:8] == found[8:]
    assert len(set(found[:4])) == 4
    assert "logs" in found[:4]
    assert log_directory.unused(tmp_path / "logs", "10.0", "5") == (tmp_path / "logs", "10.0")


def test_names_of_directories_in_use(tmp_path):
    found = [log_directory.unused(tmp_path, "7.batch", str(n))[0] for n in range(4)]
    assert found == [tmp_path, *(tmp_path / f"7.batch{n}" for n in ("", "-2", "-3"))]
    assert log_directory.unused(tmp_path, "7.batch", "2") == (found[2], "7.batch")


def test_agents_that_share_a_directory_have_one_name_for_the_launch(tmp_path):
    """Without Slurm, each has one of its own at first."""
    names = ("local-1-17", "local-2-40", "local-2-41")
    found = [log_directory.unused(tmp_path, name, "machines 3 a\nb 29500") for name in names]
    assert found == [(tmp_path, "local-1-17")] * 3


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def flock(fd, how):
        raise OSError(errno.ENOSYS, "there are none")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert log_directory.unused(tmp_path, "7.0", "a") == (tmp_path, "7.0")
    assert log_directory.unused(tmp_path, "8.0", "b") == (tmp_path, "8.0")


def test_something_in_the_place_of_the_lock(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launch.lock").symlink_to(victim)
    path, _ = log_directory.unused(tmp_path / "logs", "7.0", "a")
    assert path == tmp_path / "logs" / "7.0"
    assert victim.read_text() == "mine"


def test_launches_of_one_name_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    above = Path("hpclaunch-logs")
    found = [log_directory.default("7.batch", alone=True) for _ in range(3)]
    assert found == [above / "7.batch", above / "7.batch-2", above / "7.batch-3"]
    assert log_directory.default("7.0", alone=False) == above / "7.0"


def test_another_agent_makes_the_directory_of_all_launches_just_now(tmp_path, monkeypatch):
    for number in range(300):
        (directory := tmp_path / str(number)).mkdir()
        monkeypatch.chdir(directory)
        both = threading.Barrier(2)
        other = threading.Thread(target=lambda both=both: (both.wait(), os.mkdir("hpclaunch-logs")))
        other.start()
        both.wait()
        assert {log_directory.of_all_launches() for _ in range(30)} == {Path("hpclaunch-logs")}
        other.join()


UNSEARCHABLE = """
import os, sys
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.system.logs import log_directory
os.chdir(sys.argv[1])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    log_directory.default("7.0", alone=True)
except UsageError as e:
    print(e)
"""


@pytest.mark.starts
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_working_directory_of_another_user(tmp_path):
    tmp_path.chmod(0o700)
    command = [sys.executable, "-c", UNSEARCHABLE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    refused = "cannot write to the log directory hpclaunch-logs/7.0: Permission denied"
    assert done.stdout.startswith(refused), done.stderr


@pytest.mark.parametrize(
    ("there", "launch", "first"),
    [
        ("7.0/round-0 7.0/round-4", "7.0.r1", 5),
        ("7.0/round-4 7.0.r1/round-5 7.0.r2/round-6", "7.0.r2", 6),  # another agent has begun it
        ("7.0/round-0 7.batch/round-1 77.0/round-9 8.0/round-9", "7.0.r1", 1),
        ("7.batch/round-1 7.batch-2/round-2", "7.batch-3", 3),
        ("7.0/round-x 7.0/other", "7.0.r1", 0),
        ("", "7.0.r1", 0),
        ("7.0_111/round-2", "7.0_222.r1", 3),  # --rdzv-id $RANDOM
    ],
)
def test_the_rounds_of_another_run_are_counted_on(tmp_path, there, launch, first):
    for path in there.split():
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / launch).mkdir(exist_ok=True)
    name = launch.partition("-")[0]
    assert LogDirectory(tmp_path / launch, name, name).first_round == first
    assert LogDirectory(tmp_path / "8.0", "8.0").first_round == 0


def test_a_first_agent_on_a_full_disk(tmp_path):
    logs = LogDirectory(tmp_path / "logs", "7.0")
    with full_disk():
        assert not logs.was_begun("7.0 1")


def test_runs_with_the_same_log_directory(tmp_path):
    (tmp_path / "logs" / "round-2").mkdir(parents=True)
    assert LogDirectory(tmp_path / "logs", "7.0.r1", "7.0.r1").first_round == 3
