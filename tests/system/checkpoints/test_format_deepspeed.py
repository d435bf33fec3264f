"""DeepSpeed's save_checkpoint, which really writes and loads them."""

import os
import shutil
import time
from pathlib import Path

import pytest
from looking import age, damage, date, lose_the_last_byte, newest, passed_over
from test_format_torch_save import save

from hpclaunch.system.checkpoints import finding
from hpclaunch.system.checkpoints.candidates import Facts


@pytest.fixture(scope="module")
def deepspeed(frameworks, maker):
    return maker("deepspeed_engine")


FORMS = {
    "without ZeRO": {"stage": 0},
    "stage 1": {"stage": 1},
    "stage 2, the older form of torch.save": {"stage": 2, "zipped": False},
    "stage 3": {"stage": 3},
    "a pipeline": {"stage": 1, "pipeline": True},
    "experts": {"stage": 2, "experts": 4},
    "experts without ZeRO": {"stage": 0, "experts": 4},
}


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_the_newest_is_chosen_and_loaded(tmp_path, deepspeed, options):
    root = tmp_path / "out"
    deepspeed.save(root, 1, 2, world=2, **options)
    chosen = root / "global_step2"
    assert newest(root) == (str(chosen), [])
    assert deepspeed.load(chosen, root, world=2, **options) == 2


def test_under_lightning(tmp_path, deepspeed):
    root, options = tmp_path / "out", {"tag": "epoch=0-step={}.ckpt", "inner": "checkpoint"}
    deepspeed.save(root, 1, 2, world=2, **options)
    chosen = root / "epoch=0-step=2.ckpt"
    assert newest(root) == (str(chosen), [])
    assert deepspeed.load(chosen, root, world=2, **options) == 2
    (chosen / "checkpoint" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "had not saved yet" in passed_over(root, root / "epoch=0-step=1.ckpt")


@pytest.fixture(scope="module")
def stage_3(deepspeed, tmp_path_factory):
    root = tmp_path_factory.mktemp("three") / "out"
    deepspeed.save(root, 1, 2, world=2, stage=3)
    return root


@pytest.fixture
def out(stage_3, tmp_path):
    """Return a directory with global_step1 and global_step2 by two ranks."""
    return shutil.copytree(stage_3, tmp_path / "out")


def test_the_files_of_every_rank_are_needed(out):
    """Each file with a model contains the number of ranks."""
    for path in list((out / "global_step2").iterdir()):
        moved = path.rename(out.parent / path.name)
        assert "its rank had not saved yet" in passed_over(out, out / "global_step1")
        moved.rename(path)
        whole = path.read_bytes()
        damage(path, lose_the_last_byte)
        assert path.name in passed_over(out, out / "global_step1")
        damage(path, lambda data, whole=whole: whole)
    assert newest(out) == (str(out / "global_step2"), [])


def test_killed_before_latest_names_it(out):
    """All files exist. Those of this round are of one save; those of an earlier job may not be."""
    (out / "latest").write_text("global_step1")
    written = max(path.stat().st_mtime_ns for path in (out / "global_step1").iterdir())
    os.utime(out / "latest", ns=(written, written))
    assert "latest does not name it" in passed_over(out, out / "global_step1")
    rounds = [[0, time.time_ns() + 10**12, 2]]
    assert newest(out, rounds=rounds) == (str(out / "global_step2"), [])


def test_two_saves_of_one_name_that_were_both_torn(out):
    """One rank's files are of the round before, after which the same step was saved again."""
    for rank in (0, 1):
        for kind in ("model", "optim"):
            name = f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt"
            age(out / "global_step2" / name, 100 if rank else 0)
    middle = time.time_ns() - 50 * 10**9
    rounds = [[0, middle - 10**9, 2], [middle, time.time_ns(), 2]]
    line = passed_over(out, out / "global_step1", rounds=rounds)
    assert "its files are of two rounds" in line


def test_an_older_one_needs_no_latest(out):
    victim = out / "global_step2" / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    damage(victim, lose_the_last_byte)
    assert "cut short" in passed_over(out, out / "global_step1")


@pytest.mark.parametrize("stage", [0, 2])
def test_the_first_rank_does_not_wait_for_the_experts_of_others(tmp_path, deepspeed, stage):
    """`latest` names the save before a rank that dies has begun to write."""
    root = tmp_path / "out"
    deepspeed.save(root, 1, 2, world=2, stage=stage, experts=4)
    others = ["*_expert_2_*", "*_expert_3_*", "expp_rank_1_*", "zero_pp_rank_1_*"]
    for path in [path for name in others for path in (root / "global_step2").glob(name)]:
        path.unlink()
    reason = "zero_pp_rank_1_" if stage else "expert 2 of layer 0 is missing"
    assert reason in passed_over(root, root / "global_step1")


def test_each_layer_of_a_pipeline_has_to_be_whole(tmp_path, deepspeed):
    root = tmp_path / "out"
    deepspeed.save(root, 1, 2, world=2, stage=1, pipeline=True)
    layer = root / "global_step2" / "layer_02-model_states.pt"
    damage(layer, lose_the_last_byte)
    assert f"{layer.name}: cut short" in passed_over(root, root / "global_step1")


# What does not say how many there are: older versions.


def tag(directory: Path, name: str, at: int, ranks: int = 2) -> Path:
    (directory / name).mkdir(parents=True)
    save(directory / name / "mp_rank_00_model_states.pt", at)
    for rank in range(ranks):
        save(directory / name / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", at)
    date(directory / name, at)
    return directory / name


def latest(directory: Path, name: str, at: int) -> None:
    (directory / "latest").write_text(name)
    os.utime(directory / "latest", (at, at))


def test_what_says_nothing_of_its_ranks_has_to_be_named(tmp_path):
    good = tag(tmp_path, "global_step10", at=100)
    latest(tmp_path, "global_step10", at=101)
    tag(tmp_path, "global_step20", at=200, ranks=1)
    assert "global_step20: latest does not name it" in passed_over(tmp_path, good)
    latest(tmp_path, "global_step20", at=201)
    assert newest(tmp_path) == (str(tmp_path / "global_step20"), [])


@pytest.mark.parametrize(("name", "beside"), [("global_step10", ""), ("e2s200", "e1s100")])
def test_a_rank_may_be_later_than_latest(tmp_path, name, beside):
    """The first rank does not wait for the others; a torn save over this one would be much newer.
    The step in the name shows that it is used once, as does a name that differs in a number."""
    if beside:
        tag(tmp_path, beside, at=50)
    directory = tag(tmp_path, name, at=100)
    latest(tmp_path, name, at=101)
    shard = directory / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    os.utime(shard, (130, 130))
    assert newest(tmp_path) == (str(directory), [])
    os.utime(shard, (300, 300))
    assert f"{shard.name} is newer than latest" in newest(tmp_path)[1][0]


def test_a_rotation_has_just_deleted_its_files(tmp_path, monkeypatch):
    """The files are deleted after the Trainer's directory, in which they are, was listed."""
    directory = tmp_path / "checkpoint-20"
    inner = tag(directory, "global_step20", at=100)
    latest(directory, "global_step20", at=101)
    (directory / "trainer_state.json").write_text("{}")
    listed = list(finding.candidates(str(tmp_path), Facts()))
    for path in inner.iterdir():
        path.unlink()
    monkeypatch.setattr(finding, "candidates", lambda where, facts: listed)
    assert "it has no files" in passed_over(tmp_path)


def test_a_name_that_is_used_again_leaves_less_time(tmp_path):
    directory = tag(tmp_path, "last", at=100)
    latest(tmp_path, "last", at=101)
    os.utime(directory / "zero_pp_rank_1_mp_rank_00_optim_states.pt", (130, 130))
    assert "is newer than latest" in passed_over(tmp_path)


def test_a_number_may_be_in_a_name_that_is_used_again(tmp_path):
    directory = tag(tmp_path, "stage-2", at=100)
    latest(tmp_path, "stage-2", at=101)
    assert newest(tmp_path) == (str(directory), [])
    os.utime(directory / "zero_pp_rank_1_mp_rank_00_optim_states.pt", (130, 130))
    assert "is newer than latest" in passed_over(tmp_path)


@pytest.mark.parametrize(
    "name", ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"]
)
def test_the_first_rank_writes_latest_after_its_own_files(tmp_path, name):
    """Any newer file belongs to another save, after a restart from an older checkpoint."""
    directory = tag(tmp_path, "global_step10", at=100)
    latest(tmp_path, "global_step10", at=101)
    os.utime(directory / name, (101.5, 101.5))
    assert f"{name} is newer than latest" in passed_over(tmp_path)


def test_a_tag_in_another_encoding(out):
    tag = os.fsdecode(b"gr\xf6\xdfe2")
    chosen = (out / "global_step2").rename(out / tag)
    (out / "latest").write_bytes(os.fsencode(tag))
    assert newest(out) == (str(chosen), [])
