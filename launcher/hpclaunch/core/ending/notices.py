"""Notices: all workers learn before the same step that the end of the job is near, or that somebody
has sent a signal for them. In a new round, notice of the end is given again.

When they have notice, and why, is decided here; before which step, in `negotiation.py`; whether
they leave because of it, in `leaving.py`.
"""

from __future__ import annotations

import itertools
import math
from collections import deque

from ..protocol.effects import Effect, Record
from ..protocol.facts import NoticeGiven
from ..protocol.messages import Report
from ..protocol.model import EACH_ITS_NEXT, Job, StepNotice
from ..protocol.timing import LEARNED
from ..protocol.values import value
from .allocation_end import AllocationEnd
from .negotiation import Agent, Negotiation, Outcome, Round, last_answers, with_workers
from .table import ENDS

WAVE = 2.0  # seconds in which all agents get the signal that one has got
TIMES = 2  # the longest save


@value(frozen=True)
class PendingNotice:
    """A notice that the workers are to have, for a reason other than the end of the job."""

    signum: int
    heard_at: float = math.inf  # when an agent received the signal; workers may have it, too


@value(frozen=True)
class GivenNotice:
    """The last notice that the workers of a round were given."""

    number: int
    step: int  # before which they take it; 0: each before its next
    at: float  # when it was given, or when an agent received the signal that it passes on
    is_signal: bool  # it passes on a signal that an agent received
    agents: list[Agent]  # those that had workers left


class Notices:
    def __init__(self, job: Job, allocation: AllocationEnd) -> None:
        self.job, self.timing, self.allocation = job, job.timing, allocation
        self._save = 0.0  # the longest that was seen
        self._numbers = itertools.count(1)  # of offers
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Begin a round."""
        self._negotiation = Negotiation(self.timing, self._numbers, now)
        self.began_at = now
        self.given: GivenNotice | None = None
        self._is_of_end = False  # the offer is
        self.knows_end = False  # the workers have had notice of it
        self._end_at = math.inf  # the end of the job that this was of
        self._pending: deque[PendingNotice] = deque()
        self._passed: dict[int, tuple[int, int]] = {}  # by agent: the last that was asked for
        self._wave = (0, -math.inf)  # (signal, until when it is the same one), of
        self._in_wave: set[int] = set()  # these agents

    @property
    def offer(self) -> StepNotice | None:
        """The offer in the orders."""
        return self._negotiation.offer

    # When the end comes

    @property
    def seconds(self) -> float:
        """For how long workers have notice before they are ended."""
        if self.timing.notice != LEARNED:
            return self.timing.notice
        return self.timing.least_notice + TIMES * self._save

    @property
    def _due_at(self) -> float:
        return self.allocation.stop_at - self.seconds

    def next_deadline(self) -> float:
        """For `check`, while a round is running."""
        if self._negotiation.is_open:
            return self._negotiation.next_deadline()
        try_at = self._negotiation.try_at
        if self._pending:
            return try_at
        return math.inf if self.knows_end else max(self._due_at, try_at)

    def end_found(self) -> None:
        """Slurm has said when the job ends. If that was put off, the workers are to have notice of
        the new end, too.
        """
        if self.knows_end and self.allocation.at > self._end_at + self.seconds:
            self.knows_end = False

    def learn(self, save: float) -> None:
        """Note the duration of a save, in seconds."""
        self._save = max(self._save, save)

    def give_soon(self) -> None:
        """The workers are to have notice for another reason than the end, and go on."""
        self._pending.append(PendingNotice(self.job.notice_signal))

    # Signals that agents have got

    def hear(self, agent: int, report: Report, number: int, now: float) -> None:
        """Note what a report says of saves and passed signals; `number` is that of the round."""
        if report.progress is not None:
            self.learn(report.progress.save)
        if report.round != number or report.passed == self._passed.get(agent, (0, 0)):
            return
        self._passed[agent] = report.passed
        signum, _ = report.passed
        same, until = self._wave
        if signum != same or now >= until or agent in self._in_wave:
            self._pending.append(PendingNotice(signum, now))
            self._wave, self._in_wave = (signum, now + WAVE), set()
        self._in_wave.add(agent)

    # Notice

    def check(self, current: Round, now: float, *, holds: bool) -> list[Effect] | None:
        """Continue the notice that is wanted, if any. Returns what to record if all agents are to
        be sent new orders, None if they are not.

        `holds`: this head has its lease. Without it, another one may lead, and nothing is given.
        """
        negotiation = self._negotiation
        if negotiation.is_open:
            most = min(self.timing.first_steps, self.seconds / 2)
            patience = most if self._is_of_end else 0.0
            outcome = negotiation.go_on(current, now, holds=holds, patience=patience)
            if outcome is Outcome.AGREED:
                return self._give(current, now)
            return [] if outcome is Outcome.CHANGED else None
        of_end = now >= self._due_at and not self.knows_end
        if now < negotiation.try_at or not (of_end or self._pending):
            return None
        reports = [p.report for p in current.participants]
        all_run = all(r is not None and r.round == current.number for r in reports)
        # Another offer would take the place of a notice that some have not heard of.
        if not all_run or not self._all_have_it(current):
            negotiation.put_off(now)
            return None
        self._is_of_end = of_end
        signum = self.job.notice_signal if of_end else self._pending[0].signum
        negotiation.begin(current, signum, now)
        return []

    def _all_have_it(self, current: Round) -> bool:
        """Whether all agents that have workers left have heard that the last notice was given."""
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

    # What is seen of it

    @property
    def account(self) -> str:
        """The last offer in this round, in words; "" if there is none."""
        if self.offer is None:
            return ""
        where = "" if self.offer.step == EACH_ITS_NEXT else f" before step {self.offer.step:,}"
        return f"{'given' if self.offer.given else 'offered'}{where}"

    @property
    def last_signal(self) -> int:
        """The last signal that agents have received in this round; 0: they have received none."""
        return self._wave[0]

    @property
    def waiting_since(self) -> float:
        """When an agent received the first signal that is still to be passed on; infinite if none
        is.
        """
        return min((p.heard_at for p in self._pending), default=math.inf)
