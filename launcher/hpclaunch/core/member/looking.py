"""An agent's side of the choice of a checkpoint: it tells whether it sees the one that was chosen.

On a parallel file system that may take a moment; on a directory of the node's own it may not be.
"""

from __future__ import annotations

from ..protocol.effects import Effect, LookAt
from ..protocol.model import Look, Seen


class Looking:
    def __init__(self) -> None:
        self.seen: Seen | None = None  # of what was asked for last
        self._look: Look | None = None

    def obey(self, look: Look | None) -> list[Effect]:
        """What an order has."""
        if look == self._look:
            return []
        self._look, self.seen = look, None
        return [LookAt(look)]

    def saw(self, seen: Seen) -> None:
        look = self._look
        if look is not None and (seen.mark, seen.share) == (look.mark, look.share):
            self.seen = seen
