"""`hpclaunch doctor --measure`: a launch whose workers measure GPUs and the links between them.

Every task runs an agent: rendezvous and messages on lost nodes are as in any launch.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hpclaunch.core.health.task_reports import Row
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import END_SIGNALS
from hpclaunch.system.logs.log_directory import make_temporary

from . import options, run

SCRIPT = Path(__file__).parent.parent / "worker" / "measurement.py"
STOPPED = tuple(128 + signum for signum in END_SIGNALS)  # codes of a launch that a user has stopped
LOSS = 30  # seconds of silence after which a node counts as lost


def measure(environ: Mapping[str, str], timeout: float) -> tuple[list[Row], int]:
    """Return the rows of the table, on the node of rank 0 only, and the launch's exit code.

    `timeout`: seconds to wait for the other tasks. Raises UsageError.
    """
    try:
        own = make_temporary("hpclaunch-doctor-")
    except OSError as e:
        raise UsageError(f"no directory for the measurements: {e.strerror}: set TMPDIR") from e
    result = own / "rows.json"
    words = [
        *("--cold", "--max-restarts=0", "--health=off", "--progress=off", "--redirects=3"),
        *(f"--loss-timeout={LOSS}", "--wait-for-nodes=0"),
        f"--rdzv-conf=join_timeout={max(1.0, timeout)}",
        *(f"--log-dir={own / 'logs'}", "--", str(SCRIPT), str(result)),
    ]
    chosen = options.build_parser({}).parse_args(words)  # no PET_ variables
    rows: list[Row] = []
    code = 0
    try:
        run.check(chosen)
        code = run.run(chosen, environ)
        with contextlib.suppress(FileNotFoundError):
            rows = msgspec.json.decode(result.read_bytes(), type=list[Row])
    finally:
        if not code or code in STOPPED:  # else the launch's messages name its logs
            shutil.rmtree(own, ignore_errors=True)
    return rows, code
