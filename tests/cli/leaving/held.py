"""Runs a script that is held after a step: held.py STEP SCRIPT ARGS

At the end, `result-RANK` says what has become of the weights.
"""

import os
import runpy
import sys
from pathlib import Path

from holding import digest, hold
from torch.optim.optimizer import register_optimizer_step_post_hook

held_after = int(sys.argv[1])
rank = os.environ["RANK"]
steps: dict = {}  # by optimizer


def count(optimizer, *_):
    steps[optimizer] = steps.get(optimizer, 0) + 1
    if steps[optimizer] == held_after:
        hold(rank)


register_optimizer_step_post_hook(count)
del sys.argv[:2]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    Path(f"result-{rank}").write_text(digest(steps))
