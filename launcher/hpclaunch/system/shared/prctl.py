"""prctl(2) for the agent and its helpers: who adopts orphans, and who dies with whom. Standard
library only.
"""

from __future__ import annotations

import os
import signal

from hpclaunch.worker.processes import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl


def adopt_orphans() -> None:
    """Have this process adopt each of its descendants whose parent dies."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, signum: int = signal.SIGKILL) -> bool:
    """Have this process get the signal when its parent, or the thread that has started it, ends in
    any way. Return False if the parent has already ended: then there is no signal.
    """
    prctl(PR_SET_PDEATHSIG, signum)
    return os.getppid() == parent
