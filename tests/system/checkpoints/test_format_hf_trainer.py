"""checkpoint-N of the Trainer of transformers, which really writes and loads them."""

import json
import os
import shutil
import time

import pytest
from looking import damage, lose_the_last_byte, newest, passed_over

from hpclaunch.system.checkpoints.finding import search


@pytest.fixture(scope="module")
def trainer(frameworks, maker):
    return maker("hf_trainer")


@pytest.fixture(scope="module")
def two_ranks(trainer, tmp_path_factory):
    root = tmp_path_factory.mktemp("two") / "out"
    trainer.save(root, 10, 20, 30, world=2, keep=0)
    return root


@pytest.fixture
def out(two_ranks, tmp_path):
    """Return a directory with checkpoint-10, -20 and -30 by two ranks."""
    return shutil.copytree(two_ranks, tmp_path / "out")


def now(world: int) -> list[list[int | None]]:
    """Return a round of so many ranks, which has saved all checkpoints."""
    return [[0, time.time_ns() + 10**12, world]]


def test_the_newest_is_chosen_and_loaded(out, trainer):
    assert newest(out, rounds=now(2)) == (str(out / "checkpoint-30"), [])
    (found,) = search(str(out))
    assert (found.candidate.format.name, found.candidate.world) == ("HF Trainer", 2)
    assert found.rule == "step 30, by its name"
    assert trainer.load(out / "checkpoint-30", out, world=2) == 30


OPTIONS = {
    "of one rank": ({}, 1),
    "with shards": ({"shards": "10KB"}, 1),
    "an adapter": ({"peft": True}, 1),
    "DeepSpeed, stage 2": ({"deepspeed": 2}, 2),
}


@pytest.mark.parametrize(("options", "world"), OPTIONS.values(), ids=OPTIONS)
def test_in_whatever_form_the_model_is(tmp_path, trainer, options, world):
    if options.get("peft"):
        pytest.importorskip("peft")
    trainer.save(tmp_path / "out", 10, 20, world=world, **options)
    chosen = tmp_path / "out" / "checkpoint-20"
    assert newest(tmp_path / "out") == (str(chosen), [])
    assert trainer.load(chosen, tmp_path / "out", world=world, **options) == 20


NEEDED = [
    "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth",
    "trainer_state.json",
]  # fmt: skip


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_missing_or_cut_short_is_passed_over(out, name):
    damage(out / "checkpoint-30" / name, lose_the_last_byte)
    if name == "trainer_state.json":  # the end of a line, so far
        damage(out / "checkpoint-30" / name, lose_the_last_byte)
    line = passed_over(out, out / "checkpoint-20", rounds=now(2))
    assert line.startswith(f"checkpoint-30: {name}: ")
    (out / "checkpoint-30" / name).unlink()
    path, lines = newest(out, rounds=now(2))
    assert path == str(out / "checkpoint-20")
    if name != "optimizer.pt":  # without it, it is an exported model
        reason = "no model" if name == "model.safetensors" else f"{name} is missing"
        assert reason in lines[0]


def test_a_rank_that_had_not_saved_is_known_by_the_size_of_the_world(out):
    (out / "checkpoint-30" / "rng_state_1.pth").unlink()
    line = passed_over(out, out / "checkpoint-20", rounds=now(2))
    assert "rng_state_1.pth is missing: rank 1 of 2 had not saved yet" in line


def test_of_an_earlier_job_nobody_knows_the_world(out):
    """The Trainer loads it without the random state of a rank that is missing."""
    (out / "checkpoint-30" / "rng_state_1.pth").unlink()
    assert newest(out) == (str(out / "checkpoint-30"), [])


def test_a_world_that_changed_leaves_older_ones_complete(out):
    """Two ranks saved them; since then the job continues with three."""
    before = (out / "checkpoint-30" / "trainer_state.json").stat().st_mtime_ns
    rounds = [[0, before + 10**9, 2], [before + 2 * 10**9, None, 3]]
    assert newest(out, rounds=rounds) == (str(out / "checkpoint-30"), [])


def test_what_a_larger_world_has_left_does_not_count(out):
    """One of its nodes was lost as it saved; the ranks that stayed have saved the step again."""
    left = out / "checkpoint-30" / "rng_state_3.pth"
    shutil.copy2(out / "checkpoint-30" / "rng_state_1.pth", left)
    os.utime(left, (100, 100))
    rounds = [[90 * 10**9, 110 * 10**9, 4], [110 * 10**9, None, 2]]
    assert newest(out, rounds=rounds) == (str(out / "checkpoint-30"), [])
    os.utime(left, (120, 120))  # a rank that the script itself has started
    assert "rng_state_2.pth is missing" in passed_over(out, out / "checkpoint-20", rounds=rounds)


def test_a_model_without_its_optimizer_is_no_resume_point(out, tmp_path, trainer):
    trainer.save(tmp_path / "only", 40, only_model=True)
    shutil.move(tmp_path / "only" / "checkpoint-40", out / "checkpoint-40")
    assert newest(out, rounds=now(2)) == (str(out / "checkpoint-30"), [])
    path, lines = newest(tmp_path / "only")
    assert path == ""
    shutil.move(out / "checkpoint-40", tmp_path / "only" / "checkpoint-40")
    path, lines = newest(tmp_path / "only")
    assert path == ""
    assert "no resume point: a model without its optimizer (save_only_model)" in lines[0]


def test_its_own_mark_of_an_incomplete_one(out):
    (out / "checkpoint-30" / "checkpoint-is-incomplete.txt").write_text("in progress")
    assert "checkpoint-is-incomplete.txt is in it" in passed_over(out, out / "checkpoint-20")


def test_a_torn_save_over_a_complete_one(out):
    """A job that restarts from an older checkpoint saves the same steps again."""
    model = out / "checkpoint-30" / "model.safetensors"
    os.utime(model)
    line = passed_over(out, out / "checkpoint-20")
    assert "model.safetensors is newer than trainer_state.json, which is written last" in line
    os.utime(out / "checkpoint-30" / "trainer_state.json")
    assert newest(out) == (str(out / "checkpoint-30"), [])


def test_what_the_training_leaves_beside_them(out, tmp_path, trainer):
    """trainer.save_model() and trainer.save_state() write into the same directory at the end."""
    for name in ("model.safetensors", "trainer_state.json", "training_args.bin", "config.json"):
        shutil.copyfile(out / "checkpoint-30" / name, out / name)
    (out / "runs").mkdir()
    assert newest(out) == (str(out / "checkpoint-30"), [])


def test_the_step_is_in_the_state_where_the_name_has_none(out):
    (out / "checkpoint-30").rename(out / "latest")
    (found,) = search(str(out))
    assert found.candidate.name == "latest"
    assert found.rule == "step 30, by trainer_state.json"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"global_step": 1e999}'])
def test_a_state_with_nonsense_in_it(out, text):
    """The state gives the step if the name does not; nonsense there means that it is unknown."""
    (out / "checkpoint-30").rename(out / "latest")
    damage(out / "latest" / "trainer_state.json", lambda data: text.encode())
    found = search(str(out))[0].candidate
    assert (found.name, found.step) == ("latest", None)


def test_a_state_with_a_very_long_log(out):
    state = out / "checkpoint-30" / "trainer_state.json"
    fields = json.loads(state.read_text())
    fields["log_history"] = [{"loss": 1.0, "step": i} for i in range(120_000)]
    text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
    assert len(text) > 4 << 20
    damage(state, lambda data: text.encode())
    os.utime(state)
    assert newest(out) == (str(out / "checkpoint-30"), [])
    damage(state, lambda data: text[: len(text) // 2].rpartition("}\n")[0].encode() + b"}\n")
    assert "trainer_state.json: cut short" in passed_over(out, out / "checkpoint-20")
