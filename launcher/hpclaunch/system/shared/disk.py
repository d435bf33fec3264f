"""How much room there is on the disk that a directory is on, or would be made on.

Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def look(directory: Path) -> dict[str, Any]:
    """The fields of a `Disk` (core/health/host_rules.py). May hang, if the file system does."""
    there = directory.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        found = os.statvfs(there)
    except OSError as e:
        return {"path": str(directory), "error": e.strerror or str(e)}
    return {
        "path": str(directory),
        "free": found.f_bavail * found.f_frsize,
        "files": found.f_favail if found.f_files else None,
        "writable": os.access(there, os.W_OK | os.X_OK),
    }
