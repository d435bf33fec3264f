"""The free space on the disk of a directory, which may not exist yet.

Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpclaunch.core.health.host_rules import Disk


def look(directory: Path) -> Disk:
    """Return the free space. This hangs if the file system does."""
    try:
        there = nearest(directory)
        found = os.statvfs(there)
    except OSError as e:
        return Disk(str(directory), error=e.strerror or str(e))
    return Disk(
        str(directory),
        free=found.f_bavail * found.f_frsize,
        files=found.f_favail if found.f_files else None,
        writable=os.access(there, os.W_OK | os.X_OK),
    )


def nearest(directory: Path) -> Path:
    """Return the directory, or the lowest one above it that exists. Raises OSError if a directory
    cannot be read, for example because its file server has lost it (ESTALE).
    """
    there = directory.absolute()
    while True:
        try:
            os.stat(there)
        except (FileNotFoundError, NotADirectoryError):
            there = there.parent
        else:
            return there
