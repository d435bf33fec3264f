"""The agent's client of the process that searches for checkpoints (`service.py`).

It imports the messages only, and not the search.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Iterable, Mapping

from hpclaunch.core.protocol.model import Look, Rounds
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.system.shared.helper import Helper
from hpclaunch.worker.messages import decode

from . import ALL
from .messages import REPLIES, LookAt, Looked, Reply, Search

PATIENCE = 5.0  # seconds after which a process that has not begun a search counts as hung


class CheckpointServiceClient(Helper):
    """A client that sends requests and returns the replies."""

    kind = ProcessKind.CHECKPOINTS

    def __init__(self, where: str, exclude: Iterable[str], complete: str, verify: str) -> None:
        settings = {"where": where, "exclude": tuple(exclude)}
        settings |= {"complete": complete, "verify": verify}
        module = "hpclaunch.system.checkpoints.service"
        super().__init__(module, str(os.getpid()), json.dumps(settings))
        self._reads_all = verify == "full"  # otherwise a request interrupts the reading
        self._looks = 0  # pending looks that no request interrupts
        self.deadline = math.inf  # without a reply by then, the process counts as hung

    def search(self, number: int, rounds: Rounds, avoid: Mapping[int, str]) -> None:
        self._ask(Search(number, rounds, dict(avoid)))

    def look(self, number: int, look: Look, *, local: bool = False) -> None:
        """Request a look at the head's checkpoint. `local`: this node has its own of that name."""
        size = -1 if local else look.size
        share = ALL if local and look.share[1] else look.share
        self._ask(LookAt(number, look.path, size, look.time, share, look.rounds))
        self._looks += self._reads_all

    def _ask(self, request: Search | LookAt) -> None:
        if not self._looks:  # else the request has to wait for the end of a look
            self.deadline = time.monotonic() + PATIENCE
        self.send(request)

    def give_time(self) -> None:
        """Remove the deadline of what is pending. The next request has one again."""
        self.deadline, self._looks = math.inf, 0

    def wait(self, limit: float) -> bool:
        """Return whether within so many seconds a reply has arrived or the process has ended."""
        return self._is_ready(select.POLLIN, limit)

    def replies(self) -> list[Reply]:
        """Return the replies that have arrived. Call this when the descriptor is readable."""
        found = [decode(REPLIES, reply) for reply in self.receive()]
        if self._looks:
            self._looks -= sum(isinstance(reply, Looked) for reply in found)
        if found:
            self.deadline = math.inf
        return found

    def close(self) -> None:
        """Kill the process, even during a search."""
        self.abandon()
