"""Storage that hangs: a FUSE file system whose calls do not return until they are released."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm" / "scripts" / "stalling.py"
CALLS = (
    "access", "getattr", "readdir", "readlink", "statfs", "create", "open", "read", "write",
    "truncate", "release", "fsync", "flush", "mkdir", "rmdir", "unlink", "symlink", "rename",
    "chmod", "chown", "utimens",
)  # fmt: skip


class StallingStorage:
    """The file system. What is on storage is also in `source`, which never stalls."""

    def __init__(self, mountpoint: Path, source: Path, stalls: Path) -> None:
        self.mountpoint, self.source, self._stalls = mountpoint, source, stalls

    def stall(self, *calls: str) -> None:
        """Have these calls stall until `release`; without any, all of them."""
        new = self._stalls.with_suffix(".new")
        new.write_text(" ".join(set(CALLS) - set(calls)) if calls else "")
        new.rename(self._stalls)

    def release(self) -> None:
        self._stalls.unlink(missing_ok=True)


@contextmanager
def stalling_storage(scratch: Path) -> Iterator[StallingStorage]:
    """Mount such a file system at `scratch`/storage."""
    if os.geteuid() or not Path("/dev/fuse").exists():
        pytest.skip("needs root and FUSE")
    made = StallingStorage(scratch / "storage", scratch / "source", scratch / "stalls")
    made.mountpoint.mkdir()
    made.source.mkdir()
    paths = (made.source, made.mountpoint, made._stalls)
    subprocess.run([sys.executable, SCRIPT, *paths], check=True)
    try:
        yield made
    finally:
        made.release()
        subprocess.run(["umount", "--lazy", made.mountpoint], check=True)
