"""The limit of open files of this process, connections included (`ulimit -n`).

An agent raises its limit to what it needs, up to the hard limit. The processes that it starts have
the user's own limit: some programs close every descriptor that they might have, and scripts are to
see what the user has set.
"""

from __future__ import annotations

import math
import resource

SPARE = 1 << 14  # beyond what is needed: for connections of strangers, see `zmq_channel.py`
_USERS = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_to(needed: int) -> float:
    """Allow `needed` files and some to spare, up to the hard limit. Return that limit."""
    soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in _USERS)
    wanted = min(needed + SPARE, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(wanted), _USERS[1]))
    return hard


def restore(pid: int) -> None:
    """Restore the user's limit for a process that was started after `raise_to`."""
    if resource.getrlimit(resource.RLIMIT_NOFILE) != _USERS:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _USERS)
