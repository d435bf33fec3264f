"""The step of Slurm to which this process belongs, according to its cgroup and its parents.

The environment may be wrong: containers remove Slurm's variables, and shells keep those of an
earlier step.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import NamedTuple

CGROUP = re.compile(rb"/job_(\d+)/step_(\d+|batch|interactive)\b")
SCRIPT = re.compile(rb"/job0*(\d+)/slurm_script\0")  # in the command line of the batch shell
TITLE = re.compile(rb"slurmstepd: \[(\d+)\.(\d+|batch|interactive)\]")  # may be cut off


class OwnStep(NamedTuple):
    job: str  # in a heterogeneous job, the id of the component
    step: str  # a number, "batch" or "interactive"


def own_step() -> OwnStep | None:
    """Return the step of this process; None if it is not visible, or in an ssh session."""
    try:
        if found := CGROUP.search(Path("/proc/self/cgroup").read_bytes()):
            return OwnStep(*map(os.fsdecode, found.groups()))
        pid = os.getppid()
        while pid > 1:
            process = Path("/proc", str(pid))
            line = (process / "cmdline").read_bytes()
            if found := SCRIPT.search(line):
                return OwnStep(os.fsdecode(found[1]), "batch")
            if found := TITLE.match(line):
                return OwnStep(*map(os.fsdecode, found.groups()))
            # The name in parentheses may contain anything. The state and the parent follow it.
            pid = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        pass  # there is no /proc, or it hides other users' processes
    return None


def forget_other_step(environ: MutableMapping[str, str]) -> None:
    """Remove the variables that a job script has inherited from the step that submitted it."""
    if "SLURM_STEP_ID" in environ and (mine := own_step()) and mine.step == "batch":
        for name in [name for name in environ if name.startswith("SLURM_STEP")]:
            del environ[name]
