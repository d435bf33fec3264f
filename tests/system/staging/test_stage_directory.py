"""The staging directory: private, held by a lock, and swept once nobody holds it."""

import errno
import fcntl
import os
import shutil
import threading

import pytest

from hpclaunch.system.staging.stage_directory import (
    BESIDE,
    LOCK,
    StageDirectory,
    await_orphans,
    lock_shared,
    of_launches,
    sweep,
)


@pytest.fixture
def base(tmp_path):
    return str(tmp_path)


def home(base):
    return os.path.join(base, f"hpclaunch-stage-{os.geteuid()}")


def kill_agent(made):
    os.close(made._lock)
    os.close(made._agent)


def test_it_is_private_and_has_the_name_of_the_directory_on_storage(base):
    made = StageDirectory(base, "/scratch/u/checkpoints/")
    assert os.path.basename(made.path) == "checkpoints"
    assert os.path.isdir(made.path)
    for directory in (home(base), os.path.dirname(made.path)):
        assert os.stat(directory).st_mode & 0o777 == 0o700
    made.remove()
    assert os.listdir(base) == []


def test_nothing_is_left_of_one_for_which_there_is_no_room(base, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            StageDirectory(base, "/scratch/u/checkpoints")
    assert os.listdir(base) == []


@pytest.mark.parametrize("name", ["", *sorted(BESIDE)])
def test_its_name_is_that_of_no_file_of_the_stager(base, name):
    made = StageDirectory(base, f"/{name}")
    assert os.path.basename(made.path) == "checkpoints"
    made.remove()


def test_one_that_another_program_has_deleted_is_made_again(base):
    made = StageDirectory(base, "/scratch/u/ckpt")
    path = made.path
    made.renew()
    assert made.path == path
    os.rmdir(path)
    made.renew()
    assert not os.path.exists(path)  # the script has deleted it
    shutil.rmtree(home(base))
    made.renew()
    assert (made.path, os.listdir(path)) == (path, [])
    sweep(base)
    assert os.path.isdir(path)  # it is locked
    made.remove()
    assert os.listdir(base) == []


def test_one_that_is_in_use_is_not_swept(base):
    made = StageDirectory(base, "ckpt")
    sweep(base)
    assert os.path.isdir(made.path)
    lock = lock_shared(os.path.dirname(made.path))  # the stager's
    kill_agent(made)
    sweep(base)
    assert os.path.isdir(made.path)
    os.close(lock)
    sweep(base)
    assert os.listdir(base) == []


def test_the_one_of_a_launch_that_runs(base, monkeypatch):
    monkeypatch.setattr("hpclaunch.system.staging.stage_directory.BASE", base)
    made = StageDirectory(base, "/scratch/u/ckpt")
    assert list(of_launches("/scratch/u/ckpt/")) == [made.path]
    assert not list(of_launches("/scratch/u"))
    kill_agent(made)
    assert not list(of_launches("/scratch/u/ckpt"))


def test_in_a_directory_that_others_can_write_to_no_launch_is_shown(base, monkeypatch):
    """Others may have made a pipe there, which is never at its end."""
    monkeypatch.setattr("hpclaunch.system.staging.stage_directory.BASE", base)
    assert not list(of_launches("/scratch/u/ckpt"))
    StageDirectory(base, "/scratch/u/ckpt")
    os.chmod(home(base), 0o777)
    assert not list(of_launches("/scratch/u/ckpt"))


def test_where_locks_fail_no_launch_is_shown(base, monkeypatch):
    monkeypatch.setattr("hpclaunch.system.staging.stage_directory.BASE", base)
    made = StageDirectory(base, "/scratch/u/ckpt")

    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert not list(of_launches("/scratch/u/ckpt"))
    made.remove()


def test_one_without_a_lock_is_swept(base):
    """The agent was killed before it made one."""
    os.makedirs(os.path.join(home(base), "half", "ckpt"))
    os.chmod(home(base), 0o700)
    sweep(base)
    assert os.listdir(base) == []


def test_another_launch_stays(base):
    one, other = StageDirectory(base, "ckpt"), StageDirectory(base, "ckpt")
    one.remove()
    assert os.path.isdir(other.path)
    other.remove()
    assert os.listdir(base) == []


def test_the_next_launch_has_the_same_path_but_one_beside_another_does_not(base):
    one, other = StageDirectory(base, "/scratch/u/ckpt"), StageDirectory(base, "/scratch/v/ckpt")
    beside = StageDirectory(base, "/scratch/u/ckpt")
    assert len({one.path, other.path, beside.path}) == 3
    one.remove()
    following = StageDirectory(base, "/scratch/u/ckpt/")
    assert following.path == one.path
    for each in (other, beside, following):
        each.remove()


def test_launches_that_begin_at_the_same_time_have_a_directory_each(base, monkeypatch):
    made, mkdir = [], os.mkdir

    def mkdir_before_another(path, mode=0o777):
        mkdir(path, mode)
        if os.path.dirname(path) == home(base):
            monkeypatch.undo()
            sweep(base)
            made.append(StageDirectory(base, "ckpt"))

    monkeypatch.setattr(os, "mkdir", mkdir_before_another)
    beginning = threading.Thread(
        target=lambda: made.append(StageDirectory(base, "ckpt")), daemon=True
    )
    beginning.start()
    beginning.join(5)
    assert len(made) == 2
    assert len({each.path for each in made if os.path.isdir(each.path)}) == 2


def test_launches_that_sweep_at_the_same_time_leave_a_new_directory_alone(base, monkeypatch):
    made, flock = [], fcntl.flock
    kill_agent(StageDirectory(base, "ckpt"))

    def flock_after_another(*words):
        monkeypatch.undo()
        sweep(base)
        made.append(StageDirectory(base, "ckpt"))
        flock(*words)

    monkeypatch.setattr(fcntl, "flock", flock_after_another)
    sweep(base)
    assert os.path.isdir(made[0].path)


def test_a_deleted_one_is_not_made_again_if_another_launch_has_its_path_now(base):
    made = StageDirectory(base, "ckpt")
    shutil.rmtree(home(base))
    following = StageDirectory(base, "ckpt")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        made.renew()
    assert os.path.isdir(following.path)
    following.remove()
    made.renew()
    assert os.path.isdir(made.path)


def test_only_orphans_of_the_same_storage_directory_are_awaited(base):
    made = StageDirectory(base, "/scratch/u/ckpt")
    lock = lock_shared(os.path.dirname(made.path))  # its stager's
    new = StageDirectory(base, "/scratch/u/ckpt")
    own = os.path.dirname(new.path)
    await_orphans(own, "/scratch/u/ckpt")  # the agent lives: no wait
    kill_agent(made)
    await_orphans(own, "/scratch/u/other")
    waiting = threading.Thread(target=await_orphans, args=(own, "/scratch/u/ckpt"))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    os.close(lock)
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_a_directory_that_others_can_read_or_a_link_is_refused(base, kind):
    if kind == "directory":
        os.mkdir(home(base))
        os.chmod(home(base), 0o755)
    else:
        os.symlink("/tmp", home(base))
    with pytest.raises(PermissionError, match="private"):
        StageDirectory(base, "ckpt")
    with pytest.raises(PermissionError, match="private"):
        sweep(base)


@pytest.mark.parametrize("at", ["lstat", "listdir"])
def test_the_directory_of_the_user_may_vanish_at_any_moment(base, monkeypatch, at):
    """The last of the other launches ends, and removes it."""
    original, todo = getattr(os, at), [home(base)]

    def vanish(path, **options):
        if path in todo:
            todo.remove(path)
            os.rmdir(path)
        return original(path, **options)

    monkeypatch.setattr(os, at, vanish)
    sweep(base)
    assert not todo
    StageDirectory(base, "ckpt").remove()


def test_one_that_was_swept_cannot_be_held(base):
    made = StageDirectory(base, "ckpt")
    made.remove()
    with pytest.raises(FileNotFoundError):
        lock_shared(os.path.dirname(made.path))


def test_one_that_is_swept_while_it_is_locked_cannot_be_held(base, monkeypatch):
    made = StageDirectory(base, "ckpt")
    own = os.path.dirname(made.path)
    opened = os.open

    def open_late(path, *more):
        fd = opened(path, *more)
        os.unlink(os.path.join(own, LOCK))
        return fd

    monkeypatch.setattr(os, "open", open_late)
    with pytest.raises(FileNotFoundError):
        lock_shared(own)
