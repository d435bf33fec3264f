"""The reasons why an agent counts as lost, with the words for each."""

from __future__ import annotations

from enum import Enum


class Loss(Enum):
    SILENT = "it has been silent for {silent:.0f} s"
    UNANSWERED = "it reports, but no order reaches it"
    EXITED = "its host confirmed that it exited"
    ENDED = "it has ended"  # as the voters knew when this head was elected
    LEFT = "it has left, since it did not hear the head"
    WAS_HEAD = "it was the head, and is silent"
    EARLIER = "an earlier head continued without it"
    STEPPED_DOWN = "it no longer leads"  # of a head

    def words(self, silent: float = 0.0) -> str:
        """Return the reason. `silent`: for how long the agent has been silent, in seconds."""
        return self.value.format(silent=silent)
