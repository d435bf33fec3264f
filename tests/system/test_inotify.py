"""Files that have grown, as the kernel reports them without another process."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from hpclaunch.system.shared.inotify import MODIFY, ONESHOT, Inotify


@pytest.fixture
def inotify():
    made = Inotify()
    yield made
    made.close()


def append(path):
    with path.open("ab") as file:
        file.write(b"more")


def test_each_file_that_has_grown_is_named_by_its_watch(inotify, tmp_path):
    paths = [tmp_path / os.fsdecode(name) for name in (b"a", b"gr\xf6\xdfe", b"c")]
    for path in paths:
        path.touch()
    watches = [inotify.add_watch(path, MODIFY) for path in paths]
    assert len({*watches}) == 3
    assert inotify.read() == []
    assert select.select([inotify], [], [], 0)[0] == []
    append(paths[1])
    append(paths[0])
    assert select.select([inotify], [], [], 0)[0] == [inotify]
    assert inotify.read() == [watches[1], watches[0]]
    assert inotify.read() == []


def test_a_watch_for_one_event(inotify, tmp_path):
    path = tmp_path / "file"
    path.touch()
    watch = inotify.add_watch(path, MODIFY | ONESHOT)
    append(path)
    append(path)
    assert inotify.read()[0] == watch
    append(path)
    assert inotify.read() == []


def test_a_watch_that_is_taken_away(inotify, tmp_path):
    path = tmp_path / "file"
    path.touch()
    watch = inotify.add_watch(path, MODIFY)
    inotify.rm_watch(watch)
    inotify.read()  # that it is gone
    append(path)
    assert inotify.read() == []
    with pytest.raises(OSError, match="Invalid argument"):
        inotify.rm_watch(watch)


def test_a_file_that_is_not_there(inotify, tmp_path):
    with pytest.raises(FileNotFoundError):
        inotify.add_watch(tmp_path / "nowhere", MODIFY)


def test_all_that_the_kernel_keeps_is_read_at_once(inotify, tmp_path):
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.touch()
    watches = [inotify.add_watch(path, MODIFY) for path in paths]
    with paths[0].open("ab", 0) as a, paths[1].open("ab", 0) as b:
        for _ in range(limit // 2 + 1):  # two events in a row for one file are one
            a.write(b"a")
            b.write(b"b")
    found = inotify.read()
    assert found[:2] == watches
    assert found[-1] == -1
    assert inotify.read() == []
