"""Whether workers that have ended were done, or left because they were asked to: by a notice, or by
a signal that Slurm or a user has sent to them.
"""

from __future__ import annotations

import math

from ..protocol.events import CheckpointChosen
from ..protocol.model import Job, NoticeAnswer, Origin
from ..protocol.wording import signal_name
from .allocation_end import AllocationEnd
from .negotiation import last_answers
from .notices import WAVE, Notices


class Leaving:
    """Judges the workers of one round by the notices that they were given. It changes nothing."""

    def __init__(self, job: Job, notices: Notices, allocation: AllocationEnd) -> None:
        self.job, self.timing = job, job.timing
        self.notices, self.allocation = notices, allocation

    def is_possible(self, now: float) -> bool:
        """Return whether workers that have ended with 0 may have done so because of a notice or a
        signal.

        They came to the step of a notice of the end, or of a signal, the latter a short while ago
        or as their last step; or Slurm itself had sent them a signal before the notice.
        """
        if self._signalled_at < math.inf:
            return True
        given = self.notices.given
        if given is None or not self._is_taken:
            return False
        lasts = max(self.notices.seconds, self.timing.least_notice)
        is_recent = now < given.at + lasts
        for_signal = not self._is_unheard and (is_recent or self._left_at_once)
        return self.notices.knows_end or for_signal

    @property
    def may_have_saved(self) -> bool:
        """Whether workers that have failed have had notice of the end, and came to its step."""
        return self.notices.knows_end and self._is_taken

    def has_saved(self, saved: CheckpointChosen | None, now: float) -> bool:
        """Return whether the newest checkpoint was saved since the workers were asked to leave."""
        if saved is None or not saved.path or saved.age is None:
            return False
        given = self.notices.given
        asked_at = min(math.inf if given is None else given.at, self._signalled_at)
        return saved.age <= now - asked_at + WAVE

    @property
    def is_certain(self) -> bool:
        """Whether workers that have ended with 0 are not finished even if they have saved nothing:
        they ended at the very step of a notice of the end, or before it and after Slurm's SIGTERM.
        """
        at_once = self.notices.knows_end and self._left_at_once
        unnoticed = self._sigterm_at < math.inf and not self._is_taken
        return self.job.saves and (unnoticed or at_once)

    def origin(self, *, drains: bool) -> Origin:
        """Return why they were asked to. `drains`: among others, because Slurm drains a node."""
        knows_end = self.notices.knows_end
        if drains and not knows_end:
            return Origin.DRAIN
        return self.allocation.origin if knows_end or self.allocation.comes_later else Origin.NOTICE

    @property
    def has_had_notice(self) -> bool:
        return self.notices.given is not None

    @property
    def account(self) -> str:
        """Return in words after what they left."""
        if self._is_taken:
            return f"the notice{self.where}"
        announced = self._sigterm_at < math.inf
        return "Slurm's SIGTERM" if announced else signal_name(self.notices.last_signal)

    @property
    def where(self) -> str:
        """The step of the last notice, in words; "" if there is none."""
        given = self.notices.given
        return "" if given is None or not given.step else f" before step {given.step:,}"

    # When they were asked to

    @property
    def _sigterm_at(self) -> float:
        """When Slurm has announced the end by a SIGTERM that the workers of this round have
        received as well, since it goes to all processes of the step; infinite if it has not.
        """
        warned_at = self.allocation.warned_at
        is_theirs = self.allocation.comes_later and warned_at >= self.notices.began_at
        return warned_at if is_theirs else math.inf

    @property
    def _signalled_at(self) -> float:
        """When Slurm may have sent the workers the first signal for which they have had no notice
        yet: its SIGTERM, or one that an agent received as well. Infinite if there is none.
        """
        given, found = self.notices.given, [self._sigterm_at, self.notices.waiting_since]
        if given is not None and given.is_signal and not (self._is_taken or self._is_unheard):
            found.append(given.at)
        return min(found)

    # Their answers to the last notice

    @property
    def _answers(self) -> list[NoticeAnswer | None]:
        """The last answers of the agents that had workers left when it was given."""
        given = self.notices.given
        return [] if given is None else last_answers(given.agents)

    @property
    def _is_taken(self) -> bool:
        """Whether all workers have come to its step."""
        given, answers = self.notices.given, self._answers
        if given is None or not answers:
            return False
        return all(a is not None and a.taken >= given.number for a in answers)

    @property
    def _is_unheard(self) -> bool:
        """Whether no worker handles its signal: none leaves because of it."""
        given, answers = self.notices.given, self._answers
        if given is None or not answers:
            return False
        return all(a is not None and a.unheard == given.number for a in answers)

    @property
    def _left_at_once(self) -> bool:
        """Whether workers that have ended did so at its very step."""
        given = self.notices.given
        if given is None or not given.step:
            return False
        return all(a is not None and a.last for a in self._answers)
