"""The stager as a process: requests and replies, the end of its agent, and a full disk."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from random_kills import LIMIT, eventually, wait_for
from saving_scripts import SCRIPTS, picture, write
from stalling_storage import stalling_storage

from helper_programs import program_after
from hpclaunch.system.shared import helper
from hpclaunch.system.staging import messages
from hpclaunch.system.staging.client import LIBRARIES, StagingClient
from hpclaunch.system.staging.stage_directory import StageDirectory

pytestmark = pytest.mark.starts
ROOT = Path(__file__).parents[3]


@pytest.fixture
def storage(tmp_path):
    path = tmp_path / "storage" / "ckpt"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def directory(tmp_path, storage):
    base = tmp_path / "memory"
    base.mkdir()
    made = StageDirectory(str(base), str(storage))
    yield made
    made.remove()
    assert os.listdir(base) == []


@pytest.fixture
def client(directory, storage):
    made = StagingClient(messages.Settings(str(storage), directory.path, "launch"))
    yield made
    made.close()


def test_a_launch_from_its_start_to_its_end(client, directory, storage):
    stage = Path(directory.path)
    SCRIPTS["files"](storage, 1)
    client.send(messages.Restore(1))
    assert wait_for(client, messages.Restored).path == str(storage / "step-1.pt")
    assert picture(stage) == picture(storage)
    client.send(messages.Rounds([(0, None, 1)], hurry=True))
    SCRIPTS["files"](stage, 2)
    drained = wait_for(client, messages.Drained)
    assert (drained.path, drained.step) == (str(storage / "step-2.pt"), 2)
    eventually(lambda: not (storage / "step-1.pt").exists())
    (stage / "log").write_text("done")
    client.send(messages.Flush(2))
    assert wait_for(client, messages.Flushed) == messages.Flushed(2, (), "")
    assert picture(stage) == picture(storage)


def test_after_the_end_of_its_agent_it_saves_what_is_left(client, directory, storage):
    stage = Path(directory.path)
    client.send(messages.Restore(1))
    wait_for(client, messages.Restored)
    for step in (1, 2):
        write(stage / f"step-{step}.pt", step)
    (stage / "log").write_text("the end")
    expected = picture(stage)
    client._lines.close()
    client._process.wait(LIMIT)
    assert picture(storage) == expected
    assert not stage.parent.exists()


def test_the_next_launch_waits_for_what_a_dead_agent_has_left(
    tmp_path, directory, storage, request
):
    killed = StageDirectory(str(tmp_path / "memory"), str(storage))
    orphan = StagingClient(messages.Settings(str(storage), killed.path, "killed"))
    orphan.send(messages.Restore(1))
    wait_for(orphan, messages.Restored)
    orphan._process.send_signal(signal.SIGSTOP)  # storage is slow
    try:
        write(Path(killed.path) / "step-1.pt", 1)
        for fd in (killed._lock, killed._agent):
            os.close(fd)
        orphan._lines.close()
        client = request.getfixturevalue("client")
        client.send(messages.Restore(1))
        assert not select.select([client], [], [], 2)[0]
        orphan._process.send_signal(signal.SIGCONT)
        assert wait_for(client, messages.Restored).path == str(storage / "step-1.pt")
        orphan._process.wait(LIMIT)
    finally:
        orphan._process.kill()


def test_a_fault_of_its_own_is_shown(directory, storage, monkeypatch, capfd):
    fault = "Looking.look = lambda _: open('missing')"
    program = program_after("from hpclaunch.system.staging.looking import Looking", fault)
    monkeypatch.setattr(helper, "_PROGRAM", program)
    with contextlib.closing(
        StagingClient(messages.Settings(str(storage), directory.path, "launch"))
    ) as client:
        assert client._process.wait(LIMIT) == 1
        assert "FileNotFoundError" in capfd.readouterr().err


BELOW = {
    "*/checkpoints": ("run-1/checkpoints", "run-2/checkpoints"),
    "**": ("run-1/checkpoints", "run-2/checkpoints"),
    "": ("lightning_logs/version_1/checkpoints", "checkpoints"),
}


@pytest.mark.parametrize(("pattern", "below"), BELOW.items())
def test_directories_below(directory, storage, pattern, below):
    client = StagingClient(messages.Settings(str(storage), directory.path, "launch", pattern))
    with contextlib.closing(client):
        stage = Path(directory.path)
        first, second = (f"{path}/step-1.pt" for path in below)
        write(storage / first, 1)
        client.send(messages.Restore(1))
        assert wait_for(client, messages.Restored).path == str(storage / first)
        write(stage / second, 2)
        assert wait_for(client, messages.Drained).path == str(storage / second)
        client.send(messages.Flush(1))
        assert wait_for(client, messages.Flushed).missing == ()
        assert picture(storage) == picture(stage)


@contextlib.contextmanager
def tmpfs(path, size):
    """Mount a file system of this size in memory."""
    if os.geteuid():
        pytest.skip("only root can mount")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def small(storage):
    """Mount a file system with room for two checkpoints at the storage directory."""
    with tmpfs(storage, "450k"):
        yield storage


def test_full_storage(client, directory, small):
    stage = Path(directory.path)
    for step in (1, 2):
        write(stage / f"step-{step}.pt", step)
        assert wait_for(client, messages.Drained).step == step
    write(stage / "step-3.pt", 3)
    failed = wait_for(client, messages.DrainFailed)
    assert failed == messages.DrainFailed(str(small / "step-3.pt"), "No space left on device")
    (stage / "log").write_text("a log")
    client.send(messages.Flush(1))
    flushed = wait_for(client, messages.Flushed)
    assert flushed.missing == (str(small / "step-3.pt"),)
    assert flushed.checkpoint == flushed.missing[0]
    assert sorted(picture(small)) == ["log", "step-1.pt", "step-2.pt"]
    (small / "step-1.pt").unlink()
    client.send(messages.Flush(2))
    assert wait_for(client, messages.Flushed).missing == (str(small / "step-1.pt"),)
    assert "step-3.pt" in picture(small)


def test_storage_that_hangs_does_not_keep_memory_full(tmp_path):
    """Checkpoints on storage are deleted in memory when that gets short: the script keeps all."""
    base, target = tmp_path / "memory", tmp_path / "storage" / "ckpt"
    base.mkdir()
    with stalling_storage(tmp_path) as storage, tmpfs(base, "6000k"):  # for three
        target.mkdir()
        directory = StageDirectory(str(base), str(target))
        stage = Path(directory.path)
        with contextlib.closing(
            StagingClient(messages.Settings(str(target), str(stage), "launch"))
        ) as client:
            for step in (1, 2):
                write(stage / f"step-{step}.pt", step, more=os.urandom(1 << 20))
                assert wait_for(client, messages.Drained).step == step
            storage.stall()
            write(stage / "step-3.pt", 3, more=os.urandom(1 << 20))
            # Room is made for another one.
            eventually(lambda: not (stage / "step-1.pt").exists())
            storage.release()
            assert wait_for(client, messages.Drained).step == 3
        directory.remove()
        assert sorted(os.listdir(target)) == ["step-1.pt", "step-2.pt", "step-3.pt"]


APART = """
import sys
sys.path += {paths}
from hpclaunch.system.staging import messages
from hpclaunch.system.staging.client import StagingClient

directories = {storage!r}, {stage!r}
client = StagingClient(messages.Settings(*directories, "job", has_several_nodes=True))
client.send(messages.Secret({key!r}))
while not (replies := client.replies()) and not client.lost:
    pass
print(*replies)
client.close()
"""


def test_libraries_may_be_installed_apart(tmp_path, directory, storage):
    """A user's own cryptography, for example, needs the cffi of the system."""
    paths = [str(ROOT / "launcher")]
    for library in LIBRARIES:
        found = find_spec(library)
        place = Path(found.origin).parent if found.submodule_search_locations else found.origin
        paths.append(str(tmp_path / library))
        os.mkdir(paths[-1])
        os.symlink(place, os.path.join(paths[-1], os.path.basename(place)))
    program = APART.format(paths=paths, storage=str(storage), stage=directory.path, key="00" * 32)
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert "Listening" in done.stdout, done.stderr
