"""The file in which whoever has started this launcher wants to read what ended a worker.

It is torch's: a worker writes its exception to its own TORCHELASTIC_ERROR_FILE, and a launcher
copies that of the first failure to the one that it was given itself, by torchx for example.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpclaunch.core.protocol.model import Failure

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def hand_on(failures: Iterable[Failure], logs: Path, environ: Mapping[str, str]) -> None:
    """Copy what the first of these failures that left anything in `logs` has left there."""
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
    """With the exit code, which a worker that was killed cannot have written itself."""
    file = logs / f"round-{failure.round}" / f"rank-{failure.rank}.error.json"
    try:
        error = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(error, dict):
        return None
    if isinstance(error.get("message"), dict):
        error["message"]["errorCode"] = -failure.signal or failure.code
    return error
