"""The keeper's side of MPS daemons where the kernel grants less than usual."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from hpclaunch.worker import mps_daemon
from hpclaunch.worker.mps_daemon import FrontEnd, MpsDaemon
from hpclaunch.worker.processes import Spawner


@pytest.fixture
def _no_process(monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "no further process")

    monkeypatch.setattr(mps_daemon.subprocess, "Popen", refuse)


@pytest.mark.usefixtures("_no_process")
def test_a_daemon_that_cannot_be_asked_gives_no_answer():
    front = FrontEnd("nvidia-cuda-mps-control", "pipes")
    assert front.clients() is None
    assert front.another_user() is None


@pytest.mark.usefixtures("_no_process")
def test_a_daemon_that_cannot_be_asked_to_end_is_killed(tmp_path, monkeypatch):
    """The server of a daemon would outlive it otherwise."""
    daemon = MpsDaemon("nvidia-cuda-mps-control", str(tmp_path), ["GPU-1"], Spawner({}, ()))
    killed = []
    monkeypatch.setattr(MpsDaemon, "alive", lambda _: True)
    monkeypatch.setattr(mps_daemon, "end_users", lambda path: killed.append(path) or True)
    assert mps_daemon.stop([daemon]) == []
    assert killed == [str(tmp_path)]


@pytest.fixture
def lockless(tmp_path, monkeypatch):
    """Make a directory on a file system without flock(2), as Lustre is where nobody enabled it."""
    flock, place = fcntl.flock, tmp_path / "lustre"

    def refuse(fd, operation):
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(place)):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(mps_daemon, "LONGEST", 1000)
    place.mkdir()
    return place


def test_a_place_without_locks_is_not_used_and_stays_empty(lockless, tmp_path):
    path, lock = mps_daemon.enter([str(lockless), str(tmp_path)], "mps-7")
    assert path == f"{tmp_path}/mps-7"
    assert list(lockless.iterdir()) == []
    os.close(lock)


def test_a_directory_that_another_keeper_uses_stays_if_the_kernel_grants_no_lock(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(mps_daemon, "LONGEST", 1000)
    _, lock = mps_daemon.enter([str(tmp_path)], "mps-7")

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(mps_daemon.MpsError):
        mps_daemon.enter([str(tmp_path)], "mps-7")
    assert os.path.samestat(os.stat(tmp_path / "mps-7" / "lock"), os.fstat(lock))
    os.close(lock)


def test_what_an_older_launch_left_in_a_place_without_locks_does_no_harm(lockless):
    (lockless / "mps-6").mkdir()
    assert mps_daemon.sweep([str(lockless)], "mps-") == []
