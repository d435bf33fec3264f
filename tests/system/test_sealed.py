"""Checkpoints that are directories: by DCP, which really writes them, and by others."""

import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from test_checkpoints import (
    cut_short,
    damage,
    lose_the_first_page,
    save,
    without_checksums,  # noqa: F401 - a fixture
    zero_the_middle,
)
from torch.distributed import checkpoint as dcp

from hpclaunch.system import checkpoints, sealed


def dcp_save(directory: Path, at: int) -> Path:
    """Two shards, each with several tensors and other objects; sealed at this time."""
    state = {f"layer.{i}": torch.full((100, 20 + i), float(i)) for i in range(6)}
    writer = dcp.FileSystemWriter(directory, thread_count=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process, and a directory that was there
        dcp.save({"model": state, "epoch": at, "name": "x" * 300}, storage_writer=writer)
    date(directory, at)
    return directory


def date(directory: Path, at: int) -> None:
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (at, at))


def tag(directory: Path, name: str, at: int, ranks: int = 2) -> Path:
    """What DeepSpeed's save_checkpoint(directory, name) leaves, but for `latest`."""
    (directory / name).mkdir(parents=True)
    save(directory / name / "mp_rank_00_model_states.pt", at)
    for rank in range(ranks):
        save(directory / name / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", at)
    date(directory / name, at)
    return directory / name


def latest(directory: Path, name: str, at: int) -> None:
    (directory / "latest").write_text(name)
    os.utime(directory / "latest", (at, at))


def test_a_tag_in_another_encoding(tmp_path):
    newest = tag(tmp_path, os.fsdecode(b"gr\xf6\xdfe"), at=100)
    (tmp_path / "latest").write_bytes(b"gr\xf6\xdfe")
    assert checkpoints.newest(tmp_path) == (str(newest), [])


def passed_over(directory: Path, good: Path | str = "") -> str:
    """The one line about what is newer than `good`, which is chosen."""
    path, (line,) = checkpoints.newest(directory)
    assert path == str(good)
    return line


def test_directories_and_files_the_newest_by_their_seal(tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    newest = dcp_save(tmp_path / "epoch-2", at=300)
    save(tmp_path / "epoch-3.pt", at=200)
    dcp_save(tmp_path / "epoch-10", at=100)
    assert checkpoints.newest(tmp_path) == (str(newest), [])


def test_all_that_dcp_says_of_its_shards_is_read_without_unpickling(tmp_path):
    metadata = dcp_save(tmp_path / "epoch-1", at=100) / ".metadata"
    written = pickle.loads(metadata.read_bytes()).storage_data.values()
    read = {
        (path.name, start, length)
        for path, pieces in sealed._shards(metadata)
        for start, length in pieces
    }
    assert read == {(piece.relative_path, piece.offset, piece.length) for piece in written}
    assert len({name for name, _, _ in read}) == 2


@pytest.mark.parametrize("protocol", range(4, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("shards", [1, 1000])
def test_metadata_of_any_size(tmp_path, protocol, shards):
    """Of many frames, with strings and numbers of all lengths."""
    pieces = {
        f"key-{i}": torch.distributed.checkpoint.filesystem._StorageInfo(
            f"__{i}_0.distcp", i * 2**24, 5 * i
        )
        for i in range(shards)
    }
    (tmp_path / ".metadata").write_bytes(pickle.dumps(pieces, protocol))
    found = dict(sealed._shards(tmp_path / ".metadata"))
    assert found == {tmp_path / f"__{i}_0.distcp": [(i * 2**24, 5 * i)] for i in range(shards)}


@pytest.mark.parametrize(
    ("victim", "change", "reason"),
    [
        ("__0_0.distcp", cut_short, "__0_0.distcp: cut short"),
        ("__0_1.distcp", zero_the_middle, "__0_1.distcp: "),
        ("__0_1.distcp", lose_the_first_page, "__0_1.distcp: not written out"),
        ("__0_0.distcp", lambda data: b"", "__0_0.distcp: cut short"),
        (".metadata", cut_short, ".metadata is cut short"),
        (".metadata", lambda data: b"", ".metadata is cut short"),
        (".metadata", lambda data: bytes(len(data)), ".metadata is cut short or damaged"),
        (".metadata", lambda data: pickle.dumps({}), ".metadata names no shard"),
    ],
)
def test_a_damaged_one_of_dcp_is_passed_over(tmp_path, victim, change, reason):
    good = dcp_save(tmp_path / "epoch-1", at=100)
    damage(dcp_save(tmp_path / "epoch-2", at=200) / victim, change)
    assert reason in passed_over(tmp_path, good)


@pytest.mark.usefixtures("without_checksums")
def test_shards_without_checksums(tmp_path):
    good = dcp_save(tmp_path / "epoch-1", at=100)
    assert checkpoints.newest(tmp_path) == (str(good), [])
    damage(dcp_save(tmp_path / "epoch-2", at=200) / "__0_0.distcp", cut_short)
    assert "__0_0.distcp: cut short" in passed_over(tmp_path, good)


@pytest.mark.parametrize("victim", range(2))
def test_any_tensor_of_a_shard_may_be_the_damaged_one(tmp_path, victim):
    """Each is an archive of its own; the last one's table of contents says nothing of others."""
    directory = dcp_save(tmp_path / "epoch-1", at=100)
    path = directory / f"__0_{victim}.distcp"
    for start, length in dict(sealed._shards(directory / ".metadata"))[path]:
        whole = path.read_bytes()
        middle = start + length // 2
        damage(path, lambda data, at=middle: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert "__0_" in passed_over(tmp_path)
        damage(path, lambda data, whole=whole: whole)
    assert checkpoints.newest(tmp_path) == (str(directory), [])


def test_a_save_of_dcp_that_was_torn(tmp_path):
    """Ranks die before all have written, and the first one waits for them."""
    good = dcp_save(tmp_path / "epoch-1", at=100)
    torn = dcp_save(tmp_path / "epoch-2", at=200)
    (torn / ".metadata").rename(torn / ".metadata.tmp")
    assert "nothing says that it is complete" in passed_over(tmp_path, good)


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
    assert checkpoints.newest(tmp_path) == (str(directory), [])


def test_lightning_adds_to_what_dcp_has_sealed(tmp_path):
    directory = dcp_save(tmp_path / "epoch=1.ckpt", at=100)
    save(directory / "meta.pt", at=130)
    assert checkpoints.newest(tmp_path) == (str(directory), [])
    damage(directory / "meta.pt", cut_short)
    assert "meta.pt: cut short" in passed_over(tmp_path)


def test_a_shard_in_the_directory_itself_is_no_checkpoint(tmp_path):
    dcp_save(tmp_path, at=100)
    _, lines = checkpoints.newest(tmp_path)
    assert [line.split(": ")[1] for line in lines] == ["a shard"] * 2


def test_deepspeed_names_what_is_complete(tmp_path):
    good = tag(tmp_path, "global_step10", at=100)
    latest(tmp_path, "global_step10", at=101)
    tag(tmp_path, "global_step20", at=200, ranks=1)
    assert "global_step20: nothing says" in passed_over(tmp_path, good)
    latest(tmp_path, "global_step20", at=201)
    assert checkpoints.newest(tmp_path) == (str(tmp_path / "global_step20"), [])


def test_a_rank_of_deepspeed_may_be_later_than_latest(tmp_path):
    """The first does not wait for it; a torn save over this one would come much later."""
    directory = tag(tmp_path, "global_step10", at=100)
    latest(tmp_path, "global_step10", at=101)
    shard = directory / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    os.utime(shard, (130, 130))
    assert checkpoints.newest(tmp_path) == (str(directory), [])
    os.utime(shard, (300, 300))
    assert f"{shard.name} is newer than latest" in passed_over(tmp_path)


def test_deepspeed_under_lightning(tmp_path):
    directory = tmp_path / "epoch=1.ckpt"
    shard = tag(directory, "checkpoint", at=100) / "mp_rank_00_model_states.pt"
    assert checkpoints.newest(tmp_path) == ("", [])
    latest(directory, "", at=101)
    assert checkpoints.newest(tmp_path) == ("", [])
    latest(directory, "checkpoint", at=101)
    assert checkpoints.newest(tmp_path) == (str(directory), [])
    damage(shard, zero_the_middle)
    assert "checkpoint/mp_rank_00_model_states.pt: damaged" in passed_over(tmp_path)


def test_a_script_says_itself_that_all_ranks_have_saved(tmp_path):
    directory = tag(tmp_path, "step-5", at=100)
    (directory / "model.safetensors").write_bytes(b"of another kind")
    dcp_save(directory / "optimizer", at=100)
    date(directory, at=100)
    assert "step-5: nothing says" in passed_over(tmp_path)
    (directory / ".complete").touch()
    assert checkpoints.newest(tmp_path) == (str(directory), [])
    damage(directory / "optimizer" / "__0_0.distcp", cut_short)
    assert "optimizer/__0_0.distcp: cut short" in passed_over(tmp_path)


def test_a_seal_of_an_older_save(tmp_path):
    directory = tag(tmp_path, "last", at=100)
    (directory / ".complete").touch()
    os.utime(directory / ".complete", (100, 100))
    save(directory / "zero_pp_rank_1_mp_rank_00_optim_states.pt", at=103)
    assert "optim_states.pt is newer than .complete" in passed_over(tmp_path)


def test_drafts_and_other_directories_are_none_of_our_business(tmp_path):
    good = dcp_save(tmp_path / "epoch-1", at=100)
    dcp_save(tmp_path / "epoch-2.tmp", at=200)
    dcp_save(tmp_path / ".epoch-2", at=200)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events").touch()
    assert checkpoints.newest(tmp_path) == (str(good), [])


def test_what_a_link_leads_to_has_a_name_of_its_own(tmp_path):
    newest = dcp_save(tmp_path / "epoch-2", at=200)
    (tmp_path / "latest").symlink_to(newest)
    (tmp_path / "last.pt").symlink_to(save(tmp_path / "epoch-1.pt", at=100))
    assert checkpoints.newest(tmp_path) == (str(newest), [])
    damage(newest / ".metadata", cut_short)
    path, _ = checkpoints.newest(tmp_path)
    assert path == str(tmp_path / "epoch-1.pt")
