"""Agents with other time-outs than those of users, so that a test waits less, or a wait has room.

Most fields of `Timing` have no option. A program of the tests' own, `stand_ins/timed/hpclaunch`,
sets them before it does what `hpclaunch` does; the product reads none of this. It can also set the
time-outs that stand in the agent's own modules, as {"agent.notifying.END_LIMIT": 1.0}.
"""

from __future__ import annotations

import json
from pathlib import Path

PROGRAM = Path(__file__).parent / "stand_ins" / "timed" / "hpclaunch"


def variables(path: str, **timing: float) -> dict[str, str]:
    """Return variables with which `hpclaunch` in PATH is the timed program; `path` is the PATH
    behind it.

    `timing` has fields of `Timing` and their values in seconds, the same for all agents of a job.
    """
    return {"PATH": f"{PROGRAM.parent}:{path}", "TIMING_OF_TEST": json.dumps(timing)}
