"""The checkpoint that a round begins with: to verify a large one takes long."""

from __future__ import annotations

import math

from .effects import ChooseCheckpoint, Effect, Say
from .events import CheckpointChosen
from .gathering import FIRST_NOTICE, NEXT_NOTICE


class Choosing:
    """Begins with `begin`; over once there is a `choice`."""

    def __init__(self) -> None:
        self.choice: CheckpointChosen | None = None
        self._since = 0.0
        self._notice_at = math.inf

    def begin(self, now: float) -> list[Effect]:
        self.choice = None
        self._since = now
        self._notice_at = now + FIRST_NOTICE
        return [ChooseCheckpoint()]

    def next_deadline(self, paused_until: float) -> float:
        return self._notice_at if self.choice is None else paused_until

    def notice(self, now: float) -> list[Effect]:
        if now < self._notice_at:
            return []
        self._notice_at = now + NEXT_NOTICE
        return [Say(f"looking for a complete checkpoint since {now - self._since:.0f} s")]
