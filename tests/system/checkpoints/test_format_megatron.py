"""Megatron's directories, as its save_checkpoint writes them (makers/megatron_legacy.py)."""

import os
import shutil

import pytest
from looking import age, cut_short, damage, newest, passed_over

from hpclaunch.system.checkpoints.finding import search

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture(scope="module")
def megatron(maker):
    return maker("megatron_legacy")


def test_the_one_that_the_tracker_names(tmp_path, megatron):
    root = tmp_path / "out"
    megatron.save(root, 10, 20, world=2)
    chosen = root / "iter_0000020"
    assert newest(root) == (str(chosen), [])
    assert megatron.load(chosen, root, world=2) == 20
    damage(chosen / "mp_rank_01" / "model_optim_rng.pt", cut_short)
    line = passed_over(root, root / "iter_0000010")
    assert "mp_rank_01/model_optim_rng.pt: cut short" in line


def test_what_it_does_not_name_yet(tmp_path, megatron):
    root = tmp_path / "out"
    megatron.save(root, 10, 20, world=2)
    (root / TRACKER).write_text("10")
    assert "does not name it yet" in passed_over(root, root / "iter_0000010")


def test_killed_as_it_wrote_the_tracker(tmp_path, megatron):
    """Megatron empties the file first. All ranks had saved by then."""
    root = tmp_path / "out"
    megatron.save(root, 10, 20, world=2)
    (root / TRACKER).write_text("")
    assert newest(root) == (str(root / "iter_0000020"), [])
    (found,) = search(str(root))
    assert f"until {TRACKER}, now empty, says 20" in found.rule
    megatron.save(root, 30, world=2)
    (root / TRACKER).write_text("")
    age(root / TRACKER, 60)  # 30 was saved later, and nothing says whether by all ranks
    for rank in range(2):
        for step in (10, 20):
            age(root / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt", 70)
    assert f"{TRACKER} does not name it yet" in passed_over(root, root / "iter_0000020")


def test_killed_as_it_wrote_the_tracker_and_others_saved_on(tmp_path, megatron):
    """The first rank was still at the tracker of 20 when another began with 30, a moment later."""
    root = tmp_path / "out"
    megatron.save(root, 10, 20, world=2)
    (root / TRACKER).write_text("")
    moment = (root / TRACKER).stat().st_mtime_ns
    shutil.copytree(root / "iter_0000020", root / "iter_0000030")
    shutil.rmtree(root / "iter_0000030" / "mp_rank_00")
    later = moment + 10**7
    os.utime(root / "iter_0000030" / "mp_rank_01" / "model_optim_rng.pt", ns=(later, later))
    assert f"{TRACKER} does not name it yet" in passed_over(root, root / "iter_0000020")


def test_an_older_one_has_the_files_of_the_newest(tmp_path, megatron):
    root = tmp_path / "out"
    megatron.save(root, 10, 20, world=2)
    damage(root / "iter_0000020" / "mp_rank_00" / "model_optim_rng.pt", cut_short)
    (root / "iter_0000010" / "mp_rank_01" / "model_optim_rng.pt").unlink()
    path, lines = newest(root)
    assert path == ""
    assert "mp_rank_01/model_optim_rng.pt is missing" in lines[1]


def test_a_torn_save_over_a_complete_one(tmp_path, megatron):
    root = tmp_path / "out"
    megatron.save(root, 10, world=2)
    age(root, 60)
    os.utime(root / "iter_0000010" / "mp_rank_01" / "model_optim_rng.pt")
    assert f"is newer than {TRACKER}" in passed_over(root)


def test_the_newer_form(tmp_path, megatron):
    root = tmp_path / "out"
    megatron.save(root, 10, 20, world=2, distributed=True)
    chosen = root / "iter_0000020"
    assert newest(root) == (str(chosen), [])
    assert megatron.load(chosen, root, world=2, distributed=True) == 20
    (root / TRACKER).unlink()
    assert newest(root) == (str(chosen), [])
    (chosen / "metadata.json").unlink()
    assert "neither metadata.json is in it" in passed_over(root, root / "iter_0000010")
