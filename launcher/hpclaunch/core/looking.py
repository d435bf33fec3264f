"""An agent's side of the choice of a checkpoint: it tells whether it sees the one that was chosen.

On a parallel file system that may take a moment; on a directory of the node's own it may not be.
"""

from __future__ import annotations

from .effects import Effect, LookAt
from .model import Look, Seen


class Looking:
    def __init__(self) -> None:
        self.seen: Seen | None = None  # of what was asked for last
        self._mark = ""

    def obey(self, look: Look | None) -> list[Effect]:
        """What an order has."""
        if look is None:
            self._mark, self.seen = "", None
            return []
        if look.mark == self._mark:
            return []
        self._mark, self.seen = look.mark, None
        return [LookAt(look)]

    def saw(self, seen: Seen) -> None:
        if seen.mark == self._mark:
            self.seen = seen
