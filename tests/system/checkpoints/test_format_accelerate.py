"""save_state of Accelerate, which really writes and loads them."""

import os
import shutil
import time

import pytest
from looking import age, damage, lose_the_last_byte, newest, passed_over


@pytest.fixture(scope="module")
def accelerate(frameworks, maker):
    return maker("accelerate_state")


@pytest.fixture(scope="module")
def two_ranks(accelerate, tmp_path_factory):
    root = tmp_path_factory.mktemp("two") / "out"
    accelerate.save(root, 1, 2, world=2, objects=2)
    return root


@pytest.fixture
def out(two_ranks, tmp_path):
    """Return a directory with step-1 and step-2 by two ranks, with two registered objects."""
    return shutil.copytree(two_ranks, tmp_path / "out")


def lately(world: int, ended: float = 0.0) -> list[list[int | None]]:
    """Return a round that ended so many seconds ago."""
    return [[0, time.time_ns() - int(ended * 10**9), world]]


FORMS = {
    "as it is": {},
    "automatic names": {"automatic": True},
    "without safetensors": {"safe": False},
    "sharded": {"fsdp": True},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_the_newest_is_chosen_and_loaded(tmp_path, accelerate, options):
    root = tmp_path / "out"
    accelerate.save(root, 1, 2, world=2, **options)
    chosen = root / ("checkpoints/checkpoint_2" if options.get("automatic") else "step-2")
    for where in (root, chosen.parent):
        assert newest(where, rounds=lately(2)) == (str(chosen), [])
    assert accelerate.load(chosen, tmp_path / "again", world=2, **options) == 2


def test_saved_in_one_place_each_time(tmp_path, accelerate):
    root = tmp_path / "out"
    accelerate.save(root, 1, 2, name="last")
    assert newest(root / "last") == (str(root / "last"), [])
    assert newest(root) == (str(root / "last"), [])


NEEDED = ["model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"]
NEEDED += ["random_states_1.pkl", "custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl"]


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_cut_short_is_passed_over(out, name):
    damage(out / "step-2" / name, lose_the_last_byte)
    assert passed_over(out, out / "step-1").startswith(f"step-2: {name}: ")


@pytest.mark.parametrize("name", NEEDED[3:])
def test_what_is_missing_is_passed_over(out, name):
    (out / "step-2" / name).unlink()
    assert f"{name} is missing" in passed_over(out, out / "step-1", rounds=lately(2))


def test_only_the_first_rank_saves(out):
    """Scripts of diffusers do so. Just after the save, another rank might be about to save."""
    shutil.rmtree(out / "step-1")
    (out / "step-2" / "random_states_1.pkl").unlink()
    saved = max(path.stat().st_mtime_ns for path in (out / "step-2").iterdir())
    soon, later = ([[0, saved + seconds * 10**9, 2]] for seconds in (5, 15))
    assert "random_states_1.pkl is missing" in passed_over(out, rounds=soon)
    assert newest(out, rounds=later) == (str(out / "step-2"), [])


def test_sharded_killed_as_it_began(tmp_path, accelerate):
    """The first directory exists, without any file."""
    accelerate.save(tmp_path, 1, 2, world=2, automatic=True, fsdp=True)
    root = tmp_path / "checkpoints"
    for path in (root / "checkpoint_2").iterdir():
        if path.name != "pytorch_model_fsdp_0":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / "checkpoint_2" / "pytorch_model_fsdp_0" / ".metadata").unlink()
    assert "random_states_0.pkl is missing" in passed_over(root, root / "checkpoint_1")


def test_what_a_larger_world_has_left_does_not_count(out):
    left = out / "step-2" / "random_states_3.pkl"
    shutil.copy2(out / "step-2" / "random_states_1.pkl", left)
    os.utime(left, (100, 100))
    now = time.time_ns() + 60 * 10**9
    rounds = [[90 * 10**9, 110 * 10**9, 4], [110 * 10**9, now, 2]]
    assert newest(out, rounds=rounds) == (str(out / "step-2"), [])


def test_as_many_objects_as_in_the_save_before(out):
    (out / "step-2" / "custom_checkpoint_1.pkl").unlink()
    assert "custom_checkpoint_1.pkl is missing, which step-1 has" in passed_over(
        out, out / "step-1"
    )


def test_another_rank_is_far_ahead(out):
    """A save by another rank shows nothing about the objects, which the first rank writes."""
    (out / "step-3").mkdir()
    shutil.copy2(out / "step-2" / "random_states_1.pkl", out / "step-3")
    (out / "step-2" / "custom_checkpoint_1.pkl").unlink()
    path, (_, line) = newest(out)
    assert path == str(out / "step-1")
    assert "custom_checkpoint_1.pkl is missing, which step-1 has" in line


@pytest.mark.parametrize("name", NEEDED[:3])
def test_as_many_files_as_the_save_beside_it(out, name):
    """The rotation was killed while it deleted the oldest checkpoint."""
    (out / "step-1" / name).unlink()
    damage(out / "step-2" / "model.safetensors", lose_the_last_byte)
    path, lines = newest(out)
    assert path == ""
    assert f"{name} is missing, which step-2 has" in lines[1]


def test_fewer_objects_once_a_later_save_was_begun(tmp_path, accelerate):
    """The script has changed."""
    root = tmp_path / "out"
    accelerate.save(root, 1, objects=2)
    accelerate.save(root, 2, 3, objects=1)
    (root / "step-3" / "custom_checkpoint_0.pkl").unlink()
    assert "custom_checkpoint_0.pkl is missing" in passed_over(root, root / "step-2")


def test_the_first_save_just_before_the_end_of_its_round(tmp_path, accelerate):
    """Nobody can say whether a registered object was still to come."""
    root = tmp_path / "out"
    accelerate.save(root, 1, objects=0)
    assert "it is the first save" in passed_over(root, rounds=lately(1))
    assert newest(root) == (str(root / "step-1"), [])  # by an earlier job
    age(root / "step-1", 60)
    assert newest(root, rounds=lately(1)) == (str(root / "step-1"), [])


def test_a_torn_save_over_a_complete_one(out):
    """Once the model is new, and once all is but one of the objects."""
    (out / "step-2" / "model.safetensors").touch()
    assert "model.safetensors is newer than random_states_0.pkl" in passed_over(out, out / "step-1")
    for name in (*NEEDED[:5], NEEDED[5]):
        (out / "step-2" / name).touch()
    line = passed_over(out, out / "step-1")
    assert "custom_checkpoint_1.pkl is older than random_states_0.pkl" in line


def test_that_the_script_seals_it_comes_first(out):
    (out / "step-2" / ".complete").touch()
    (out / "step-2" / "custom_checkpoint_1.pkl").unlink()
    assert newest(out) == (str(out / "step-2"), [])
