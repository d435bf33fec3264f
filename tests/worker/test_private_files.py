"""Directories and files for one user alone, where another user may write too."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hpclaunch.worker.private_files import check_directory, make_directory, open_file

NOBODY = 65534
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
with_others = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


@pytest.fixture(params=[0o000, 0o002, 0o077], ids=oct)
def shared(request, tmp_path):
    """Yield a directory for a group, under any umask."""
    before = os.umask(request.param)
    (tmp_path / "project").mkdir()
    (tmp_path / "project").chmod(0o2777)
    yield tmp_path / "project"
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode) & 0o777


def test_every_level_that_is_made(shared):
    make_directory(shared / "a" / "b" / "c")
    assert [mode(shared / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    os.close(open_file(shared / "a" / "file", APPEND))
    assert mode(shared / "a" / "file") == 0o600
    assert mode(shared) == 0o777  # it was there


def test_one_that_is_there_stays_as_it_is(shared):
    (shared / "mine").mkdir()
    (shared / "mine").chmod(0o750)
    (shared / "link").symlink_to("mine")
    for name in ("mine", "link"):
        make_directory(shared / name)
    assert mode(shared / "mine") == 0o750


SITE = Path(__file__).parents[2] / "launcher" / "hpclaunch" / "worker" / "site"
SQUASHED = f"""
import ctypes, os, sys
sys.path += {[str(SITE), str(SITE.parents[2])]}
import _hpclaunch_errors
from hpclaunch.worker.private_files import make_directory, open_file
os.setgroups([])
os.setresuid({NOBODY}, 12345, 0)
ctypes.CDLL(None).setfsuid({NOBODY})  # what it makes is nobody's
for _ in range(2):
    make_directory("logs/round-0")
    os.close(open_file("logs/round-0/rank-0.out", {APPEND}))
    os.close(_hpclaunch_errors.open_own("logs/round-0/rank-0.error.json", {APPEND}))
print(os.geteuid(), os.stat("logs").st_uid, *sorted(os.listdir("logs/round-0")))
"""


@pytest.mark.starts
@with_others
def test_where_all_that_a_user_makes_belongs_to_another(tmp_path):
    """NFS that squashes root behaves so."""
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", SQUASHED], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == f"12345 {NOBODY} rank-0.error.json rank-0.out\n"


def planted(path, how):
    """By another user, or what no other user could make an innocent one of."""
    target = path.parent / "target"
    if how == "another's link":
        target.mkdir()
        path.symlink_to(target)
    elif how == "another's":
        path.mkdir()
    elif how == "a link to another's":
        target.mkdir()
        path.symlink_to(target)
        os.chown(target, NOBODY, NOBODY)
        return
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@with_others
@pytest.mark.parametrize("how", ["another's", "another's link", "a link to another's"])
def test_a_directory_of_another_user_is_refused(tmp_path, how):
    planted(tmp_path / "logs", how)
    for function in (make_directory, check_directory):
        with pytest.raises(PermissionError, match="another user"):
            function(tmp_path / "logs")
    with pytest.raises(OSError, match="another user"):
        make_directory(tmp_path / "logs")


def test_what_is_no_directory_is_refused(tmp_path):
    (tmp_path / "logs").touch()
    (tmp_path / "nowhere").symlink_to("gone")
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "logs")
    with pytest.raises(FileNotFoundError):
        make_directory(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        make_directory(tmp_path / "nowhere" / "further")


@pytest.mark.parametrize("flags", [APPEND, ANEW, os.O_RDONLY, os.O_RDONLY | os.O_CREAT])
@pytest.mark.parametrize("kind", ["link", "link to nothing", "hard link", "pipe", "socket", "full"])
def test_what_is_no_file_of_ones_own_is_refused(tmp_path, kind, flags):
    """At once: whoever opens a pipe waits for its other end."""
    path, victim = tmp_path / "rank-0.err", tmp_path / "authorized_keys"
    victim.write_text("mine")
    match kind:
        case "link":
            path.symlink_to(victim)
        case "link to nothing":
            path.symlink_to("new")
        case "hard link":
            path.hardlink_to(victim)
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as s:
                os.chdir(tmp_path)
                s.bind(path.name)
        case "full":
            path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=str(path)):
        open_file(path, flags)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "new").exists()


@with_others
def test_a_file_of_another_user_is_refused(tmp_path):
    path = tmp_path / "rank-0.out"
    path.touch()
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        open_file(path, APPEND)


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "rank-0.out"
    for _ in range(2):
        fd = open_file(path, APPEND)
        os.write(fd, b"line\n")
        assert os.get_blocking(fd)
        assert not os.get_inheritable(fd)
        os.close(fd)
    assert path.read_text() == "line\n" * 2
    os.close(open_file(path, ANEW))
    assert path.read_text() == ""
