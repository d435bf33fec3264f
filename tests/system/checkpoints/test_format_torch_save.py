"""Files that torch.save really wrote."""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import pytest
from looking import (
    cut_short,
    damage,
    date,
    empty,
    lose_the_first_page,
    lose_the_last_byte,
    newest,
    passed_over,
    zero_the_middle,
)

from hpclaunch.system.checkpoints import archives
from hpclaunch.system.checkpoints.formats import torch_save


def write(data: object, file: Path | BinaryIO, **options) -> None:
    """Do what torch.save does. (torch is imported where it is used: that takes two seconds.)"""
    import torch

    torch.save(data, file, **options)


def save(path: Path, at: int, **options) -> Path:
    import torch

    write({"model": torch.arange(50_000.0), "epoch": at}, path, **options)
    date(path, at)
    return path


@pytest.fixture(params=["zip", "legacy", "no checksums"])
def save_as(request):
    """Yield a function that saves, for each form of torch.save."""
    import torch

    torch.serialization.set_crc32_options(request.param != "no checksums")
    zipped = request.param != "legacy"
    yield lambda path, at: save(path, at, _use_new_zipfile_serialization=zipped)
    torch.serialization.set_crc32_options(True)


def test_a_file_system_may_return_fewer_bytes_than_are_asked_for(tmp_path, save_as, monkeypatch):
    path = save_as(tmp_path / "step-5.ckpt", 100)
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, length // 2 + 1, at))
    monkeypatch.setattr(
        os,
        "preadv",
        lambda fd, buffers, at: preadv(fd, [buffers[0][: len(buffers[0]) // 2 + 1]], at),
    )
    assert newest(tmp_path) == (str(path), [])


def test_a_directory_that_is_not_there_yet_has_none(tmp_path):
    assert newest(tmp_path / "later") == ("", [])


def test_the_newest_by_time_where_no_name_has_a_step(tmp_path):
    save(tmp_path / "a.pt", at=200)
    new = save(tmp_path / "b.pt", at=300)
    save(tmp_path / "c.pt", at=100)
    assert newest(tmp_path) == (str(new), [])


def test_of_the_same_moment_the_higher_number(tmp_path):
    save(tmp_path / "x9.pt", at=200)
    new = save(tmp_path / "x10.pt", at=200)
    assert newest(tmp_path) == (str(new), [])


def test_every_form_is_complete(tmp_path, save_as):
    good = save_as(tmp_path / "epoch-1.pt", at=100)
    assert newest(tmp_path) == (str(good), [])


@pytest.mark.parametrize("cut", [cut_short, lose_the_last_byte, lose_the_first_page, empty])
def test_every_form_cut_short_is_passed_over(tmp_path, save_as, cut):
    good = save_as(tmp_path / "epoch-1.pt", at=100)
    damage(save_as(tmp_path / "epoch-2.pt", at=200), cut)
    reason = {lose_the_first_page: "not written out", empty: "empty"}.get(cut, "cut short")
    assert passed_over(tmp_path, good).startswith(f"epoch-2.pt: {reason}")


def test_no_beginning_of_any_form_is_taken_for_the_whole(tmp_path, save_as):
    """A process may be killed after any byte."""
    path = tmp_path / "epoch-1.pt"
    torch_bytes = save_as(path, at=100).read_bytes()
    fd = os.open(path, os.O_RDONLY)
    assert archives.check_torch(archives.Window(fd, len(torch_bytes)))
    for length in {
        *range(0, len(torch_bytes), 97),
        *range(len(torch_bytes) - 500, len(torch_bytes)),
    }:
        with contextlib.suppress(archives.DamagedError):
            assert not archives.check_torch(archives.Window(fd, length)), length
    os.close(fd)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (zero_the_middle, "damaged"),
        (lambda data: b"hello", "not written by torch.save"),
    ],
)
def test_a_damaged_one_is_passed_over_and_named(tmp_path, change, reason):
    good = save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-2.pt", at=200), change)
    line = passed_over(tmp_path, good)
    assert line.startswith("epoch-2.pt: ")
    assert reason in line


@pytest.mark.starts
def test_the_length_of_a_text_may_be_what_is_damaged(tmp_path):
    """The older form has its object in a pickle: here with a text of 2**62 bytes."""
    good = save(tmp_path / "epoch-1.pt", at=100)
    damaged = save(tmp_path / "epoch-2.pt", at=200, _use_new_zipfile_serialization=False)
    text = b"X\x05\x00\x00\x00epoch"
    assert text in damaged.read_bytes()
    damage(damaged, lambda data: data.replace(text, b"\x8d" + (2**62).to_bytes(8, "little")))
    assert passed_over(tmp_path, good) == "epoch-2.pt: cut short or still being written"


def test_drafts_and_other_files_are_none_of_our_business(tmp_path):
    good = save(tmp_path / "epoch-1.pt", at=100)
    save(tmp_path / "epoch-2.tmp", at=200)
    save(tmp_path / ".epoch-2.pt.swp", at=200)
    save(tmp_path / "tmp.pth.tar", at=200)  # timm
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "older").mkdir()
    (tmp_path / "gone.pt").symlink_to(tmp_path / "nowhere")
    assert newest(tmp_path) == (str(good), [])


def test_a_file_of_any_name(tmp_path):
    good = save(tmp_path / "ckpt_100", at=100)
    assert newest(tmp_path) == (str(good), [])


def test_nothing_in_the_directory_changes(tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-2.pt", at=200), cut_short)

    def picture() -> dict[str, tuple[str, int]]:
        return {
            p.name: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns)
            for p in tmp_path.iterdir()
        }

    before = picture()
    newest(tmp_path)
    assert picture() == before


def test_a_model_alone_is_no_resume_point_beside_full_checkpoints(tmp_path):
    import torch

    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    full = tmp_path / "epoch-1.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, full)
    date(full, 100)
    torch.save(model.state_dict(), tmp_path / "best.pt")
    assert newest(tmp_path) == (str(full), [])
    full.unlink()
    assert newest(tmp_path) == (str(tmp_path / "best.pt"), [])


def test_what_has_too_much_before_its_optimizer_is_no_model_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_save, "MOST_SEARCHED", 1000)
    for name, first in (("epoch-1.pt", 0), ("epoch-2.pt", 1000)):
        write({"seen": [*range(first)], "optimizer": 1}, tmp_path / name)
    date(tmp_path / "epoch-1.pt", 100)
    assert newest(tmp_path) == (str(tmp_path / "epoch-2.pt"), [])


def test_a_torn_full_one_does_not_hand_out_the_model_beside_it(tmp_path):
    import torch

    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters())
    full = tmp_path / "snapshot.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, full)
    torch.save(model.state_dict(), tmp_path / "best.pt")
    damage(full, lose_the_last_byte)
    path, lines = newest(tmp_path)
    assert path == ""
    assert [line.split(":")[0] for line in lines] == ["snapshot.pt", "best.pt"]
    assert "no resume point" in lines[1]


def test_models_without_an_optimizer_count_where_all_are(tmp_path):
    """Also if the newest is torn, of which nobody knows what it was to be."""
    good = save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-2.pt", at=200), cut_short)
    assert passed_over(tmp_path, good).startswith("epoch-2.pt: cut short")


def test_the_files_of_all_ranks_have_to_be_whole(tmp_path):
    for step in (50, 100):
        for rank in range(2):
            save(tmp_path / f"step_{step}_rank{rank}.pt", at=step)
    damage(tmp_path / "step_100_rank1.pt", cut_short)
    path, lines = newest(tmp_path)
    assert path == str(tmp_path / "step_50_rank1.pt")
    assert sorted(line.partition(": cut short")[0] for line in lines) == [
        "step_100_rank0.pt: step_100_rank1.pt",
        "step_100_rank1.pt",
    ]


def test_what_the_libraries_write_beside_is_no_checkpoint(tmp_path):
    """The Trainer leaves its arguments in its directory, last of all."""
    good = save(tmp_path / "epoch-1.pt", at=100)
    for name in ("training_args.bin", "scheduler.pt", "rng_state_3.pth"):
        save(tmp_path / name, at=200)
    assert newest(tmp_path) == (str(good), [])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_a_program_in_cpp_saves(tmp_path):
    """OutputArchive has the form of TorchScript: the tensors come first."""
    import torch

    for epoch in (1, 2):
        torch.jit.trace(torch.nn.Linear(9, 9), torch.ones(9)).save(tmp_path / f"epoch-{epoch}.pt")
    assert newest(tmp_path) == (str(tmp_path / "epoch-2.pt"), [])
    damage(tmp_path / "epoch-2.pt", cut_short)
    assert "cut short" in passed_over(tmp_path, tmp_path / "epoch-1.pt")
