"""The thread in which a stager calls storage.

If storage hangs, such as an NFS server that is away, each call on it blocks for minutes. So the
stager's main thread makes none: it waits for this thread, and meanwhile does what needs only
memory. `copying.copy` has threads of its own, for which the main thread waits in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .copying import Between, at_once, results

T = TypeVar("T")


class StorageThread:
    """One thread, so that calls follow each other. `meanwhile` is called while the stager waits."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.meanwhile: Between = at_once
        self.began = 0.0  # the newest call that has not returned

    def run(self, work: Callable[..., T], *args: object, meanwhile: Between | None = None) -> T:
        """Return what `work` returns. Raises what it raises, and what `meanwhile` raises: a
        GivenUpError only once the work is done, an OSError at once.
        """
        outer, self.began = self.began, time.monotonic()
        call = self._pool.submit(work, *args)
        try:
            return results([call], meanwhile or self.meanwhile, 0)[0]
        finally:
            self.began = outer
            call.cancel()  # if nobody waits for it any longer
