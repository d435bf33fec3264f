"""Agents with other time-outs than the usual ones, to make tests faster or more robust.

Most fields of `Timing` have no option. The test program `stand_ins/timed/hpclaunch` sets them and
then runs `hpclaunch`, which itself reads none of this. It can also set time-outs in other modules
of the agent, for example {"agent.notifying.END_LIMIT": 1.0}, or in a class there.
"""

from __future__ import annotations

import json
from pathlib import Path

PROGRAM = Path(__file__).parent / "stand_ins" / "timed" / "hpclaunch"


def variables(path: str, **timing: float) -> dict[str, str]:
    """Return variables with which `hpclaunch` in PATH is the timed program, followed by `path`.

    `timing` has fields of `Timing` and their values in seconds, the same for all agents of a job.
    """
    return {"PATH": f"{PROGRAM.parent}:{path}", "TIMING_OF_TEST": json.dumps(timing)}
