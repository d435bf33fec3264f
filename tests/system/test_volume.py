"""--log-limit: what is oldest goes first, and what is kept stays in order."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpclaunch.system.logs import volume
from hpclaunch.system.logs.mirror import Mirror, Tap
from hpclaunch.system.logs.volume import SHORTEST, Volume, segments

LINE = 100


class Screen:
    room = 1 << 30

    def __init__(self):
        self.data = b""

    def write(self, data):
        self.data += data


def lines(first, last):
    return b"".join(b"%99d\n" % n for n in range(first, last))


def kept(file):
    return b"".join(part.read_bytes() for part in (*segments(file), file))


def took(directory):
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def test_without_a_limit_nothing_is_removed(tmp_path):
    """Earlier rounds are forgotten: their names would fill the memory."""
    found = Volume()
    for number in range(2):
        (tmp_path / f"{number}.out").write_text("words")
        found.follow([tmp_path / f"{number}.out"], 0)
    assert found.prune() == []


def append(file, data):
    with file.open("ab") as f:
        f.write(data)


def test_the_newest_lines_are_kept_in_order(tmp_path):
    file, found, limit = tmp_path / "rank-0.out", Volume(), 40 * SHORTEST
    found.follow([file], limit)
    for first in range(0, 10000, 100):
        append(file, lines(first, first + 100))
        found.cut()
        found.prune()
        assert took(tmp_path) <= limit
    assert lines(0, 10000).endswith(kept(file))
    assert took(tmp_path) > limit / 3


def test_files_of_earlier_rounds_go_first(tmp_path):
    found, limit = Volume(), 10 * SHORTEST
    files = [tmp_path / f"round-{number}" / "rank-0.out" for number in range(4)]
    for file in files:
        file.parent.mkdir()
        found.follow([file], limit)
        append(file, lines(0, 120))
    found.cut()
    found.prune()
    assert not files[0].exists()
    assert kept(files[-1]) == lines(0, 120)
    assert took(tmp_path) <= limit


def test_a_burst_is_not_copied_only_to_be_dropped(tmp_path):
    file, found, limit = tmp_path / "rank-0.out", Volume(), 16 * SHORTEST
    found.follow([file], limit)
    append(file, lines(0, 10000))
    (cut,) = found.cut()
    assert cut.begin == 10000 * LINE - limit // 2
    assert cut.segment.stat().st_size == limit // 2
    assert kept(file).endswith(lines(9950, 10000))


@pytest.mark.starts
def test_what_somebody_reads_stays_until_it_is_closed(tmp_path):
    found = Volume()
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file in files:
        found.follow([file], SHORTEST)
        append(file, lines(0, 40))
    reader = subprocess.Popen(["tail", "-f", files[0]], stdout=subprocess.PIPE)
    try:
        reader.stdout.read(1)
        assert found.prune() == [files[1]]
        assert files[0].exists()
    finally:
        reader.kill()
        reader.communicate()
    assert found.prune() == [files[0]]


def test_segments_of_a_launch_before_count(tmp_path):
    """Also where the process that looks after them is a new one."""
    file = tmp_path / "rank-0.out"
    for number in (1, 2, 10000):
        append(tmp_path / f"rank-0.out.{number:04}", lines(0, 200))
    append(tmp_path / "rank-0.out.old", b"the user's own")
    found = Volume()
    found.follow([file], 2 * SHORTEST)
    assert [path.name for path in found.prune()] == [
        "rank-0.out.0001",
        "rank-0.out.0002",
        "rank-0.out.10000",
    ]
    assert (tmp_path / "rank-0.out.old").exists()


def test_a_disk_without_room_for_a_segment(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(volume.os, "sendfile", full)
    file, found = tmp_path / "rank-0.out", Volume()
    found.follow([file], 4 * SHORTEST)
    append(file, lines(0, 1000))
    (cut,) = found.cut()
    assert cut.segment is None
    assert kept(file) == b""


def test_what_stands_in_the_place_of_a_file_is_not_touched(tmp_path):
    theirs = tmp_path / "precious"
    theirs.write_bytes(lines(0, 1000))
    (tmp_path / "rank-0.out").symlink_to(theirs)
    found = Volume()
    found.follow([tmp_path / "rank-0.out"], 4 * SHORTEST)
    assert found.cut() == []
    assert theirs.read_bytes() == lines(0, 1000)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.booleans()), max_size=30),
    st.integers(4, 60),
)
def test_the_console_shows_all_that_was_not_dropped(tmp_path_factory, steps, blocks):
    """Whenever files are cut and segments removed, before or after they are shown."""
    directory = tmp_path_factory.mktemp("volume")
    file, found, screen, mirror = directory / "rank-0.out", Volume(), Screen(), Mirror()
    mirror.follow(file, Tap(screen))
    found.follow([file], blocks * SHORTEST)
    last = skipped = 0
    for number, (count, shown, looks) in enumerate(steps):
        append(file, lines(last, last + count))
        last += count
        if shown:
            mirror.wake(float(number))
        if looks:
            for cut in found.cut():
                skipped += mirror.cut(cut.file, cut.begin, cut.segment)
            found.prune()
            skipped += mirror.skip_removed()
    mirror.finish(1000.0)
    mirror.close()
    assert len(screen.data) + skipped == last * LINE
    assert screen.data.split(b"\n")[-20:-1] == lines(0, last).split(b"\n")[-20:-1] or skipped
    if not skipped:
        assert screen.data == lines(0, last)


def test_an_index_takes_from_the_room_of_the_files(tmp_path):
    """But not all that a file has kept, though the cuts make it grow."""
    limit = 64 * SHORTEST
    files, index = [tmp_path / f"rank-{rank}.out" for rank in (0, 1)], tmp_path / "index"
    index.write_bytes(bytes(1000))
    found = Volume()
    found.follow(files, limit, index)
    for file in files:
        append(file, b"0123456\n" * limit)
    found.cut()
    append(index, bytes(100))
    found.prune()
    assert limit - 3 * SHORTEST < took(tmp_path) <= limit
    assert all(kept(file).endswith(b"0123456\n") for file in files)
    assert index.stat().st_size == 1100


CHATTY = """
import sys
for n in range(40000):
    print(f"{n:099}")
print("the end")
"""


@pytest.mark.starts
@pytest.mark.parametrize("workers", [1, 2])
def test_a_launch_with_a_limit(tmp_path, workers):
    script = tmp_path / "chatty.py"
    script.write_text(CHATTY)
    command = [sys.executable, "-m", "hpclaunch", "--nproc", str(workers), "--log-limit", "1M"]
    done = subprocess.run(
        [*command, "--log-dir", "logs", "-r", "3", script], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"from now on the oldest output is dropped") == 1
    assert took(tmp_path / "logs" / "round-0") <= 1 << 20
    for rank in range(workers):
        assert kept(tmp_path / "logs" / "round-0" / f"rank-{rank}.out").endswith(b"99\nthe end\n")
