"""How many files this process may have open, connections among them.

An agent takes as many as it needs, up to the hard limit. What it starts has the user's limit: some
programs close every descriptor that they might have, and scripts are to see what the user has set.
"""

from __future__ import annotations

import math
import resource

SPARE = 512  # beyond what is needed: connections that come and go
_USERS = resource.getrlimit(resource.RLIMIT_NOFILE)


def take(needed: int) -> float:
    """So many, and some to spare, as far as that is allowed; returns the most that are."""
    soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in _USERS)
    wanted = min(needed + SPARE, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(wanted), _USERS[1]))
    return hard


def restore(pid: int) -> None:
    """The user's limit, for a process that was started after `take`."""
    if resource.getrlimit(resource.RLIMIT_NOFILE) != _USERS:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _USERS)
