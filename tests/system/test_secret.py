"""The secret file: made once, private, refused otherwise."""

import errno
import os
import pwd
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.system.network import secret


def test_made_on_first_use_and_private(tmp_path):
    path = tmp_path / "state" / "hpclaunch" / "secret"
    made = secret.load_or_create(path)
    assert len(made) == secret.BYTES
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert secret.load_or_create(path) == made
    assert [p.name for p in path.parent.iterdir()] == ["secret"]


def test_many_at_once_agree(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        made = set(pool.map(lambda _: secret.load_or_create(tmp_path / "secret"), range(64)))
    assert len(made) == 1


@pytest.fixture
def no_hard_links(monkeypatch):
    """Refuse hard links, like FAT and many file systems in user space. Who writes the file may take
    as long as a busy machine does.
    """

    def refuse(source, target):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(secret, "WRITING", 120.0)


@pytest.mark.usefixtures("no_hard_links")
def test_many_at_once_agree_where_there_are_no_hard_links(tmp_path):
    path = tmp_path / "secret"
    before = os.umask(0)
    try:
        with ThreadPoolExecutor(16) as pool:
            made = set(pool.map(lambda _: secret.load_or_create(path), range(64)))
    finally:
        os.umask(before)
    assert made == {path.read_bytes()}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


@pytest.mark.usefixtures("no_hard_links")
def test_one_that_another_agent_is_just_writing_is_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.touch(0o600)
    written = bytes(secret.BYTES)
    monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(written))
    assert secret.load_or_create(path) == written


def test_nobody_can_write_where_it_is_made(tmp_path):
    """Whatever the umask is: whoever can write above it could put another one in its place."""
    path = tmp_path / ".local" / "state" / "hpclaunch" / "secret"
    before = os.umask(0)
    try:
        secret.load_or_create(path)
    finally:
        os.umask(before)
    made = [above for above in path.parents if above.is_relative_to(tmp_path / ".local")]
    assert [stat.S_IMODE(above.stat().st_mode) for above in made] == [0o700] * 3


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_open_to_others_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    secret.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"open to others \\(mode {mode:04o}\\)"):
        secret.load_or_create(path)


def test_too_short_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.touch(0o600)
    with pytest.raises(UsageError, match="too short"):
        secret.load_or_create(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_of_another_user_is_refused(tmp_path):
    path = tmp_path / "secret"
    secret.load_or_create(path)
    os.chown(path, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user"):
        secret.load_or_create(path)


def test_a_place_that_cannot_be_written_names_the_way_out(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=secret.VARIABLE):
        secret.load_or_create(tmp_path / "file" / "secret")


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HPCLAUNCH_SECRET_FILE": "/s", "XDG_STATE_HOME": "/x"}, "/s"),
        ({"XDG_STATE_HOME": "/x"}, "/x/hpclaunch/secret"),
        ({"XDG_STATE_HOME": ""}, "/home/me/.local/state/hpclaunch/secret"),
        ({"XDG_STATE_HOME": "not/absolute"}, "/home/me/.local/state/hpclaunch/secret"),
        ({}, "/home/me/.local/state/hpclaunch/secret"),
    ],
)
def test_where_it_is(environ, path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert str(secret.secret_path(environ)) == path


def test_without_a_home_it_has_no_place(monkeypatch):
    """In a container, the user may be unknown."""

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match=f"set HOME, or {secret.VARIABLE}"):
        secret.secret_path({})


@pytest.mark.fuzz
@given(st.binary(max_size=100))
def test_any_content(tmp_path, data):
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret, "WRITING", 0.0)
        if len(data) >= secret.BYTES:
            assert secret.load_or_create(path) == data
        else:
            with pytest.raises(UsageError, match="too short"):
                secret.load_or_create(path)
