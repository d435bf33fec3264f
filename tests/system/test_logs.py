"""Output: the mirror follows the files, and a console that takes nothing stops nobody."""

import os
import time

import pytest

from hpclaunch.core.errors import UsageError
from hpclaunch.system import console, logs


class Shown:
    """A console that takes everything, or `room` bytes."""

    def __init__(self, room=1 << 20):
        self.data = b""
        self.room = room

    def write(self, data):
        self.data += data
        self.room -= len(data)


@pytest.fixture(params=["inotify", "without inotify"])
def mirror(request, monkeypatch):
    if request.param == "without inotify":

        def none(*args, **kwargs):
            raise OSError(24, "inotify instance limit reached")

        monkeypatch.setattr(logs.inotify_simple, "INotify", none)
    mirror = logs.Mirror()
    yield mirror
    mirror.close()


def append(path, data):
    with path.open("ab") as f:
        f.write(data)


def test_lines_come_whole_and_in_order(mirror, tmp_path):
    path, shown = tmp_path / "rank-0.out", Shown()
    mirror.follow(path, shown)
    append(path, b"one\ntw")
    mirror.wake(1.0)
    assert shown.data == b"one\n"
    append(path, b"o\n10%\r20%\r3")
    mirror.wake(1.3)
    assert shown.data == b"one\ntwo\n10%\r20%\r"


def test_a_line_without_an_end_is_shown_a_little_later(mirror, tmp_path):
    path, shown = tmp_path / "rank-0.out", Shown()
    mirror.follow(path, shown)
    append(path, b"Loading... ")
    mirror.wake(1.0)
    assert shown.data == b""
    mirror.wake(1.0 + logs.PARTIAL)
    assert shown.data == b"Loading... "
    append(path, b"done\n")
    mirror.wake(2.0)
    assert shown.data == b"Loading... done\n"


def test_two_ranks_do_not_tear_each_others_lines(mirror, tmp_path):
    shown = Shown()
    paths = [tmp_path / f"rank-{rank}.out" for rank in (0, 1)]
    for path in paths:
        mirror.follow(path, shown)
    for part in (b"half of a line, ", b"and the other\n"):
        for path in paths:
            append(path, part)
        mirror.wake(1.0)
        mirror.wake(1.0 + logs.PARTIAL / 2)
    mirror.finish(2.0)
    assert sorted(shown.data.splitlines()) == [b"half of a line, and the other"] * 2


def test_what_was_in_a_file_before_is_not_shown_again(mirror, tmp_path):
    path, shown = tmp_path / "rank-0.out", Shown()
    append(path, b"of an earlier run\n")
    mirror.follow(path, shown)
    append(path, b"new\n")
    mirror.wake(1.0)
    assert shown.data == b"new\n"


def test_a_full_console_leaves_the_rest_in_the_file(mirror, tmp_path):
    path, shown = tmp_path / "rank-0.out", Shown(room=100)
    mirror.follow(path, shown)
    append(path, b"x" * 99 + b"\n" + b"y" * 99 + b"\n")
    mirror.wake(1.0)
    mirror.forget()  # the next round: what is not shown yet is still followed
    assert shown.data == b"x" * 99 + b"\n"
    shown.room = 1000
    mirror.wake(2.0)
    assert shown.data.endswith(b"y" * 99 + b"\n")
    mirror.forget()
    append(path, b"of nobody\n")
    mirror.wake(3.0)
    assert b"nobody" not in shown.data


def test_the_end_shows_everything(mirror, tmp_path):
    path, shown = tmp_path / "rank-0.out", Shown()
    mirror.follow(path, shown)
    append(path, b"last words")
    mirror.finish(1.0)
    assert shown.data == b"last words"


def test_a_console_that_nobody_reads_never_blocks():
    reader, writer = os.pipe()
    out = console.Console(writer)
    started = time.monotonic()
    for _ in range(100):
        out.write(b"z" * 4000)
    assert time.monotonic() - started < 10
    assert out.wanting
    assert out.room < console.LIMIT
    received = b""
    while out.wanting:
        received += os.read(reader, 1 << 16)
        out.flush()
    while len(received) < 400_000:
        received += os.read(reader, 1 << 16)
    assert received == b"z" * 400_000
    os.close(reader)
    os.close(writer)


def test_a_console_that_has_gone_swallows_everything():
    reader, writer = os.pipe()
    out = console.Console(writer)
    os.close(reader)
    out.write(b"to nobody\n")
    out.write(b"to nobody\n")
    assert out.gone
    assert not out.wanting
    os.close(writer)
    assert console.Console(writer).gone


def test_the_tail_is_the_last_lines_of_the_first_file_with_any(tmp_path):
    err, out = tmp_path / "e", tmp_path / "o"
    out.write_text("\n".join(f"line {n}" for n in range(5000)))
    assert logs.tail(err, out).splitlines()[-1] == "line 4999"
    assert len(logs.tail(err, out).splitlines()) == logs.TAIL_LINES
    err.write_bytes(b"Traceback\nBoom \xff\n\n")
    assert logs.tail(err, out) == "Traceback\nBoom �"
    assert logs.tail(tmp_path / "none") == ""


def test_the_log_directory_is_private_and_reused(tmp_path):
    directory = logs.LogDirectory(tmp_path / "logs" / "7.0")
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.round(3) == tmp_path / "logs" / "7.0" / "round-3"
    assert directory.round(3).stat().st_mode & 0o777 == 0o700
    logs.LogDirectory(tmp_path / "logs" / "7.0")


def test_a_log_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to the log directory"):
        logs.LogDirectory(tmp_path / "file" / "logs")
