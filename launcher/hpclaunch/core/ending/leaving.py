"""The decision whether workers that have ended were done, or left because a notice or a signal, of
Slurm or of a user, asked them to. It depends on their last checkpoint, which is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..protocol.effects import ChooseCheckpoint, Effect
from ..protocol.events import CheckpointChosen, SearchFailed
from ..protocol.model import Job, Origin
from ..protocol.values import replace
from ..protocol.wording import signal_name
from .allocation_end import AllocationEnd
from .notices import WAVE, Notices


class Leaving:
    """The workers of one round, judged by the notices that they were given and what they saved."""

    def __init__(
        self, job: Job, notices: Notices, allocation: AllocationEnd, numbers: Iterator[int]
    ) -> None:
        """`numbers` yields a new number for each question."""
        self.job, self.notices, self.allocation = job, notices, allocation
        self._numbers = numbers
        self.saved: CheckpointChosen | None = None  # the newest checkpoint, as the search found it
        self.search_until = math.inf  # the end of the wait for the answer
        self._search = 0  # the number of the only search; 0: it has not begun

    # The last save

    @property
    def has_searched(self) -> bool:
        """Whether the search has begun."""
        return self._search > 0

    @property
    def is_searching(self) -> bool:
        return self.search_until < math.inf

    def search(
        self, search: ChooseCheckpoint, now: float, *, ended_well: bool = False
    ) -> list[Effect] | None:
        """Begin the search, or wait for its answer. Return None once there is nothing to wait for:
        the checkpoint is `saved`, or could not be found.

        `ended_well`: all workers have ended with 0, and were not stopped.
        """
        if self.job.saves and not self.has_searched:
            self._search = next(self._numbers)
            self.search_until = now + self.job.timing.search
            return [replace(search, ended_well=ended_well, is_last=True, number=self._search)]
        if now < self.search_until < math.inf:
            return []
        self.search_until = math.inf
        return None

    def hear_search(self, event: CheckpointChosen | SearchFailed) -> None:
        """Note the event if it answers the search."""
        if self.is_searching and event.number == self._search:
            self.saved = event if isinstance(event, CheckpointChosen) else None
            self.search_until = math.inf

    def saved_since(self, now: float) -> str:
        """Return the path of the newest checkpoint if it was saved since the workers were asked to
        leave; "" if it was not.
        """
        if self.saved is None or self.saved.age is None:
            return ""
        given = self.notices.given
        asked_at = min(math.inf if given is None else given.at, self._signalled_at)
        return self.saved.path if self.saved.age <= now - asked_at + WAVE else ""

    # Why they have ended

    def is_possible(self, now: float) -> bool:
        """Return whether workers that have ended with 0 may have done so because of a notice or a
        signal.

        A signal may have reached them without a notice; or they took the notice of the end; or
        they took another notice, given recently or for their last step.
        """
        if self._signalled_at < math.inf:
            return True
        given = self.notices.given
        if given is None or not given.is_taken:
            return False
        lasts = max(self.notices.seconds, self.job.timing.least_notice)
        is_recent = now < given.at + lasts
        for_signal = not given.is_unheard and (is_recent or given.is_last)
        return self.notices.knows_end or for_signal

    @property
    def may_have_saved(self) -> bool:
        """Whether workers that have failed had reached the step of a notice of the end."""
        return self.notices.knows_end and self._has_taken_notice

    @property
    def is_certain(self) -> bool:
        """Whether workers that have ended with 0 are not finished even if they have saved nothing:
        they ended after Slurm's SIGTERM before any notice, or at the step of a notice of the end.
        """
        given = self.notices.given
        at_once = self.notices.knows_end and given is not None and given.is_last
        unnoticed = self._sigterm_at < math.inf and not self._has_taken_notice
        return self.job.saves and (unnoticed or at_once)

    def origin(self, *, drains: bool) -> Origin:
        """Return why they were asked to leave. `drains`: one reason is that Slurm drains a node."""
        knows_end = self.notices.knows_end
        if drains and not knows_end:
            return Origin.DRAIN
        return self.allocation.origin if knows_end or self.allocation.comes_later else Origin.NOTICE

    @property
    def account(self) -> str:
        """The request after which they left, in words."""
        given = self.notices.given
        if given is not None and given.is_taken:
            return f"the notice{given.where}"
        announced = self._sigterm_at < math.inf
        return "Slurm's SIGTERM" if announced else signal_name(self.notices.last_signal)

    @property
    def _has_taken_notice(self) -> bool:
        return self.notices.given is not None and self.notices.given.is_taken

    @property
    def _sigterm_at(self) -> float:
        """The time of the SIGTERM by which Slurm announced the end in this round; infinite if there
        was none. It goes to all processes of the step, so the workers received it as well.
        """
        warned_at = self.allocation.warned_at
        is_theirs = self.allocation.comes_later and warned_at >= self.notices.began_at
        return warned_at if is_theirs else math.inf

    @property
    def _signalled_at(self) -> float:
        """When the workers may have received the first signal that they have had no notice of:
        Slurm's SIGTERM, or one that an agent has received as well. Infinite if there is none.
        """
        given, found = self.notices.given, [self._sigterm_at, self.notices.waiting_since]
        if given is not None and given.is_signal and not (given.is_taken or given.is_unheard):
            found.append(given.at)
        return min(found)
