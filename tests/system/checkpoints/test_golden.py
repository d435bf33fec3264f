"""Checkpoints by versions of libraries that the tests do not have (golden/make.py)."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from looking import damage, lose_the_last_byte, newest, passed_over

from hpclaunch.system.checkpoints.finding import search

GOLDEN = Path(__file__).parent / "golden"
TREES = {
    "transformers-4.46.3": ("checkpoint-10", "HF Trainer", 10, 2),
    "transformers-4.46.3-sharded": ("checkpoint-10", "HF Trainer", 10, 1),
    "accelerate-0.34.2": ("step-1", "Accelerate", 1, 2),
    "pytorch-lightning-2.2.5": ("epoch=0-step=10.ckpt", "Lightning", 10, None),
    "safetensors-0.4.5": ("step-10.safetensors", "safetensors", 10, None),
    "composer-0.32.1": ("ep0-ba2-rank0.pt", "Composer", 2, None),
}


def tree(name: str, target: Path) -> Path:
    """Return a copy with its original times."""
    shutil.copytree(GOLDEN / name, target, symlinks=True)
    times = json.loads((target / "times.json").read_text())
    (target / "times.json").unlink()
    for path, at in times.items():
        os.utime(target / path, ns=(at, at))
    return target


@pytest.mark.parametrize(("name", "expected"), TREES.items())
def test_it_is_recognised_and_complete(tmp_path, name, expected):
    root = tree(name, tmp_path / "saved")
    path, form, step, world = expected
    assert newest(root) == (str(root / path), [])
    (found,) = search(str(root))
    candidate = found.candidate
    assert (candidate.format.name, candidate.step.value, candidate.world) == (form, step, world)


FILES = [
    (name, str(path.relative_to(GOLDEN / name)))
    for name in TREES
    for path in sorted((GOLDEN / name).rglob("*"))
    if path.is_file() and not path.is_symlink() and path.name != "times.json"
]
UNNEEDED = ("config.json", "generation_config.json")  # the script has its own
# Only the number of ranks, or the saves beside it, shows that one of these is missing: see their
# own tests.
UNKNOWN = re.compile(
    r"rng_state_1.pth|random_states_1.pkl|custom_checkpoint_1.pkl|(?:optimizer|scheduler|pytorch_model).bin"
)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_without_one_of_its_files_or_the_end_of_one_it_is_not(tmp_path, name, file):
    root = tree(name, tmp_path / "saved")
    victim = root / file
    damage(victim, lose_the_last_byte)
    if victim.name.endswith(UNNEEDED):
        assert newest(root)[0]
        return
    if victim.suffix == ".json":
        damage(victim, lambda data: data[:-1])  # what was lost before is the end of a line
    assert victim.name in passed_over(root)
    victim.unlink()
    if not UNKNOWN.fullmatch(victim.name):
        assert newest(root)[0] == ""
