"""hpclaunch checkpoints: what is there, and what would be chosen."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from launching import hpclaunch

from hpclaunch.system.staging.stage_directory import BASE, StageDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "system" / "checkpoints"))
from looking import cut_short, damage, zero_the_middle
from test_format_dcp import dcp_save
from test_format_torch_save import save

pytestmark = pytest.mark.starts


def checkpoints_json(where, *options):
    done = hpclaunch("checkpoints", where, "--json", *options, cwd=Path("/"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_there(tmp_path):
    new = save(tmp_path / "epoch-2.pt", at=200)
    dcp_save(tmp_path / "epoch-1", at=100)
    damage(save(tmp_path / "epoch-3.pt", at=300), cut_short)
    said = checkpoints_json(tmp_path)
    assert (said["chosen"], said["rule"]) == (str(new), "epoch 2, by its name")
    torn, chosen, older = said["checkpoints"]
    assert torn["why_not"] == "cut short or still being written"
    assert (chosen["complete"], chosen["chosen"], chosen["saved"]) == (True, True, 200.0)
    assert (older["format"], older["world"], older["chosen"]) == ("DCP", 1, False)
    assert older["load"] == "dcp.load(state, checkpoint_id=path)"


def test_the_table(tmp_path):
    save(tmp_path / "epoch-2.pt", at=200)
    damage(save(tmp_path / "epoch-3.pt", at=300), cut_short)
    done = hpclaunch("checkpoints", "saved", cwd=_named(tmp_path))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["checkpoint", "format", "step", "size", "age", "ranks", "complete"]
    assert lines[1][:4] == ["epoch-3.pt", "torch.save", "epoch", "3"]
    assert lines[2][:5] == ["->", "epoch-2.pt", "torch.save", "epoch", "2"]
    assert done.stdout.rstrip().endswith(
        "would resume from epoch-2.pt (epoch 2, by its name); load it with torch.load(path)"
    )


@pytest.fixture
def staged(tmp_path):
    made = StageDirectory(BASE, str(tmp_path))
    yield Path(made.path)
    made.remove()


def test_one_that_is_only_in_memory(tmp_path, staged):
    """A launch restarts from it, but one that begins now does not."""
    stored = save(tmp_path / "epoch-1.pt", at=100)
    saved = save(staged / "epoch-2.pt", at=200)
    damage(save(staged / "epoch-3.pt", at=300), cut_short)
    said = checkpoints_json(tmp_path)
    assert said["chosen"] == str(stored)
    assert [each["path"] for each in said["in_memory"]] == [str(tmp_path / "epoch-2.pt")]
    done = hpclaunch("checkpoints", tmp_path, cwd=Path("/"))
    assert "yes, only in memory" in done.stdout
    launch = "a running launch has"
    newer = f"load it with torch.load(path); {launch} a newer one in memory"
    assert " ".join(done.stdout.split()).endswith(newer)
    stored.unlink()
    done = hpclaunch("checkpoints", tmp_path, cwd=Path("/"))
    one = f"a training would begin at the start; {launch} one in memory"
    assert " ".join(done.stdout.split()).endswith(one)
    shutil.copy2(saved, tmp_path)
    assert checkpoints_json(tmp_path)["in_memory"] == []


def _named(directory):
    """Return a directory in which this one is called `saved`."""
    (directory.parent / "saved").symlink_to(directory)
    return directory.parent


def test_a_damaged_one_is_found_by_reading(tmp_path):
    good = save(tmp_path / "epoch-1.pt", at=100)
    bad = save(tmp_path / "epoch-2.pt", at=200)
    damage(bad, zero_the_middle)
    assert checkpoints_json(tmp_path)["chosen"] == str(good)
    assert checkpoints_json(tmp_path, "--verify", "structure")["chosen"] == str(bad)


def test_a_pattern_and_what_is_left_out(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    good = save(tmp_path / "runs" / "a" / "last.pt", at=100)
    save(tmp_path / "runs" / "a" / "best.pt", at=200)
    said = checkpoints_json(tmp_path / "runs" / "*", "--checkpoint-exclude", "best*")
    assert [c["path"] for c in said["checkpoints"]] == [str(good)]


@pytest.mark.parametrize("pattern", ["seed?", "seed[12]", "seed*"])
def test_names_are_relative_to_the_directory_above_the_pattern(tmp_path, pattern):
    (tmp_path / "runs" / "seed1").mkdir(parents=True)
    save(tmp_path / "runs" / "seed1" / "step-5.pt", at=100)
    done = hpclaunch("checkpoints", tmp_path / "runs" / pattern, cwd=tmp_path)
    assert " seed1/step-5.pt " in done.stdout


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nowhere", "no directory nowhere: a training would begin at the start"),
        ("empty", "no checkpoint in empty: a training would begin at the start"),
        (
            "strange",
            "strange has config.json, step100, but nothing in a known format; --checkpoint-dir "
            "'strange/**' also searches the directories below it; for directories in a format of "
            "your own, --checkpoint-complete names the file that marks a complete one",
        ),
    ],
)
def test_nothing_to_resume_from(in_process, tmp_path, where, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "strange" / "step100" / "model").mkdir(parents=True)
    (tmp_path / "strange" / "config.json").touch()
    done = in_process("checkpoints", where, cwd=tmp_path)
    assert (done.returncode, " ".join(done.stdout.split())) == (0, words)


def test_what_is_no_directory(in_process, tmp_path):
    (tmp_path / "file").touch()
    done = in_process("checkpoints", "file", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "hpclaunch: error: cannot look for checkpoints in file: it is not"
    )


def test_names_that_would_confuse_a_terminal(tmp_path):
    save(tmp_path / "[bold]epoch-1.pt", at=100)
    save(tmp_path / os.fsdecode(b"epoch-2-\xff.pt"), at=200)
    save(tmp_path / "\x1b[31mepoch-3\n.pt", at=300)
    done = hpclaunch("checkpoints", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[bold]epoch-1.pt" in done.stdout
    assert r"epoch-2-\udcff.pt" in done.stdout
    assert "?[31mepoch-3?.pt" in done.stdout
    assert "would resume from ?[31mepoch-3?.pt " in done.stdout
    assert "\x1b" not in done.stdout
