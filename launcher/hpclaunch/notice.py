"""For training scripts: whether the end of the job is near.

    from hpclaunch.notice import due

    for batch in loader:
        ...
        optimizer.step()
        if due():
            save()
            sys.exit(0)

It is True from the same step on for all ranks, and False without the launcher, or with
`--progress off`. It costs a fraction of a microsecond.
"""

from __future__ import annotations

import sys


def due() -> bool:
    hooks = sys.modules.get("_hpclaunch_hooks")
    return hooks is not None and hooks.progress.due()
