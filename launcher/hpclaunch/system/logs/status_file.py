"""The job snapshot that the head writes into the log directory now and then, and at the end, for
users who cannot reach the head.
"""

from __future__ import annotations

import contextlib
import glob
import time
from pathlib import Path

import msgspec

from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.core.protocol.values import replace
from hpclaunch.worker import private_files

from ..shared import packing
from .log_directory import STATUS, of_all_launches


def newest(which: str) -> LaunchSnapshot | None:
    """Return the newest snapshot of a log directory, or of a launch or Slurm job whose logs are in
    the usual place below the working directory. None if there is none that can be read.
    """
    above = of_all_launches()
    places = [Path(which)]
    if "/" not in which:
        places += [above / which, *above.glob(f"{glob.escape(which)}.*")]
    found = []
    for place in places:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(packing.unpack(private_files.read_file(place / STATUS), LaunchSnapshot))
    if not found:
        return None
    last = max(found, key=lambda launch: launch.time)
    return replace(last, old=max(0.0, time.time() - last.time))
