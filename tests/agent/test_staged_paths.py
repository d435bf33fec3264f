"""Words of the script's arguments that name the checkpoint directory."""

from __future__ import annotations

import pytest

from hpclaunch.agent.staged_paths import StagedPaths, aliases

PATHS = StagedPaths("/data/ckpt", "/dev/shm/s/x")


@pytest.fixture(autouse=True)
def _in_data(monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: "/data")


@pytest.mark.parametrize(
    ("word", "there"),
    [
        ("ckpt", "/dev/shm/s/x"),
        ("./ckpt/", "/dev/shm/s/x/"),
        ("/data/ckpt", "/dev/shm/s/x"),
        ("ckpt/last.pt", "/dev/shm/s/x/last.pt"),
        ("--dir=ckpt/run", "--dir=/dev/shm/s/x/run"),
        ("trainer.dir=../data/ckpt", "trainer.dir=/dev/shm/s/x"),
        ("ckpt/lr=3", "/dev/shm/s/x/lr=3"),
        ("--dir=~/ckpt/run", "--dir=/dev/shm/s/x/run"),
    ],
)
def test_the_directory_and_what_lies_below_it_is_replaced(word, there, monkeypatch):
    monkeypatch.setenv("HOME", "/data")
    assert PATHS.word(word) == there


@pytest.mark.parametrize(
    "word", ["ckpt2", "--ckpt", "other/ckpt", "..", "", "--dir=", "--lr=3", "=", "https://ckpt/x"]
)
def test_other_words_are_kept(word):
    assert PATHS.word(word) == word


def test_links_to_the_directory(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "scratch" / "ckpt").mkdir(parents=True)
    (tmp_path / "home").symlink_to("scratch")
    (tmp_path / "link").symlink_to("home/ckpt")
    for storage, other in (("scratch/ckpt", "home/ckpt"), ("home/ckpt", "link")):
        words = (f"--dir={tmp_path / other}/run", str(tmp_path / "scratch"), "")
        found = aliases(str(tmp_path / storage), words)
        assert found == (str(tmp_path / other),)
        assert aliases(str(tmp_path / storage), [f"--dir=~/{other}"]) == found
        paths = StagedPaths(str(tmp_path / storage), "/dev/shm/s/x", aliases=found)
        assert paths.word(words[0]) == "--dir=/dev/shm/s/x/run"
        assert paths.word(words[1]) == words[1]


def test_a_path_comes_back_from_memory():
    for path in ("/data/ckpt", "/data/ckpt/a/b.pt", "/elsewhere/ckpt", "/data/ckpt2", ""):
        assert PATHS.stored(PATHS.staged(path)) == path
