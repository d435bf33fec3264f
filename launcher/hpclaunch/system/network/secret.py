"""The file with the user's secret, from which `zmq_channel.py` derives a job's keys.

The file is the only thing that agents share beforehand. Whoever can read it can join the user's
jobs, so it is refused when anybody else can read it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.worker import private_files

BYTES = 32
VARIABLE = "HPCLAUNCH_SECRET_FILE"


def secret_path(environ: Mapping[str, str]) -> Path:
    """UsageError when the user has no home here."""
    if path := environ.get(VARIABLE):
        return Path(path)
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # to be ignored, says its specification
        state = os.path.expanduser("~/.local/state")
    if not os.path.isabs(state):
        raise UsageError(
            f"no place for the secret file, since user {os.geteuid()} has no home directory here: "
            f"set HOME, or {VARIABLE} to a file that all nodes of the job share"
        )
    return Path(state) / "hpclaunch" / "secret"


def load_or_create(path: Path) -> bytes:
    """The secret at `path`, made on first use; UsageError when it is not the user's alone."""
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
    with path.open("rb") as f:
        info = os.fstat(f.fileno())
        secret = f.read(4096)
    if info.st_uid != os.geteuid():
        raise UsageError(f"the secret file {path} belongs to another user: remove it")
    if stat.S_IMODE(info.st_mode) & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise UsageError(
            f"the secret file {path} is open to others (mode {mode:04o}), who could join your "
            f"jobs: remove it, and a new one is made"
        )
    if len(secret) < BYTES:
        raise UsageError(f"the secret file {path} is too short: remove it, and a new one is made")
    return secret


def _create(path: Path) -> None:
    """Whole or not at all, by the first of many that try at once: link() decides."""
    import tempfile

    if not path.parent.exists():
        private_files.make_directory(path.absolute().parent)
    handle, draft = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(os.urandom(BYTES))
            f.flush()
            os.fsync(f.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def fingerprint(secret: bytes) -> str:
    """For people to compare: tells two secrets apart and nothing else about them."""
    import hmac

    return hmac.digest(secret, b"hpclaunch fingerprint", "sha256").hex()[:8]
