"""Lightning's checkpoints, which its own functions write."""

import os

import pytest
from looking import cut_short, damage, date, newest, passed_over

from hpclaunch.system.checkpoints.finding import search


@pytest.fixture(scope="module")
def lightning(frameworks, maker):
    return maker("lightning_trainer")


def test_a_file(tmp_path, lightning):
    lightning.save(tmp_path / "out", 10, 20)
    chosen = tmp_path / "out" / "epoch=0-step=20.ckpt"
    assert newest(tmp_path / "out") == (str(chosen), [])
    assert lightning.load(chosen, tmp_path / "out") == 20


def test_the_step_of_the_last_one_is_in_it(tmp_path, lightning):
    """last.ckpt is written first here, and is the further one all the same."""
    root = tmp_path / "out"
    lightning.save(root, 20, name="last.ckpt")
    lightning.save(root, 10)
    found = search(str(root))[-1]
    assert found.candidate.name == "last.ckpt"
    assert found.rule == ("step 20, by what is in it, though epoch=0-step=10.ckpt was saved later")


def test_weights_only(tmp_path, lightning):
    root = tmp_path / "out"
    lightning.save(root, 10)
    lightning.save(root, 20, weights_only=True)
    assert newest(root) == (str(root / "epoch=0-step=10.ckpt"), [])
    (root / "epoch=0-step=10.ckpt").unlink()
    path, (line,) = newest(root)
    assert not path
    assert "no resume point: a model without its optimizer (save_weights_only)" in line


def test_last_as_a_link(tmp_path, lightning):
    root = tmp_path / "out"
    lightning.save(root, 10, 20, link=True)
    assert (root / "last.ckpt").is_symlink()
    assert newest(root) == (str(root / "epoch=0-step=20.ckpt"), [])


def test_sharded(tmp_path, lightning):
    root = tmp_path / "out"
    lightning.save(root, 10, 20, world=2, sharded=True)
    chosen = root / "epoch=0-step=20.ckpt"
    assert newest(root) == (str(chosen), [])
    assert lightning.load(chosen, root, world=2, sharded=True) == 20
    damage(chosen / "meta.pt", cut_short)
    older = root / "epoch=0-step=10.ckpt"
    assert "meta.pt: cut short" in passed_over(root, older)
    (chosen / "meta.pt").unlink()
    assert "meta.pt is missing, which Lightning writes last" in passed_over(root, older)


def test_sharded_a_torn_save_over_a_complete_one(tmp_path, lightning):
    root = tmp_path / "out"
    lightning.save(root, 10, sharded=True, name="last.ckpt", world=2)
    date(root / "last.ckpt", 100)
    for name in (".metadata", "__0_0.distcp", "__1_0.distcp"):
        os.utime(root / "last.ckpt" / name, (200, 200))
    assert "meta.pt is older than .metadata" in passed_over(root)


def test_in_the_directories_that_it_makes_itself(tmp_path, lightning):
    for version, step in enumerate((10, 20)):
        place = tmp_path / "lightning_logs" / f"version_{version}" / "checkpoints"
        lightning.save(place, step)
    chosen = place / "epoch=0-step=20.ckpt"
    assert newest(tmp_path) == (str(chosen), [])
    assert newest(f"{tmp_path}/lightning_logs/**") == (str(chosen), [])
    assert newest(f"{tmp_path}/lightning_logs/version_*/checkpoints") == (str(chosen), [])
