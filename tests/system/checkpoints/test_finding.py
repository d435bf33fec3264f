"""The search for checkpoints: its places and its order."""

import errno
import os
from functools import partial
from pathlib import Path

import pytest
from looking import cut_short, damage, newest, passed_over
from test_format_dcp import dcp_save
from test_format_torch_save import save, write

from hpclaunch.system.checkpoints import archives, finding, listing, pickles
from hpclaunch.system.checkpoints.candidates import Facts, step_of
from hpclaunch.system.checkpoints.formats import deepspeed
from hpclaunch.system.checkpoints.formats.lightning import LightningSharded
from hpclaunch.system.checkpoints.listing import Folder
from hpclaunch.system.checkpoints.reading import ResultCache


def rules(where: Path, **facts) -> dict[str, str]:
    return {
        f.candidate.name: f.rule for f in finding.examine(str(where), Facts(**facts), ResultCache())
    }


def test_by_step_where_the_name_contains_it(tmp_path):
    """A copy may have lost the times."""
    save(tmp_path / "epoch-9.pt", at=300)
    new = dcp_save(tmp_path / "epoch-10", at=100)
    dcp_save(tmp_path / "epoch-2", at=200)
    assert newest(tmp_path) == (str(new), [])
    assert rules(tmp_path) == {
        "epoch-10": "epoch 10, by its name, though epoch-9.pt was saved later",
        "epoch-9.pt": "epoch 9, by its name",
        "epoch-2": "epoch 2, by its name",
    }


def test_steps_may_begin_again_in_each_epoch(tmp_path):
    """Also if a copy has lost the times; but not if a name has no epoch."""
    for at in (300, 100):
        new = save(tmp_path / "epoch_1_step_1000.pt", at=at)
        save(tmp_path / "epoch_0_step_9000.pt", at=100)
        assert newest(tmp_path) == (str(new), [])
    save(tmp_path / "step_8000.pt", at=100)
    assert newest(tmp_path) == (str(tmp_path / "epoch_0_step_9000.pt"), [])


def test_steps_of_two_epochs_are_on_two_scales():
    names = ("epoch_0_step_9000.pt", "epoch_1_step_1000.pt", "step_1000.pt", "epoch_1.pt")
    scales = [step.scale for step in map(step_of, names)]
    assert scales == ["step of epoch 0", "step of epoch 1", "step", "epoch"]


def test_between_those_with_a_step_and_those_without_the_time_decides(tmp_path):
    save(tmp_path / "epoch-9.pt", at=200)
    save(tmp_path / "epoch-10.pt", at=100)
    new = save(tmp_path / "last.pt", at=300)
    assert newest(tmp_path) == (str(new), [])
    os.utime(tmp_path / "last.pt", (150, 150))
    assert newest(tmp_path) == (str(tmp_path / "epoch-10.pt"), [])
    assert list(rules(tmp_path)) == ["epoch-10.pt", "epoch-9.pt", "last.pt"]


def test_the_steps_of_two_runs_say_nothing_of_each_other(tmp_path):
    for run, step, at in (("old", 5000, 100), ("new", 10, 200)):
        (tmp_path / run / "checkpoints").mkdir(parents=True)
        save(tmp_path / run / "checkpoints" / f"step-{step}.pt", at=at)
    expected = str(tmp_path / "new" / "checkpoints" / "step-10.pt")
    assert newest(tmp_path / "*" / "checkpoints") == (expected, [])


def fail_first(patch: pytest.MonkeyPatch, times: int = 1) -> None:
    """Make the reading of the first pickles fail."""
    load, errors = pickles._Reader.load, [OSError(errno.EIO, "lost")] * times

    def load_or_fail(reader: pickles._Reader) -> object:
        if errors:
            raise errors.pop()
        return load(reader)

    patch.setattr(pickles._Reader, "load", load_or_fail)


@pytest.fixture
def fails_once(monkeypatch):
    fail_first(monkeypatch)


def test_metadata_that_could_not_be_read_are_read_again(tmp_path, fails_once):
    directory = dcp_save(tmp_path / "epoch-1", at=100)
    assert "unreadable, or just being deleted (lost)" in passed_over(tmp_path)
    assert newest(tmp_path) == (str(directory), [])


def test_a_step_that_could_not_be_read_is_read_again(tmp_path, fails_once):
    state = {"pytorch-lightning_version": "2", "global_step": 5, "optimizer": None}
    write(state, tmp_path / "last.ckpt")
    assert rules(tmp_path) == {"last.ckpt": "by time"}
    assert rules(tmp_path) == {"last.ckpt": "step 5, by what is in it"}


def test_a_world_that_could_not_be_read_is_read_again(tmp_path, fails_once):
    write({"dp_world_size": 1, "mp_world_size": 1}, tmp_path / "mp_rank_00_model_states.pt")
    assert deepspeed.world_of(Folder(str(tmp_path))) is None
    assert deepspeed.world_of(Folder(str(tmp_path))) == 1


def test_a_format_that_cannot_be_recognised_is_not_taken_for_another(tmp_path, monkeypatch):
    """Without `meta.pt`, a directory by Lightning would be a complete one by DCP."""
    dcp_save(tmp_path / "step-5.ckpt", at=100)
    assert "meta.pt is missing" in passed_over(tmp_path)

    def fails(_self, place):
        if place.name.endswith(".ckpt"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(LightningSharded, "recognise", fails)
    assert "step-5.ckpt: unreadable, or just being deleted (Stale" in passed_over(tmp_path)


def test_metadata_that_this_user_may_not_read(tmp_path, monkeypatch):
    """A line says so: otherwise the job would start again from nothing without a word."""
    dcp_save(tmp_path / "step-5", at=100)

    def opened(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(archives, "opened", opened)
    assert "step-5: unreadable, or just being deleted (Permission" in passed_over(tmp_path)


def test_a_world_that_cannot_be_read_hides_no_missing_rank(tmp_path, monkeypatch):
    """Without its size, nothing would show that the file of rank 1 is missing."""
    (tag := tmp_path / "global_step5").mkdir()
    state = {"dp_world_size": 2, "mp_world_size": 1, "param_shapes": [1]}
    write(state, tag / "mp_rank_00_model_states.pt")
    write({"optimizer": 1}, tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (tmp_path / "latest").write_text("global_step5")
    with monkeypatch.context() as lost:
        fail_first(lost, times=2)
        assert "global_step5: unreadable" in passed_over(tmp_path)
    assert "zero_pp_rank_1_mp_rank_00_optim_states.pt is missing" in passed_over(tmp_path)


def test_an_archive_that_cannot_be_read_is_not_damaged(tmp_path, monkeypatch):
    """Damage would count for as long as the file is not rewritten."""
    save(tmp_path / "step-5.pt", at=100)

    def fails(*_):
        raise OSError(errno.EIO, "lost")

    with archives.opened(str(tmp_path / "step-5.pt")) as window:
        monkeypatch.setattr(os, "preadv", fails)
        with pytest.raises(OSError, match="lost"):
            archives.members(window)


def test_a_name_without_a_suffix_is_looked_at_again(tmp_path, monkeypatch):
    save(tmp_path / "step-5", at=100)

    def refused(path):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patched:
        patched.setattr(archives, "opened", refused)
        assert rules(tmp_path) == {}
    assert list(rules(tmp_path)) == ["step-5"]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-30", (30, "number")),
        ("checkpoint_4", (4, "number")),
        ("iter_0000010", (10, "step")),
        ("epoch=1-step=200.ckpt", (200, "step")),
        ("epoch=1-step=200-v1.ckpt", (200, "step")),
        ("ep1-ba42-rank0.pt", (42, "step")),
        ("global_step1500", (1500, "step")),
        ("model_epoch_7.pth", (7, "epoch")),
        ("0000100.pt", (100, "number")),
        ("last.ckpt", None),
        ("best_0.93.pt", None),
        ("llama-7b.pt", None),
        ("footstep7.pt", None),
    ],
)
def test_what_a_name_contains(name, step):
    found = step_of(name)
    assert (found and (found.value, found.unit)) == step


def test_how_long_a_save_took(tmp_path):
    """A file that is much older, and was not written again, does not count."""
    directory = dcp_save(tmp_path / "step-1", at=1000)
    (found,) = finding.search(str(tmp_path))
    assert found.took == 0.0
    for file, at in zip(sorted(directory.glob("*.distcp")), (960, 990), strict=False):
        os.utime(file, (at, at))
    (found,) = finding.search(str(tmp_path))
    assert found.took == 40.0
    os.utime(min(directory.glob("*.distcp")), (100, 100))
    (found,) = finding.search(str(tmp_path))
    assert found.took == 10.0


def test_what_a_link_leads_to_has_a_name_of_its_own(tmp_path):
    new = dcp_save(tmp_path / "epoch-2", at=200)
    (tmp_path / "latest").symlink_to(new)
    (tmp_path / "last.pt").symlink_to(save(tmp_path / "epoch-1.pt", at=100))
    assert newest(tmp_path) == (str(new), [])
    damage(new / ".metadata", cut_short)
    path, _ = newest(tmp_path)
    assert path == str(tmp_path / "epoch-1.pt")


def test_a_link_to_another_place_counts(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    new = save(elsewhere / "step-5.pt", at=100)
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    (directory / "latest.pt").symlink_to(new)
    assert newest(directory) == (str(directory / "latest.pt"), [])


def test_what_is_excluded(tmp_path):
    good = save(tmp_path / "last.pt", at=100)
    save(tmp_path / "best-3.pt", at=200)
    save(tmp_path / "final.pt", at=300)
    assert newest(tmp_path, exclude=("best*", "final*")) == (str(good), [])


PATTERNS = {
    "runs/*/checkpoints": "runs/b/checkpoints/step-2.pt",
    "runs/**": "runs/b/checkpoints/step-2.pt",
    "**": "runs/b/checkpoints/step-2.pt",
    "runs/a*/checkpoints": "runs/a/checkpoints/step-1.pt",
    "runs/[a]/*": "runs/a/checkpoints/step-1.pt",
    "later/*/checkpoints": "",
    "runs": "",
}


@pytest.mark.parametrize(("pattern", "chosen"), PATTERNS.items())
def test_a_pattern_of_directories(tmp_path, pattern, chosen):
    for run, step in (("a", 1), ("b", 2)):
        (tmp_path / "runs" / run / "checkpoints").mkdir(parents=True)
        save(tmp_path / "runs" / run / "checkpoints" / f"step-{step}.pt", at=100 * step)
    path, _ = newest(f"{tmp_path}/{pattern}")
    assert path == (str(tmp_path / chosen) if chosen else "")


@pytest.mark.parametrize("below", ["checkpoints", "lightning_logs/version_3/checkpoints"])
def test_where_frameworks_save_below_a_directory(tmp_path, below):
    (tmp_path / below).mkdir(parents=True)
    good = save(tmp_path / below / "step-1.pt", at=100)
    assert newest(tmp_path) == (str(good), [])
    newer = save(tmp_path / "step-2.pt", at=200)
    assert newest(tmp_path) == (str(newer), [])


def test_where_torchtitan_saves_below_a_directory(tmp_path):
    for step in (1, 2):
        good = dcp_save(tmp_path / "checkpoint" / f"step-{step}", at=100 * step)
    assert newest(tmp_path) == (str(good), [])


def test_files_in_a_directory_of_that_name_may_be_one_checkpoint(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    for name in ("model.pt", "optimizer.pt"):
        save(tmp_path / "checkpoint" / name, at=100)
    assert newest(tmp_path)[0] == ""
    assert "checkpoint: nothing says that it is complete" in passed_over(tmp_path)


@pytest.mark.parametrize("name", ["checkpoint", "checkpoints"])
def test_a_checkpoint_with_the_name_of_such_a_directory_is_found_once(tmp_path, name):
    directory = dcp_save(tmp_path / name, at=100)
    found = finding.candidates(str(tmp_path), Facts())
    assert [each.path for each in found] == [str(directory)]


def test_a_pattern_finds_nothing_within_a_checkpoint(tmp_path):
    """Parts of a checkpoint are no checkpoints, though they look like some."""
    directory = dcp_save(tmp_path / "run" / "epoch-1.ckpt", at=100)
    save(directory / "meta.pt", at=130)
    save(directory / "extra.pt", at=200)
    assert newest(f"{tmp_path}/**") == (str(directory), [])


def test_a_directory_with_the_name_of_a_pattern_is_none(tmp_path):
    (tmp_path / "run[1]").mkdir()
    good = save(tmp_path / "run[1]" / "step-1.pt", at=100)
    assert newest(tmp_path / "run[1]") == (str(good), [])


def test_hidden_directories_are_not_gone_through(tmp_path):
    (tmp_path / ".cache").mkdir()
    save(tmp_path / ".cache" / "step-1.pt", at=100)
    assert newest(f"{tmp_path}/**") == ("", [])


def test_a_pattern_that_goes_through_too_much_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "MOST_FOLDERS", 3)
    for i in range(5):
        (tmp_path / str(i)).mkdir()
    with pytest.raises(OSError, match="begin it further down"):
        finding.search(f"{tmp_path}/**")


def refuse_to_list(monkeypatch, name, number):
    """Let the directories of this name fail with this error when they are listed."""
    listed = os.scandir

    def scandir(path: str):
        if os.path.basename(path) == name:
            raise OSError(number, os.strerror(number), path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_what_is_somebody_elses_below_a_pattern(tmp_path, monkeypatch):
    """A pattern passes over a directory that cannot be listed; an error is raised only where the
    user means just this directory."""
    (tmp_path / "private").mkdir()
    (tmp_path / "run").mkdir()
    good = save(tmp_path / "run" / "step-1.pt", at=100)
    refuse_to_list(monkeypatch, "private", errno.EACCES)
    for pattern in ("*", "**"):
        assert newest(tmp_path / pattern) == (str(good), [])
    for where in ("private", "priv*"):
        with pytest.raises(PermissionError):
            finding.search(str(tmp_path / where))


def test_a_directory_of_too_many_files_is_passed_over_below_any_depth(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / str(number)).touch()
    (tmp_path / "run").mkdir()
    good = save(tmp_path / "run" / "step-1.pt", at=100)
    monkeypatch.setattr(listing, "MOST_ENTRIES", 10)
    assert newest(tmp_path / "**") == (str(good), [])
    for named in ("data", "*", "**/data"):  # it may have the newest checkpoint
        with pytest.raises(OSError, match="it has more than 10 files"):
            finding.search(str(tmp_path / named))


@pytest.mark.parametrize("vanished", ["private", "run"])
def test_if_no_directory_can_be_listed_an_error_is_raised(tmp_path, monkeypatch, vanished):
    for name in ("private", "run"):
        (tmp_path / name).mkdir()

    def look(path, _facts):
        if os.path.basename(path) == vanished:
            raise FileNotFoundError(2, "No such file or directory", path)
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(finding, "_in", look)
    with pytest.raises(PermissionError):
        finding.search(str(tmp_path / "*"))


def test_a_directory_that_cannot_be_read_at_the_moment_fails_the_search(tmp_path, monkeypatch):
    """Choose no older one instead: the directory may have the newest."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "run").mkdir()
    save(tmp_path / "run" / "step-1.pt", at=100)
    refuse_to_list(monkeypatch, "broken", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        finding.search(str(tmp_path / "*"))


@pytest.mark.parametrize("below", ["", "runs/*/checkpoints", "runs/a/*"])
@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO])
def test_a_file_system_that_has_trouble_is_not_taken_for_an_empty_one(
    tmp_path, monkeypatch, below, error
):
    (place := tmp_path / "runs" / "a" / "checkpoints").mkdir(parents=True)
    save(place / "step-1.pt", at=100)
    where = tmp_path / below if below else place

    def lost(path, *args, real, **more):
        if str(path).startswith(str(tmp_path / "runs")):
            raise OSError(error, os.strerror(error), str(path))
        return real(path, *args, **more)

    for name in ("stat", "lstat", "scandir"):
        monkeypatch.setattr(os, name, partial(lost, real=getattr(os, name)))
    with pytest.raises(OSError, match=os.strerror(error)):
        finding.search(str(where))


def test_a_directory_that_this_user_may_not_enter_is_not_taken_for_a_missing_one(
    tmp_path, monkeypatch
):
    def refused(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(PermissionError):
        finding.search(str(tmp_path / "ckpt"))


def test_if_one_file_cannot_be_looked_at_no_older_one_is_chosen(tmp_path, monkeypatch):
    for step in (10, 20):
        save(tmp_path / f"step_{step}.pt", at=step)
    look = listing._look

    def lost(entry):
        if entry.name == "step_20.pt":
            raise OSError(errno.EIO, os.strerror(errno.EIO), entry.path)
        return look(entry)

    monkeypatch.setattr(listing, "_look", lost)
    with pytest.raises(OSError, match=r"step_20\.pt"):
        finding.search(str(tmp_path))


def test_a_file_in_place_of_the_directory(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        finding.search(str(tmp_path / "file"))


def test_what_is_deleted_while_we_look_is_gone(tmp_path, monkeypatch):
    good = dcp_save(tmp_path / "step-1", at=100)
    torn = dcp_save(tmp_path / "step-2", at=200)
    found = finding.candidates(str(tmp_path), Facts())
    listed = list(found)
    for path in torn.iterdir():
        path.unlink()
    torn.rmdir()
    monkeypatch.setattr(finding, "candidates", lambda where, facts: listed)
    (chosen,) = finding.search(str(tmp_path))
    assert chosen.candidate.path == str(good)


def test_what_is_just_being_deleted_is_not_chosen(tmp_path, monkeypatch):
    good = dcp_save(tmp_path / "step-1", at=100)
    torn = dcp_save(tmp_path / "step-2", at=200)
    listed = list(finding.candidates(str(tmp_path), Facts()))
    (torn / "__0_0.distcp").unlink()
    monkeypatch.setattr(finding, "candidates", lambda where, facts: listed)
    passed, chosen = finding.search(str(tmp_path))
    assert chosen.candidate.path == str(good)
    assert passed.lacks


def test_links_that_lead_in_a_circle(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").symlink_to(tmp_path)
    good = save(tmp_path / "a" / "step-1.pt", at=100)
    assert newest(f"{tmp_path}/**") == (str(good), [])


@pytest.mark.parametrize("pattern", ["run", "*", "**"])
def test_a_link_to_itself_hides_nothing(tmp_path, pattern):
    """Such a link cannot be followed, like one to a place that this user may not read."""
    good = dcp_save(tmp_path / "run" / "epoch-1", at=100)
    for directory in (tmp_path, tmp_path / "run", good):
        (directory / "latest").symlink_to("latest")
    assert newest(f"{tmp_path}/{pattern}") == (str(good), [])


def test_the_line_about_what_is_passed_over_has_its_name(tmp_path):
    good = save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-2.pt", at=200), cut_short)
    assert passed_over(tmp_path, good) == "epoch-2.pt: cut short or still being written"


def test_names_in_any_encoding(tmp_path):
    new = save(Path(os.fsdecode(bytes(tmp_path) + b"/gr\xf6\xdfe.pt")), at=200)
    save(tmp_path / "older.pt", at=100)
    assert newest(tmp_path) == (str(new), [])
