"""Notices: all workers learn before the same step that the end of the job is near, or that somebody
has sent a signal for them. A new round is given notice of the end again.

This file decides when the workers have notice, and why; `negotiation.py` before which step; and
`leaving.py` whether they have left because of it.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable

from ..protocol.effects import Effect, Record
from ..protocol.facts import NoticeGiven
from ..protocol.messages import Report
from ..protocol.model import EACH_ITS_NEXT, Job, NoticeAnswer, StepNotice
from ..protocol.timing import LEARNED
from ..protocol.values import value
from .allocation_end import AllocationEnd
from .negotiation import Agent, Negotiation, Outcome, Round, last_answers, with_workers
from .table import ENDS

WAVE = 2.0  # seconds within which all agents receive a signal that is sent to all of them
SAVES = 2  # saves that fit between a notice and the end, each as long as the longest so far


@value(frozen=True)
class PendingNotice:
    """A notice to give for a reason other than the end of the job."""

    signum: int
    heard_at: float = math.inf  # when an agent received the signal; inf: no agent received one


@value(frozen=True)
class GivenNotice:
    """The last notice that the workers of a round were given."""

    number: int
    step: int  # before which they take it; 0: each before its next
    at: float  # when it was given, or when an agent received the signal that it passes on
    is_signal: bool  # it passes on a signal that an agent received
    agents: list[Agent]  # those that had workers left

    @property
    def where(self) -> str:
        """The step in words, to be appended; "" if each rank has its own."""
        return f" before step {self.step:,}" if self.step else ""

    @property
    def is_taken(self) -> bool:
        """Whether all workers have reached its step."""
        return self._do_all(lambda answer: answer.taken >= self.number)

    @property
    def is_unheard(self) -> bool:
        """Whether no worker handles its signal, so that none leaves because of it."""
        return self._do_all(lambda answer: answer.unheard == self.number)

    @property
    def is_last(self) -> bool:
        """Whether the workers have ended at its very step."""
        return self.step > 0 and self._do_all(lambda answer: answer.last)

    def _do_all(self, say: Callable[[NoticeAnswer], bool]) -> bool:
        """Return whether the last answers of all agents say so."""
        return all(answer is not None and say(answer) for answer in last_answers(self.agents))


class Notices:
    def __init__(self, job: Job, allocation: AllocationEnd) -> None:
        self.job, self.timing, self.allocation = job, job.timing, allocation
        self._save = 0.0  # the longest so far, in seconds
        self._drain = 0.0  # the longest copy of a checkpoint from memory to storage
        self._numbers = itertools.count(1)  # of offers
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Begin a round."""
        self._negotiation = Negotiation(self.timing, self._numbers)
        self.began_at = now
        self.given: GivenNotice | None = None
        self._is_of_end = False  # the offer is of the end of the job
        self.knows_end = False  # the workers have had notice of the end of the job
        self._end_at = math.inf  # when the job was to end, as known at that notice
        self._pending: deque[PendingNotice] = deque()
        self._passed: dict[int, tuple[int, int]] = {}  # the last signal that each agent received
        self.last_signal = 0  # the last signal that an agent has received in this round; 0: none
        self._wave_until = -math.inf  # until then, other agents receive the same signal
        self._in_wave: set[int] = set()  # the agents that have received it

    @property
    def offer(self) -> StepNotice | None:
        """The offer in the orders."""
        return self._negotiation.offer

    # The notice of the end

    @property
    def seconds(self) -> float:
        """For how long workers have notice before they are stopped."""
        if self.timing.notice != LEARNED:
            return self.timing.notice
        return self.timing.least_notice + SAVES * (self._save + self._drain)

    @property
    def _due_at(self) -> float:
        return self.allocation.stop_at - self.seconds

    def next_deadline(self) -> float:
        """Return when to call `check`, while a round is running."""
        if self._negotiation.is_open:
            return self._negotiation.next_deadline()
        try_at = self._negotiation.try_at
        if self._pending:
            return try_at
        return math.inf if self.knows_end else max(self._due_at, try_at)

    def end_found(self) -> None:
        """Give notice of the end again if Slurm has put it off."""
        if self.knows_end and self.allocation.at > self._end_at + self.seconds:
            self.knows_end = False

    def learn(self, save: float) -> None:
        """Note the duration of a save, in seconds."""
        self._save = max(self._save, save)

    def learn_drain(self, seconds: float) -> None:
        """Note how long the copy of a checkpoint from memory to storage took."""
        self._drain = max(self._drain, seconds)

    # Notices for other reasons

    def give_soon(self) -> None:
        """Give the workers notice although the job continues."""
        self._pending.append(PendingNotice(self.job.notice_signal))

    def hear(self, agent: int, report: Report, number: int, now: float) -> None:
        """Note what a report says of saves, and of a signal for the workers; `number` is that of
        the round. A signal that was sent to all agents is passed on once.
        """
        if report.progress is not None:
            self.learn(report.progress.save)
        if report.round != number or report.passed == self._passed.get(agent, (0, 0)):
            return
        self._passed[agent] = report.passed
        signum, _ = report.passed
        if signum != self.last_signal or now >= self._wave_until or agent in self._in_wave:
            self._pending.append(PendingNotice(signum, now))
            self.last_signal, self._wave_until, self._in_wave = signum, now + WAVE, set()
        self._in_wave.add(agent)

    @property
    def waiting_since(self) -> float:
        """When an agent received the first signal that is still to be passed on; infinite if there
        is none.
        """
        return min((p.heard_at for p in self._pending), default=math.inf)

    # Giving one

    def check(self, current: Round, now: float, *, holds: bool) -> list[Effect] | None:
        """Offer or give the notice that is due. Return None unless all agents need new orders; then
        return what to record.

        `holds`: this head has its lease. Without it, another head may lead, so nothing is given.
        """
        negotiation = self._negotiation
        if negotiation.is_open:
            most = min(self.timing.first_steps, self.seconds / 2)
            patience = most if self._is_of_end else 0.0
            outcome = negotiation.advance(current, now, holds=holds, patience=patience)
            if outcome is Outcome.AGREED:
                return self._give(current, now)
            return [] if outcome is Outcome.CHANGED else None
        of_end = now >= self._due_at and not self.knows_end
        if now < negotiation.try_at or not (of_end or self._pending):
            return None
        reports = [p.report for p in current.participants]
        all_run = all(r is not None and r.round == current.number for r in reports)
        # Another offer would replace a notice that has not reached all agents.
        if not all_run or not self._all_have_it(current):
            negotiation.put_off(now)
            return None
        self._is_of_end = of_end
        signum = self.job.notice_signal if of_end else self._pending[0].signum
        negotiation.begin(current, signum, now)
        return []

    def _all_have_it(self, current: Round) -> bool:
        """Return whether all agents that have workers left know that the last notice was given."""
        if self.given is None:
            return True
        number, answers = self.given.number, last_answers(with_workers(current))
        return all(a is not None and a.given >= number for a in answers)

    def _give(self, current: Round, now: float) -> list[Effect]:
        offer = self._negotiation.give()
        pending = PendingNotice(offer.signum) if self._is_of_end else self._pending.popleft()
        self.given = given = GivenNotice(
            offer.number,
            step=offer.step if self._negotiation.is_stepping else 0,
            at=min(now, pending.heard_at),
            is_signal=pending.heard_at < math.inf,
            agents=with_workers(current),
        )
        if not self._is_of_end:
            self._negotiation.put_off(now)
            return []
        self.knows_end, self._end_at = True, self.allocation.at
        left, state = max(0.0, self.allocation.at - now), ENDS[self.allocation.origin].state
        assert state is not None, "Slurm ends the job"
        return [Record(NoticeGiven(current.number, given.step, state, left))]

    @property
    def account(self) -> str:
        """The last offer in this round, in words; "" if there is none."""
        if self.offer is None:
            return ""
        where = "" if self.offer.step == EACH_ITS_NEXT else f" before step {self.offer.step:,}"
        return f"{'given' if self.offer.given else 'offered'}{where}"
