"""For training scripts: how far they have come, beyond what the launcher sees by itself.

    from hpclaunch.progress import phase, step

    step(1200)  # a step is done
    phase("evaluation")  # what comes next, until the next step

Without the launcher, and with `--progress off`, both do nothing. They cost a fraction of a
microsecond, and may be called from one thread at a time.
"""

from __future__ import annotations

import sys
from typing import Any


def step(number: int) -> None:
    """Say that a step of the training is done. `number` is that of the step, from the first round
    on or since the last start, as the script counts.
    """
    if (slot := _slot()) is not None:
        slot.step(number)


def phase(name: str) -> None:
    """Say what is done from now on: "evaluation", "save", or a word of your own. It may take ten
    times as long as a step before it counts as a hang. The next step ends it.
    """
    if (slot := _slot()) is not None:
        slot.enter(name)


def _slot() -> Any:
    hooks = sys.modules.get("_hpclaunch_hooks")
    return None if hooks is None else hooks.progress
