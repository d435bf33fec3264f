"""Agents of this machine that meet without Slurm, as those of several machines do."""

from __future__ import annotations

import socket

from launching import LIMIT
from launching import start as start_agent

from surroundings import environment

MALFORMED = b"hpclaunch: dead: --5 x y\n"  # a stranger's word
# The first of several machines waits for less long for one that cannot say that it has left.
QUICK = {"goodbye": 1.0, "first_notice": 0.5, "next_notice": 0.5}


def start(*args, cwd, errors=None, timing=None, loss=LIMIT, before=(), **changes):
    """Start an agent with the test's own secret. A silent agent counts as lost after `loss`
    seconds: by default, later than a busy machine holds one up.
    """
    environ = environment(**{"HPCLAUNCH_SECRET_FILE": cwd / "secret"} | changes)
    words = (f"--loss-timeout={loss}", *args)
    more = {"errors": errors, "timing": timing, "before": before}
    return start_agent(*words, cwd=cwd, environ=environ, **more)


def is_open(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0
