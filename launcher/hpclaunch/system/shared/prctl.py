"""prctl(2) for the agent and its helpers: who adopts orphans, and who dies with whom.

Standard library only. `worker/processes.py` has its own, since no file there imports from here.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl  # found now: a child that has just been forked may take no lock


def adopt_orphans() -> None:
    """Have this process adopt each of its descendants whose parent dies."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int, signum: int = signal.SIGKILL) -> bool:
    """Have this process get the signal when its parent, or the thread that has started it, ends in
    any way. Return False if the parent has already ended: then there is no signal.
    """
    _prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    return os.getppid() == parent
