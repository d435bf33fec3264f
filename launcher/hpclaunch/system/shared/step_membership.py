"""Which step of Slurm this process belongs to, as the kernel shows it, whatever the environment
says: a container may have removed Slurm's variables, and those of another step may be left.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import NamedTuple

CGROUP = re.compile(rb"/job_(\d+)/step_(\d+|batch|interactive)\b")
SCRIPT = re.compile(rb"/job0*(\d+)/slurm_script\0")  # an argument of the shell that runs it
TITLE = re.compile(rb"slurmstepd: \[(\d+)\.(\d+|batch|interactive)\]")  # may be cut off


class OwnStep(NamedTuple):
    job: str  # in a heterogeneous job, that of the component
    step: str  # a number, "batch" or "interactive"


def own_step() -> OwnStep | None:
    """Return the step; None where that cannot be seen, and for a session of ssh."""
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
            # After the name, which may contain anything: the state, and the parent.
            pid = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        pass  # no /proc, or other users' processes are hidden
    return None


def forget_other_step(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of a step of which this process is no task: a job script that was
    submitted from within a step has them.
    """
    if "SLURM_STEP_ID" in environ and (mine := own_step()) and mine.step == "batch":
        for name in [name for name in environ if name.startswith("SLURM_STEP")]:
            del environ[name]
