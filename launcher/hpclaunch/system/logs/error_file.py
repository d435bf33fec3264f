"""TORCHELASTIC_ERROR_FILE: hands on the exception that ended a worker to our caller.

As in torchrun, a worker writes its exception to an error file of its own, and the launcher copies
that of the first failure to the file that the launcher was given itself, for example by torchx.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpclaunch.core.protocol.model import Failure
from hpclaunch.worker import private_files

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def hand_on(failures: Iterable[Failure], logs: Path, environ: Mapping[str, str]) -> None:
    """Copy the error file of the first of these failures that has left one in `logs`."""
    if not (wanted := environ.get(VARIABLE)):
        return
    error = next(filter(None, (_left_by(failure, logs) for failure in failures)), None)
    if error is None:
        return
    with (
        contextlib.suppress(OSError),
        open(wanted, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as f,
    ):
        json.dump(error, f)


def _left_by(failure: Failure, logs: Path) -> dict[str, Any] | None:
    """With the exit code, which a worker that was killed cannot have written."""
    file = logs / f"round-{failure.round}" / f"rank-{failure.rank}.error.json"
    try:
        with open(file, "rb", opener=private_files.open_file) as f:
            error = json.loads(f.read())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(error, dict):
        return None
    if isinstance(error.get("message"), dict):
        error["message"]["errorCode"] = -failure.signal or failure.code
    return error
