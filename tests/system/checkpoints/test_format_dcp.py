"""Directories by torch.distributed.checkpoint, which really writes them."""

import os
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
from looking import (
    cut_short,
    damage,
    date,
    empty,
    lose_the_first_page,
    newest,
    passed_over,
    zero_the_middle,
)

from hpclaunch.system.checkpoints import pickles
from hpclaunch.system.checkpoints.finding import search
from hpclaunch.system.checkpoints.formats.dcp import shards
from hpclaunch.system.checkpoints.listing import Folder
from hpclaunch.system.checkpoints.reading import ResultCache


def dcp_save(directory: Path, at: int, **options) -> Path:
    """Save two shards, each with several tensors and other objects; return the directory."""
    import torch
    from torch.distributed import checkpoint as dcp

    state = {f"layer.{i}": torch.full((100, 20 + i), float(i)) for i in range(6)}
    writer = dcp.FileSystemWriter(directory, thread_count=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process, and a directory that was there
        dcp.save({"model": state, "epoch": at, "name": "x" * 300}, storage_writer=writer, **options)
    date(directory, at)
    return directory


def read(directory: Path) -> set[tuple[str, int, int]]:
    return {
        (part.label, start, length)
        for part in shards(Folder(str(directory)))
        for start, length in part.pieces
    }


def test_all_that_dcp_says_of_its_shards_is_read_without_unpickling(tmp_path):
    directory = dcp_save(tmp_path / "epoch-1", at=100)
    written = pickle.loads((directory / ".metadata").read_bytes()).storage_data.values()
    found = read(directory)
    assert found == {(piece.relative_path, piece.offset, piece.length) for piece in written}
    assert len({name for name, _, _ in found}) == 2


def test_shards_are_looked_at_again_once_the_metadata_say_something_else(tmp_path):
    """The same file of metadata may be written again beside shards that stay as they are."""
    directory = dcp_save(tmp_path / "epoch-1", at=100)
    cache = ResultCache()
    assert [found.lacks for found in search(str(tmp_path), cache=cache)] == [None]
    path = directory / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    last = max(metadata.storage_data.values(), key=lambda piece: piece.offset)
    last.length += 1
    path.write_bytes(pickle.dumps(metadata))
    (found,) = search(str(tmp_path), cache=cache)
    assert found.lacks is not None
    assert found.lacks.startswith(f"{last.relative_path}: cut short")


@pytest.mark.parametrize(
    ("victim", "change", "reason"),
    [
        ("__0_0.distcp", cut_short, "__0_0.distcp: cut short"),
        ("__0_1.distcp", zero_the_middle, "__0_1.distcp: "),
        ("__0_1.distcp", lose_the_first_page, "__0_1.distcp: not written out"),
        ("__0_0.distcp", empty, "__0_0.distcp: cut short"),
        (".metadata", cut_short, ".metadata is cut short"),
        (".metadata", empty, ".metadata is cut short"),
        (".metadata", lambda data: bytes(len(data)), ".metadata is cut short or damaged"),
        (".metadata", lambda data: pickle.dumps({}), ".metadata names no shard"),
    ],
)
def test_a_damaged_one_is_passed_over(tmp_path, victim, change, reason):
    good = dcp_save(tmp_path / "epoch-1", at=100)
    damage(dcp_save(tmp_path / "epoch-2", at=200) / victim, change)
    assert reason in passed_over(tmp_path, good)


@pytest.mark.parametrize("victim", range(2))
def test_any_tensor_of_a_shard_may_be_the_damaged_one(tmp_path, victim):
    """Each tensor is an archive; the table of contents of the last one covers no other."""
    directory = dcp_save(tmp_path / "epoch-1", at=100)
    name = f"__0_{victim}.distcp"
    path = directory / name
    for _, start, length in (piece for piece in read(directory) if piece[0] == name):
        whole = path.read_bytes()
        middle = start + length // 2
        damage(path, lambda data, at=middle: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert "__0_" in passed_over(tmp_path)
        damage(path, lambda data, whole=whole: whole)
    assert newest(tmp_path) == (str(directory), [])


def test_a_save_that_was_torn(tmp_path):
    """Ranks die before all have written, and the first one waits for them."""
    good = dcp_save(tmp_path / "epoch-1", at=100)
    torn = dcp_save(tmp_path / "epoch-2", at=200)
    (torn / ".metadata").rename(torn / ".metadata.tmp")
    assert ".metadata is missing" in passed_over(tmp_path, good)


def test_a_shard_that_is_not_there(tmp_path):
    (dcp_save(tmp_path / "epoch-2", at=200) / "__0_1.distcp").unlink()
    assert "__0_1.distcp is missing" in passed_over(tmp_path)


def test_a_torn_save_over_a_complete_one(tmp_path):
    """One rank's shard is of the new save, the metadata and the other shard are of the old one."""
    directory = dcp_save(tmp_path / "last", at=100)
    os.utime(directory / "__0_1.distcp", (160, 160))
    assert "__0_1.distcp is newer than .metadata" in passed_over(tmp_path)


def test_what_a_larger_world_has_left_does_not_count(tmp_path):
    directory = dcp_save(tmp_path / "last", at=100)
    (directory / "__7_0.distcp").write_bytes(b"of an older save")
    assert newest(tmp_path) == (str(directory), [])


def test_a_script_may_save_in_one_place(tmp_path):
    dcp_save(tmp_path, at=100)
    assert newest(tmp_path) == (str(tmp_path), [])
    damage(tmp_path / "__0_0.distcp", cut_short)
    assert "__0_0.distcp: cut short" in passed_over(tmp_path)


def test_by_several_ranks_at_once_or_in_the_background(tmp_path, maker):
    for name, options in {
        "at-once": {},
        "thread": {"background": "thread"},
        "threads": {"threads": 3},
    }.items():
        root = tmp_path / name
        maker("dcp").save(root, 1, 2, world=2, **options)
        assert newest(root) == (str(root / "step-2"), [])
        assert maker("dcp").load(root / "step-2", root, world=2) == 2


def test_without_collectives_all_ranks_have_to_have_metadata(tmp_path):
    """Each rank then has metadata of its own, and nothing comes last."""
    directory = dcp_save(tmp_path / "step-1", at=100)
    (directory / ".metadata").rename(directory / "__0.metadata")
    assert newest(tmp_path) == (str(directory), [])
    path, (line,) = newest(tmp_path, rounds=[[90 * 10**9, 110 * 10**9, 2]])
    assert path == ""
    assert "__1.metadata is missing: rank 1 of 2 had not saved yet" in line
    (directory / "__3.metadata").write_bytes(b"of a larger world, which was torn")
    os.utime(directory / "__3.metadata", (80, 80))
    rounds = [[70 * 10**9, 90 * 10**9, 4], [90 * 10**9, 110 * 10**9, 1]]
    assert newest(tmp_path, rounds=rounds) == (str(directory), [])


def test_the_metadata_of_all_ranks_are_read_once(tmp_path, monkeypatch):
    directory = dcp_save(tmp_path / "step-1", at=100)
    for rank in range(4):
        shutil.copy2(directory / ".metadata", directory / f"__{rank}.metadata")
    (directory / ".metadata").unlink()
    read, pieces = [], pickles.pieces
    monkeypatch.setattr(pickles, "pieces", lambda window: read.append(window) or pieces(window))
    for _ in range(3):
        assert newest(tmp_path) == (str(directory), [])
    assert len(read) == 4
