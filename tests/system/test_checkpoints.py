"""The search for the newest complete checkpoint, on files that torch.save really wrote."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
import torch

from hpclaunch.system import checkpoints


def save(path: Path, at: int) -> Path:
    torch.save({"model": torch.arange(50_000.0), "epoch": at}, path)
    os.utime(path, (at, at))
    return path


def damage(path: Path, change) -> None:
    """Rewrite a file's bytes, keeping its time."""
    info = path.stat()
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def zero_the_middle(data: bytearray) -> bytearray:
    third = len(data) // 3
    data[third : 2 * third] = bytes(third)
    return data


def cut_short(data: bytearray) -> bytearray:
    return data[: len(data) // 2]


def lose_the_last_byte(data: bytearray) -> bytearray:
    return data[:-1]


def lose_the_first_page(data: bytearray) -> bytearray:
    data[:4096] = bytes(4096)
    return data


def test_a_directory_that_is_not_there_yet_has_none(tmp_path):
    assert checkpoints.newest(tmp_path / "later") == ("", [])


def test_the_newest_by_time(tmp_path):
    save(tmp_path / "epoch-9.pt", at=200)
    newest = save(tmp_path / "best.pt", at=300)
    save(tmp_path / "epoch-10.pt", at=100)
    assert checkpoints.newest(tmp_path) == (str(newest), [])


def test_of_the_same_moment_the_higher_number(tmp_path):
    save(tmp_path / "epoch-9.pt", at=200)
    newest = save(tmp_path / "epoch-10.pt", at=200)
    assert checkpoints.newest(tmp_path) == (str(newest), [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (cut_short, "cut short"),
        (lose_the_last_byte, "cut short"),
        (zero_the_middle, "damaged"),
        (lose_the_first_page, "not written out"),
        (lambda data: b"", "empty"),
        (lambda data: b"hello", "not written by torch.save"),
    ],
)
def test_an_incomplete_one_is_passed_over_and_named(tmp_path, change, reason):
    good = save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-2.pt", at=200), change)
    path, passed_over = checkpoints.newest(tmp_path)
    assert path == str(good)
    (line,) = passed_over
    assert line.startswith("epoch-2.pt: ")
    assert reason in line


@pytest.fixture
def without_checksums():
    """What torch.save writes once a user has found its CRCs too slow: 0 for each."""
    torch.serialization.set_crc32_options(False)
    yield
    torch.serialization.set_crc32_options(True)


def lose_the_page_of(mark: bytes):
    """The last of them: a page is written out whole or not at all."""

    def change(data: bytearray) -> bytearray:
        page = data.rindex(mark) // 4096 * 4096
        data[page : page + 4096] = bytes(len(data[page : page + 4096]))
        return data

    return change


@pytest.mark.usefixtures("without_checksums")
def test_a_file_without_checksums_is_complete(tmp_path):
    newest = save(tmp_path / "epoch-1.pt", at=100)
    with zipfile.ZipFile(newest) as archive:
        assert {member.CRC for member in archive.infolist()} == {0}
    assert checkpoints.newest(tmp_path) == (str(newest), [])
    torch.save({"none": torch.zeros(0), "text": "x" * 10_000}, newest)
    assert checkpoints.newest(tmp_path) == (str(newest), [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (cut_short, "cut short"),
        (lose_the_last_byte, "cut short"),
        (lose_the_first_page, "not written out"),
        (lambda data: data[:4096] + data[8192:], "unreadable"),
        (lose_the_page_of(b"PK\x01\x02"), "cut short"),  # of the table of contents
        (lose_the_page_of(b"PK\x03\x04"), "cut short"),  # the same page, in so small a file
    ],
)
@pytest.mark.usefixtures("without_checksums")
def test_one_without_checksums_has_to_be_whole(tmp_path, change, reason):
    good = save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-2.pt", at=200), change)
    path, (line,) = checkpoints.newest(tmp_path)
    assert path == str(good)
    assert line.startswith("epoch-2.pt: ")
    assert reason in line


@pytest.mark.parametrize("begin", [b"PK\x03\x04", b"PK\x07\x08"])
@pytest.mark.usefixtures("without_checksums")
def test_without_checksums_every_page_where_a_tensor_begins_or_ends_counts(tmp_path, begin):
    """Nothing shows that a page within a tensor is missing, but these say where each is."""
    good = save(tmp_path / "epoch-1.pt", at=100)
    path = tmp_path / "epoch-2.pt"
    torch.save({name: torch.arange(50_000.0) for name in "ab"}, path)
    data = path.read_bytes()
    at = data.index(begin, 100_000)
    path.write_bytes(data[:at] + bytes(4) + data[at + 4 :])
    found, (line,) = checkpoints.newest(tmp_path)
    assert found == str(good)
    assert line.startswith("epoch-2.pt: damaged (")


def test_a_checksum_that_is_zero_does_not_excuse_the_others(tmp_path):
    path = tmp_path / "epoch-1.pt"
    torch.save({"none": torch.zeros(0), "some": torch.arange(50_000.0)}, path)
    assert checkpoints.newest(tmp_path) == (str(path), [])
    damage(path, zero_the_middle)
    _, (line,) = checkpoints.newest(tmp_path)
    assert "damaged" in line


def test_drafts_and_other_files_are_none_of_our_business(tmp_path):
    good = save(tmp_path / "epoch-1.pt", at=100)
    save(tmp_path / "epoch-2.tmp", at=200)
    save(tmp_path / ".epoch-2.pt.swp", at=200)
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "older").mkdir()
    (tmp_path / "gone.pt").symlink_to(tmp_path / "nowhere")
    assert checkpoints.newest(tmp_path) == (str(good), [])


def test_a_name_that_is_no_text_is_passed_over(tmp_path):
    """It could not be told to other nodes. What is said of it is for any console."""
    good = save(tmp_path / "epoch-1.pt", at=100)
    save(Path(os.fsdecode(bytes(tmp_path) + b"/ep\xff\x1b[31m.pt")), at=200)
    damage(save(tmp_path / "ep\nhpclaunch: all is well.pt", at=300), cut_short)
    assert checkpoints.newest(tmp_path) == (
        str(good),
        [
            "ep?hpclaunch: all is well.pt: cut short or still being written",
            "ep??[31m.pt: its name is not UTF-8",
        ],
    )


def test_nothing_in_the_directory_changes(tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-2.pt", at=200), cut_short)

    def picture() -> dict[str, tuple[str, int]]:
        return {
            p.name: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
            for p in tmp_path.iterdir()
        }

    before = picture()
    checkpoints.newest(tmp_path)
    assert picture() == before


def test_the_search_runs_beside_the_agent(tmp_path):
    newest = save(tmp_path / "epoch-1.pt", at=100)
    search = checkpoints.Search(str(tmp_path))
    answer = None
    while answer is None:
        answer = search.answer()
    search.close()
    assert (answer.path, answer.passed_over) == (str(newest), [])
    assert answer.disk["free"] > 0
    assert answer.disk["writable"]


def test_a_search_that_fails_says_so(tmp_path):
    (tmp_path / "file").touch()
    search = checkpoints.Search(str(tmp_path / "file"))

    def answer():
        while (answer := search.answer()) is None:
            pass
        return answer

    with pytest.raises(OSError, match="ended with 1"):
        answer()
    search.close()
