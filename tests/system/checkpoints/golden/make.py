"""Make the trees beside this file with versions of the libraries that the tests do not have.

    python golden/make.py NAME PYTHON      with an interpreter that has the library

Git keeps no times, which show the order of the writes: they are in `times.json`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

# By the name of the tree: the maker, its options, how many ranks, and the steps.
TREES = {
    "transformers-4.46.3": ("hf_trainer", {"size": 4, "safe": False}, 2, [10]),
    "transformers-4.46.3-sharded": ("hf_trainer", {"size": 4, "shards": "2KB"}, 1, [10]),
    "accelerate-0.34.2": ("accelerate_state", {"size": 640, "objects": 2, "safe": False}, 2, [1]),
    "pytorch-lightning-2.2.5": ("lightning_trainer", {"size": 64}, 1, [10]),
    "safetensors-0.4.5": ("safetensors_files", {"size": 64}, 1, [10]),
    "composer-0.32.1": ("composer_trainer", {}, 1, [2]),
}


def main(name: str, python: str) -> None:
    from makers import Maker

    maker, options, world, steps = TREES[name]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / name
        Maker(maker, python).save(root, *steps, world=world, **options)
        target = HERE / name
        shutil.rmtree(target, ignore_errors=True)
        # The Trainer's arguments name the machine, and no reader needs them.
        own = shutil.ignore_patterns("training_args.bin")
        shutil.copytree(root, target, symlinks=True, ignore=own)
        files = sorted(p for p in target.rglob("*") if not p.is_symlink())
        times = {str(p.relative_to(target)): p.stat().st_mtime_ns for p in files}
    (target / "times.json").write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
