"""Output: the mirror follows the files, and a console that takes nothing stops nobody."""

import errno
import io
import math
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.placement.streams import (
    Shown,
    Std,
    Streams,
    parse_filters,
    parse_local_ranks,
    parse_selection,
)
from hpclaunch.system.logs import console
from hpclaunch.system.logs.mirror import CHUNK, PARTIAL, SHARE, Duplicates, Mirror, Tap
from hpclaunch.system.shared.inotify import Inotify
from surroundings import full_disk


class Screen:
    """A console that takes everything, or `room` bytes."""

    def __init__(self, room=1 << 30):
        self.data = b""
        self.room = room

    def write(self, data):
        self.data += data
        self.room -= len(data)


def no_inotify(*args, **kwargs):
    raise OSError(24, "inotify instance limit reached")


@pytest.fixture(params=["inotify", "without inotify", "without watches"])
def mirror(request, monkeypatch):
    if request.param == "without inotify":
        monkeypatch.setattr("hpclaunch.system.shared.inotify._call", no_inotify)
    if request.param == "without watches":
        monkeypatch.setattr(Inotify, "add_watch", no_inotify)
    mirror = Mirror()
    yield mirror
    mirror.close()


def append(path, data):
    with path.open("ab") as f:
        f.write(data)


def test_lines_come_whole_and_in_order(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.out", Screen()
    mirror.follow(path, Tap(screen))
    append(path, b"one\ntw")
    mirror.wake(1.0)
    assert screen.data == b"one\n"
    append(path, b"o\n10%\r20%\r3")
    mirror.wake(1.3)
    assert screen.data == b"one\ntwo\n10%\r20%\r"


def test_a_file_that_was_emptied_is_shown_from_its_beginning(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.out", Screen()
    mirror.follow(path, Tap(screen))
    append(path, b"one\ntwo\n")
    mirror.wake(1.0)
    path.write_bytes(b"three\n")
    mirror.wake(1.3)
    assert screen.data == b"one\ntwo\nthree\n"


def test_a_line_without_an_end_is_shown_a_little_later(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.out", Screen()
    mirror.follow(path, Tap(screen))
    append(path, b"Loading... ")
    mirror.wake(1.0)
    assert screen.data == b""
    assert mirror.next_deadline() <= 1.0 + PARTIAL
    mirror.wake(1.0 + PARTIAL)
    assert screen.data == b"Loading... "
    append(path, b"done\n")
    mirror.wake(2.0)
    assert screen.data == b"Loading... done\n"


def test_two_ranks_do_not_tear_each_others_lines(mirror, tmp_path):
    screen = Screen()
    paths = [tmp_path / f"rank-{rank}.out" for rank in (0, 1)]
    for path in paths:
        mirror.follow(path, Tap(screen))
    for part in (b"half of a line, ", b"and the other\n"):
        for path in paths:
            append(path, part)
        mirror.wake(1.0)
        mirror.wake(1.0 + PARTIAL / 2)
    mirror.finish(2.0)
    assert sorted(screen.data.splitlines()) == [b"half of a line, and the other"] * 2


def test_what_was_in_a_file_before_is_not_shown_again(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.out", Screen()
    append(path, b"of an earlier run\n")
    mirror.follow(path, Tap(screen))
    append(path, b"new\n")
    mirror.wake(1.0)
    assert screen.data == b"new\n"


def test_a_full_console_leaves_the_rest_in_the_file(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.out", Screen(room=100)
    mirror.follow(path, Tap(screen))
    append(path, b"x" * 99 + b"\n" + b"y" * 99 + b"\n")
    mirror.wake(1.0)
    mirror.forget()  # the next round: what is not shown yet is still followed
    assert screen.data == b"x" * 99 + b"\n"
    screen.room = 1000
    mirror.wake(2.0)
    assert screen.data.endswith(b"y" * 99 + b"\n")
    mirror.forget()
    append(path, b"of nobody\n")
    mirror.wake(3.0)
    assert b"nobody" not in screen.data


def test_a_full_console_tears_no_line(mirror, tmp_path):
    """The end of the line is in the file: its first half can wait, however late it is."""
    path, screen = tmp_path / "rank-0.out", Screen(room=8)
    mirror.follow(path, Tap(screen, b"[0]:"))
    append(path, b"one\ntwo and more\n")
    mirror.wake(1.0)
    assert screen.room == 0
    mirror.wake(2.0)
    mirror.finish(3.0)
    assert screen.data == b"[0]:one\n"
    screen.room = 100
    assert mirror.next_deadline() <= 3.0
    mirror.wake(4.0)
    assert screen.data == b"[0]:one\n[0]:two and more\n"


def test_the_end_shows_everything(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.out", Screen()
    mirror.follow(path, Tap(screen))
    append(path, b"last words")
    mirror.finish(1.0)
    assert screen.data == b"last words"


def test_what_is_shown_nowhere_has_its_file_all_the_same(mirror, tmp_path):
    path = tmp_path / "rank-0.out"
    mirror.follow(path)
    assert path.stat().st_mode & 0o777 == 0o600
    append(path, b"for nobody\n")
    mirror.wake(1.0)
    mirror.finish(2.0)
    mirror.forget()


def test_a_prefix_comes_once_a_line(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.out", Screen()
    mirror.follow(path, Tap(screen, b"[0]:"))
    append(path, b"one\n\nLoading... ")
    mirror.wake(1.0)
    mirror.wake(1.0 + PARTIAL)
    assert screen.data == b"[0]:one\n[0]:\n[0]:Loading... "
    append(path, b"50% ")
    mirror.wake(2.0)
    mirror.wake(2.0 + PARTIAL)
    append(path, b"done\nand")
    mirror.wake(3.0)
    mirror.finish(4.0)
    assert screen.data == b"[0]:one\n[0]:\n[0]:Loading... 50% done\n[0]:and"


def test_a_progress_bar_does_not_write_over_its_prefix(mirror, tmp_path):
    path, screen = tmp_path / "rank-0.err", Screen()
    mirror.follow(path, Tap(screen, b"[0]:"))
    for now, part in enumerate([b"10%\r", b"20%\r30", b"%\r", b"\nWindows\r", b"\n"]):
        append(path, part)
        mirror.wake(now)
    assert screen.data == b"[0]:10%\r[0]:20%\r[0]:30%\r\n[0]:Windows\r\n"


ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b"[0]:", b"loss", b"\x0b\x85\xe2\x80\xa8", b"\0"])
PARTS = st.lists(st.lists(st.one_of(ENDS, st.binary(max_size=9))).map(b"".join), max_size=8)


@pytest.mark.fuzz
@given(parts=PARTS, pauses=st.lists(st.sampled_from([0.01, 1.0]), min_size=8, max_size=8))
def test_in_whatever_pieces_it_comes(parts, pauses):
    """Junk too: the plain console is the file byte for byte, a prefixed one has one a line."""
    plain, prefixed, searched = Screen(), Screen(), Screen()
    mirror, now = Mirror(), 0.0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rank-0.out"
        taps = Tap(plain), Tap(prefixed, b"[0]:"), Tap(searched, b"[0]:", (b"loss",))
        mirror.follow(path, *taps)
        for part, pause in zip(parts, pauses, strict=False):
            append(path, part)
            mirror.wake(now)
            now += pause
            mirror.wake(now)
        mirror.finish(now)
        mirror.close()
    whole = b"".join(parts)
    lines = [line.group() for line in re.finditer(rb"[^\r\n]*(\r\n|\r|\n)|[^\r\n]+$", whole)]
    assert plain.data == whole
    assert prefixed.data == b"".join(b"[0]:" + line for line in lines)
    found = [line.rstrip(b"\r\n") for line in lines if b"loss" in line]
    assert searched.data == b"".join(b"[0]:" + line + b"\n" for line in found)


def test_a_file_that_somebody_removes_is_followed_to_its_end(mirror, tmp_path):
    path, other, screen = tmp_path / "rank-0.out", tmp_path / "rank-1.out", Screen()
    mirror.follow(path, Tap(screen))
    append(path, b"one\n")
    path.unlink()
    mirror.finish(0.0)
    mirror.forget()
    mirror.follow(other, Tap(screen))
    append(other, b"two\n")
    mirror.finish(1.0)
    assert screen.data == b"one\ntwo\n"


def test_the_next_round_is_read_again_and_again_only_if_it_has_no_watches(tmp_path, monkeypatch):
    mirror, screen = Mirror(), Screen()
    with monkeypatch.context() as exhausted:
        exhausted.setattr(Inotify, "add_watch", no_inotify)
        mirror.follow(tmp_path / "rank-0.out", Tap(screen))
    mirror.finish(0.0)
    assert mirror.next_deadline() < math.inf
    mirror.forget()
    mirror.follow(tmp_path / "rank-1.out", Tap(screen))
    mirror.wake(1.0)
    assert mirror.next_deadline() == math.inf
    mirror.close()


def test_a_file_that_cannot_be_read_for_a_while(mirror, tmp_path, monkeypatch):
    path, screen, read = tmp_path / "rank-0.out", Screen(), os.read
    mirror.follow(path, Tap(screen))
    append(path, b"one\n")
    inode = path.stat().st_ino

    def stale(fd, size):
        if os.fstat(fd).st_ino == inode:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(fd, size)

    with monkeypatch.context() as troubled:
        troubled.setattr(os, "read", stale)
        mirror.finish(0.0)
    mirror.finish(1.0)
    assert screen.data == b"one\n"


def test_a_huge_line_is_neither_held_nor_lost(mirror, tmp_path):
    path, prefixed, searched = tmp_path / "rank-0.out", Screen(), Screen()
    mirror.follow(path, Tap(prefixed, b"[0]:"), Tap(searched, b"", (b"needle",)))
    huge = b"x" * (5 * CHUNK) + b" needle\n"
    append(path, huge + b"short needle\n")
    mirror.wake(1.0)
    assert prefixed.data == b"[0]:" + huge + b"[0]:short needle\n"
    assert searched.data.endswith(b" needle\nshort needle\n")
    assert len(searched.data) < 2 * CHUNK


def test_a_file_advances_by_the_room_of_the_fullest_sink(mirror, tmp_path):
    path, slow, fast = tmp_path / "rank-0.out", Screen(room=0), Screen()
    mirror.follow(path, Tap(slow), Tap(fast, b"[0]:"))
    append(path, b"one\ntwo\n")
    mirror.wake(1.0)
    assert (slow.data, fast.data) == (b"", b"")
    assert mirror.next_deadline() > 1.0
    slow.room = 4
    assert mirror.next_deadline() <= 1.0
    mirror.wake(2.0)
    assert (slow.data, fast.data) == (b"one\n", b"[0]:one\n")
    slow.room = 100
    mirror.finish(3.0)
    assert (slow.data, fast.data) == (b"one\ntwo\n", b"[0]:one\n[0]:two\n")


def test_a_file_that_grows_without_end_has_its_share(mirror, tmp_path):
    paths, screens = [tmp_path / name for name in ("a", "b")], [Screen(), Screen()]
    for path, screen in zip(paths, screens, strict=True):
        mirror.follow(path, Tap(screen))
    append(paths[0], b"x\n" * SHARE)
    append(paths[1], b"of the other\n")
    mirror.wake(1.0)
    assert SHARE <= len(screens[0].data) < 2 * SHARE
    assert screens[1].data == b"of the other\n"
    assert mirror.next_deadline() <= 1.0
    mirror.finish(2.0)
    assert len(screens[0].data) == 2 * SHARE


def test_more_news_than_the_kernel_keeps(tmp_path):
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    paths, screens = [tmp_path / name for name in ("a", "b", "last")], [Screen() for _ in range(3)]
    mirror = Mirror()
    for path, screen in zip(paths, screens, strict=True):
        mirror.follow(path, Tap(screen))
    mirror.wake(0.5)
    with paths[0].open("ab", 0) as a, paths[1].open("ab", 0) as b:
        for _ in range(limit // 2 + 1):
            a.write(b"a")
            b.write(b"b")
    append(paths[2], b"before it hangs\n")
    mirror.wake(1.0)
    assert screens[2].data == b"before it hangs\n"
    mirror.close()


def test_duplicates_are_whole_lines_with_one_of_the_needles(mirror, tmp_path):
    target = tmp_path / "filtered_stdout.log"
    duplicates, screen = Duplicates(target), Screen()
    for rank in (0, 1):
        taps = Tap(screen), Tap(duplicates, b"[%d]:" % rank, (b"loss", b"acc"))
        mirror.follow(tmp_path / f"rank-{rank}.out", *taps)
    append(tmp_path / "rank-0.out", b"epoch 1\nloss 0.3\nlo")
    append(tmp_path / "rank-1.out", b"acc 0.9")
    mirror.wake(1.0)
    mirror.wake(1.0 + PARTIAL)
    assert target.read_bytes() == b"[0]:loss 0.3\n"
    assert sorted(screen.data) == sorted(b"epoch 1\nloss 0.3\nloacc 0.9")
    append(tmp_path / "rank-0.out", b"ss 0.2\r")
    mirror.wake(2.0)
    mirror.finish(3.0)
    duplicates.close()
    assert target.read_bytes() == b"[0]:loss 0.3\n[0]:loss 0.2\n[1]:acc 0.9\n"
    assert target.stat().st_mode & 0o777 == 0o600


def test_duplicates_are_appended(tmp_path):
    target = tmp_path / "filtered_stdout.log"
    for _ in range(2):
        duplicates = Duplicates(target)
        duplicates.write(b"line\n")
        duplicates.close()
        duplicates.write(b"to nobody\n")
        assert duplicates.complaint() == ""
    assert target.read_bytes() == b"line\nline\n"


@pytest.mark.parametrize("path", ["{}/x", "/dev/full", "/no/such/directory/x", "/"])
def test_duplicates_that_cannot_be_written(mirror, tmp_path, path):
    """One message appears, once, and all other output continues."""
    path = path.format(tmp_path)
    duplicates, screen = Duplicates(Path(path)), Screen()
    mirror.follow(tmp_path / "rank-0.out", Tap(screen), Tap(duplicates, needles=(b"x",)))
    append(tmp_path / "rank-0.out", b"x\n" * CHUNK)
    with full_disk():
        mirror.finish(1.0)
    assert screen.data == b"x\n" * CHUNK
    assert duplicates.complaint() != ""
    assert duplicates.complaint() == ""


def test_a_console_that_nobody_reads_never_blocks():
    reader, writer = os.pipe()
    out = console.Console(writer)
    started = time.monotonic()
    for _ in range(100):
        out.write(b"z" * 4000)
    assert time.monotonic() - started < 60  # seconds; far more than this takes
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


MARK = b"<so far>"


@pytest.fixture
def terminal():
    """Yield a console on a terminal, and a function that returns what it shows."""
    end, theirs = pty.openpty()

    def shown():
        os.write(theirs, MARK)  # the kernel hands on what was written in its own time, in order
        text = b""
        while not text.endswith(MARK):
            text += os.read(end, 1 << 16)
        return text.removesuffix(MARK)

    yield console.Console(theirs), shown
    os.close(end)
    os.close(theirs)


def test_a_live_line_gives_way_to_messages_and_comes_back(terminal):
    out, shown = terminal
    out.set_live(b"waiting (1 s)")
    out.draw()
    out.draw()
    assert shown() == b"\r\x1b[Kwaiting (1 s)"
    out.say(b"a message\n")
    out.draw()
    assert shown() == b"\r\x1b[Ka message\r\n\r\x1b[Kwaiting (1 s)"
    out.set_live(b"")
    out.draw()
    assert shown() == b"\r\x1b[K"


def test_after_the_output_of_a_worker_it_comes_back_only_for_another_wait(terminal):
    out, shown = terminal
    out.set_live(b"waiting (1 s)")
    out.draw()
    shown()
    out.write(b"password: ")
    out.set_live(b"waiting (2 s)")
    out.draw()
    out.write(b"thanks\n")
    out.draw()
    assert shown() == b"\r\x1b[Kpassword: thanks\r\n"
    out.set_live(b"")
    out.write(b"without an end")
    out.set_live(b"waiting (1 s)")
    out.draw()
    assert shown() == b"without an end"
    out.say(b"\na message\n")
    out.draw()
    assert shown() == b"\r\na message\r\n\r\x1b[Kwaiting (1 s)"


def test_a_file_has_no_live_line(tmp_path):
    with (tmp_path / "console").open("wb") as f:
        out = console.Console(f.fileno())
        out.set_live(b"waiting")
        out.draw()
        out.write(b"a line\n")
    assert (tmp_path / "console").read_bytes() == b"a line\n"


def test_a_file_whose_disk_is_full_for_a_while(tmp_path):
    """The file gets all later text, and a line that says how much is missing."""
    path = tmp_path / "console"
    with path.open("wb") as f:
        out = console.Console(f.fileno())
        out.say(b"one\n")
        with full_disk():
            out.say(b"two\n")
            out.say(b"three\n")
        assert out.room == console.LIMIT
        out.say(b"four\n")
    lost = f"hpclaunch: 10 bytes are lost here: {os.strerror(errno.EFBIG)}"
    assert path.read_text().splitlines() == ["one", "", lost, "four"]


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


def test_a_stalled_console_loses_no_line_and_no_prefix(mirror, tmp_path):
    """The output is more than console and pipe hold, in lines of all lengths, and is read late."""
    reader, writer = os.pipe()
    path, out = tmp_path / "rank-0.out", console.Console(writer)
    mirror.follow(path, Tap(out, b"[default0]:"))
    lines = [b"%d " % n + b"x" * (n % 300) + b"\n" for n in range(8000)]
    append(path, b"".join(lines))
    mirror.wake(1.0)
    assert out.room == 0
    os.set_blocking(reader, False)
    received, now = io.BytesIO(), 1.0
    while out.wanting or mirror.next_deadline() <= now:
        received.write(os.read(reader, 1 << 16))
        out.flush()
        mirror.wake(now := now + 1)
    while text := _read(reader):
        received.write(text)
    assert received.getvalue() == b"".join(b"[default0]:" + line for line in lines)
    os.close(reader)
    os.close(writer)


def _read(fd):
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""


# The same lines in both streams of all workers: what does torchrun show of them?
SAY = """
import os, sys
for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
    for what in ("loss 0.3", "a, b", "nothing"):
        print(f"rank {os.environ['LOCAL_RANK']} {name}: {what}", file=stream)
"""
WORKERS = 3
TEMPLATE = "<${role_name} ${rank}/${local_rank} ${unknown} $>"


def said(local_rank, name):
    return [f"rank {local_rank} {name}: {what}" for what in ("loss 0.3", "a, b", "nothing")]


def lines_of_workers(text):
    return sorted(line for line in text.splitlines() if re.search(r"rank \d (out|err): ", line))


@pytest.mark.starts
@pytest.mark.parametrize(
    "options",
    [
        {"-r": "3", "-t": "0:3,1:1"},
        {"-t": "3", "--local-ranks-filter": "0,2", "--role": "trainer", "template": TEMPLATE},
        {"-r": "0:1,1:2", "-t": "1:1", "--local-ranks-filter": "1,2,7"},
        {"-t": "3", "--duplicate-stdout-filters": "loss,a,, b", "--duplicate-stderr-filters": "no"},
    ],
)
def test_it_is_shown_as_torchrun_shows_it(options, tmp_path):
    template = options.pop("template", "")
    streams = Streams(
        parse_selection("-r", options.get("-r", "0")),
        parse_selection("-t", options.get("-t", "0")),
        parse_local_ranks("--local-ranks-filter", options.get("--local-ranks-filter", "")),
        parse_filters(options.get("--duplicate-stdout-filters", "")),
        parse_filters(options.get("--duplicate-stderr-filters", "")),
        template,
    )
    shown = ours(streams, options.get("--role", "default"), tmp_path)
    for attempt in range(3):  # its threads write into each other's lines now and then
        theirs = torchrun(options, template, tmp_path / str(attempt))
        if theirs == shown:
            break
    assert shown == theirs


def torchrun(options, template, directory):
    """Return the lines on torchrun's stdout and stderr, and in its two files of duplicates."""
    directory.mkdir()
    script = directory / "say.py"
    script.write_text(SAY)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "TORCHELASTIC_"))}
    if template:
        env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = template
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={WORKERS}", f"--log-dir={directory / 'torchrun'}"]
    command += [word for option in options.items() for word in option]
    done = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, check=True, env=env
    )
    files = [
        "".join(path.read_text() for path in (directory / "torchrun").rglob(f"filtered_{name}.log"))
        for name in ("stdout", "stderr")
    ]
    return [lines_of_workers(text) for text in (done.stdout, done.stderr, *files)]


def ours(streams, role, directory):
    mirror = Mirror()
    screens = {"out": Screen(), "err": Screen()}
    copies = {"out": Screen(), "err": Screen()}
    for local_rank in range(WORKERS):
        prefix = os.fsencode(
            streams.prefix(role=role, rank=local_rank, local_rank=local_rank, host="n1")
        )
        for name, stream in (("out", Std.OUT), ("err", Std.ERR)):
            taps = []
            shown = streams.shown(local_rank, stream)
            if shown is not Shown.HIDDEN:
                taps.append(Tap(screens[name], prefix if shown is Shown.PREFIXED else b""))
            if needles := tuple(map(os.fsencode, streams.filters(stream))):
                taps.append(Tap(copies[name], prefix, needles))
            path = directory / f"rank-{local_rank}.{name}"
            mirror.follow(path, *taps)
            append(path, "".join(f"{line}\n" for line in said(local_rank, name)).encode())
    mirror.finish(1.0)
    mirror.close()
    return [lines_of_workers(s.data.decode()) for s in (*screens.values(), *copies.values())]
