"""The file in which whoever has started this launcher wants to read what ended a worker.

It is torch's: a worker writes its exception to its own TORCHELASTIC_ERROR_FILE, and a launcher
copies that of the first failure to the one that it was given itself, by torchx for one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpclaunch.core.model import Failure

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def hand_on(failures: Iterable[Failure], logs: Path, environ: Mapping[str, str]) -> None:
    """Copy what the first of these failures that left anything in `logs` has left there."""
    if not (wanted := environ.get(VARIABLE)):
        return
    for failure in failures:
        with contextlib.suppress(OSError, ValueError):  # it was killed, or in the middle of it
            file = logs / f"round-{failure.round}" / f"rank-{failure.rank}.error.json"
            error = json.loads(file.read_text())
            if isinstance(error.get("message"), dict):
                error["message"]["errorCode"] = -failure.signal or failure.code
            break
    else:
        return
    with (
        contextlib.suppress(OSError),
        open(wanted, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as f,
    ):
        json.dump(error, f)
