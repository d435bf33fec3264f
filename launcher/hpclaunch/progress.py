"""For training scripts: report progress that the launcher cannot see by itself.

    from hpclaunch.progress import phase, step

    step(1200)  # a step is done
    phase("evaluation")  # the work until the next step

Without the launcher, and with `--progress off`, both do nothing. A call takes a fraction of a
microsecond. They may be called from one thread at a time.
"""

from __future__ import annotations

import sys
from typing import Any


def step(number: int) -> None:
    """Report that a step of the training is done. `number` may count from the first round or from
    the last start.
    """
    if (slot := _slot()) is not None:
        slot.step(number)


def phase(name: str) -> None:
    """Report that a phase begins: "evaluation", "save", or a word of your own. The next step ends
    it. In a phase, the time until workers count as hung is ten times as long.
    """
    if (slot := _slot()) is not None:
        slot.enter(name)


def _slot() -> Any:
    hooks = sys.modules.get("_hpclaunch_hooks")
    return None if hooks is None else hooks.progress
