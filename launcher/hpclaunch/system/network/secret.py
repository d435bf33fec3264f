"""The file with the user's secret, from which `zmq_channel.py` derives a job's keys.

The file is the only thing that agents share beforehand. Whoever can read it can join the user's
jobs, so it is refused when anybody else can read it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.worker import private_files

BYTES = 32
VARIABLE = "HPCLAUNCH_SECRET_FILE"
WRITING = 1.0  # seconds to wait for another agent to write the file that it has just created
TICK = 0.02


def secret_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the secret file. Raises UsageError if the user has no home here."""
    if path := environ.get(VARIABLE):
        return Path(path)
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG specification says to ignore such a path
        state = os.path.expanduser("~/.local/state")
    if not os.path.isabs(state):
        raise UsageError(
            f"no place for the secret file, since user {os.geteuid()} has no home directory here: "
            f"set HOME, or {VARIABLE} to a file that all nodes of the job share"
        )
    return Path(state) / "hpclaunch" / "secret"


def load_or_create(path: Path) -> bytes:
    """Return the secret at `path`, made on first use. Raises UsageError if it cannot be used, or
    others can read it.
    """
    try:
        try:
            return _read(path)
        except FileNotFoundError:
            _create(path)
            return _read(path)
    except OSError as e:
        raise UsageError(
            f"cannot use the secret file {path}: {e.strerror}; set {VARIABLE} to a file that "
            "all nodes of the job share"
        ) from e


def _read(path: Path) -> bytes:
    with open(path, "rb") as f:
        info = os.fstat(f.fileno())
        limit = time.monotonic() + WRITING
        while len(secret := os.pread(f.fileno(), 4096, 0)) < BYTES and time.monotonic() < limit:
            time.sleep(TICK)
    if info.st_uid != os.geteuid():
        raise UsageError(f"the secret file {path} belongs to another user: remove it")
    if (mode := stat.S_IMODE(info.st_mode)) & 0o077:
        raise UsageError(
            f"the secret file {path} is open to others (mode {mode:04o}), who could join your "
            "jobs: remove it, and a new one is made"
        )
    if len(secret) < BYTES:
        raise UsageError(f"the secret file {path} is too short: remove it, and a new one is made")
    return secret


def _create(path: Path) -> None:
    """Create the secret file, unless another agent does so first.

    Nobody can read it half-written, except where the file system has no hard links.
    """
    import tempfile

    if not path.parent.exists():
        private_files.make_directory(path.absolute().parent)
    secret = os.urandom(BYTES)
    handle, draft = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(secret)
            f.flush()
            os.fsync(f.fileno())
        with contextlib.suppress(FileExistsError):
            try:
                os.link(draft, path)
            except OSError:  # it exists by now, or the file system has no hard links
                with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as f:
                    f.write(secret)
    finally:
        os.unlink(draft)


def fingerprint(secret: bytes) -> str:
    """Return a short text for people to compare, which shows only whether two secrets are equal."""
    import hmac

    return hmac.digest(secret, b"hpclaunch fingerprint", "sha256").hex()[:8]
