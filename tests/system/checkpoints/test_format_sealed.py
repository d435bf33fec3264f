"""Directories that a script seals itself, and those that nobody seals."""

import errno
import os
from pathlib import Path

from looking import cut_short, damage, date, newest, passed_over
from test_format_dcp import dcp_save
from test_format_torch_save import save

from hpclaunch.system.checkpoints import listing
from hpclaunch.system.checkpoints.listing import Entry


def of_ranks(directory: Path, at: int, ranks: int = 2) -> Path:
    directory.mkdir(parents=True)
    for rank in range(ranks):
        save(directory / f"rank-{rank}.pt", at)
    date(directory, at)
    return directory


def test_a_script_says_itself_that_all_ranks_have_saved(tmp_path):
    directory = of_ranks(tmp_path / "step-5", at=100)
    dcp_save(directory / "optimizer", at=100)
    date(directory, at=100)
    assert "step-5: nothing says that it is complete" in passed_over(tmp_path)
    (directory / ".complete").touch()
    assert newest(tmp_path) == (str(directory), [])
    damage(directory / "optimizer" / "__0_0.distcp", cut_short)
    assert "optimizer/__0_0.distcp: cut short" in passed_over(tmp_path)


def test_a_directory_with_one_file_that_may_be_all_that_is_needed(tmp_path):
    """Each directory of LitGPT has one, `lit_model.pth`."""
    file = of_ranks(tmp_path / "step-5", at=100, ranks=1) / "rank-0.pt"
    pattern = f"{tmp_path}/*"
    wanted = f"; if rank-0.pt is all that is needed: --checkpoint-dir '{pattern}'"
    assert wanted in passed_over(tmp_path)
    assert newest(pattern) == (str(file), [])


def test_what_dcp_has_saved_without_collectives_needs_a_seal_most(tmp_path):
    """Each rank has metadata of its own, which name its shards."""
    directory = dcp_save(tmp_path / "step-5", at=100)
    (directory / ".metadata").rename(directory / "__0.metadata")
    (directory / ".complete").touch()
    assert newest(tmp_path) == (str(directory), [])
    damage(directory / "__0_1.distcp", cut_short)
    assert "__0_1.distcp: cut short" in passed_over(tmp_path)


def test_a_file_that_cannot_be_looked_at(tmp_path, monkeypatch):
    """The file may be newer than the seal, or be cut short."""
    directory = of_ranks(tmp_path / "step-5", at=100)
    (directory / ".complete").touch()

    def look(entry):
        if entry.name == "rank-1.pt":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return Entry(entry.name, entry.path, entry.stat(), entry.is_symlink())

    monkeypatch.setattr(listing, "_look", look)
    assert "step-5: unreadable, or just being deleted (Stale" in passed_over(tmp_path)


def test_a_seal_by_another_name(tmp_path):
    directory = of_ranks(tmp_path / "step-5", at=100)
    assert "no DONE.* in it" in passed_over(tmp_path, complete="DONE.*")
    (directory / "DONE.ok").touch()
    assert newest(tmp_path, complete="DONE.*") == (str(directory), [])
    assert "nothing says" in passed_over(tmp_path)


def test_with_a_seal_by_another_name_no_other_rule_counts(tmp_path):
    """The script does more once DCP has saved."""
    dcp_save(tmp_path / "step-6", at=200)
    assert "no extra/DONE in it" in passed_over(tmp_path, complete="extra/DONE")
    (tmp_path / "step-6" / "extra").mkdir()
    (tmp_path / "step-6" / "extra" / "DONE").touch()
    assert newest(tmp_path, complete="extra/DONE") == (str(tmp_path / "step-6"), [])


def test_a_seal_of_an_older_save(tmp_path):
    directory = of_ranks(tmp_path / "last", at=100)
    (directory / ".complete").touch()
    os.utime(directory / ".complete", (100, 100))
    save(directory / "rank-1.pt", at=103)
    assert "rank-1.pt is newer than .complete" in passed_over(tmp_path)


def test_all_that_has_a_structure_is_looked_at(tmp_path):
    import torch
    from safetensors.torch import save_file

    directory = tmp_path / "step-1"
    directory.mkdir()
    save_file({"a": torch.ones(1000)}, directory / "model.safetensors")
    (directory / "notes.txt").write_text("hello")
    (directory / ".complete").touch()
    assert newest(tmp_path) == (str(directory), [])
    damage(directory / "model.safetensors", cut_short)
    assert "model.safetensors: cut short" in passed_over(tmp_path)


def test_drafts_and_other_directories_are_none_of_our_business(tmp_path):
    good = dcp_save(tmp_path / "epoch-1", at=100)
    dcp_save(tmp_path / "epoch-2.tmp", at=200)
    dcp_save(tmp_path / ".epoch-2", at=200)
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events").touch()
    assert newest(tmp_path) == (str(good), [])
