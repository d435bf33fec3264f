"""Wait for processes that tests have started, where what follows depends on what they do."""

from __future__ import annotations

import time

import psutil

LIMIT = 120  # seconds; far more than any of this takes


def until_asleep(pid: int, status: str = psutil.STATUS_SLEEPING) -> None:
    """Wait until the main thread of a process sleeps or waits, as it does for as long as it has
    nothing else to do. On a busy machine, that may be long after it was started. `status`:
    psutil.STATUS_DISK_SLEEP for a wait that no signal interrupts.
    """
    deadline = time.monotonic() + LIMIT
    while psutil.Process(pid).status() != status:
        assert time.monotonic() < deadline, f"process {pid} does not come to rest"
        time.sleep(0.01)
