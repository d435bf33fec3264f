"""Notices: all workers learn before the same step that the end of the job is near, or that somebody
has sent a signal for them. A new round is given notice of the end again.

This file decides when the workers have notice, and why; and whether those that have ended were
done, or left because a notice or a signal, of Slurm or of a user, asked them to. `negotiation.py`
decides before which step they have notice.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable

from ..protocol.effects import Effect, Record
from ..protocol.facts import NoticeGiven
from ..protocol.messages import Report
from ..protocol.model import EACH_ITS_NEXT, Job, NoticeAnswer, Origin, StepNotice
from ..protocol.timing import LEARNED
from ..protocol.values import value
from ..protocol.wording import signal_name
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
        return all(answer is not None and say(answer) for answer in last_answers(self.agents))


class Notices:
    def __init__(self, job: Job, allocation: AllocationEnd) -> None:
        self.job, self.timing, self.allocation = job, job.timing, allocation
        self._save = 0.0  # the longest so far, in seconds
        self._numbers = itertools.count(1)  # of offers
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Begin a round."""
        self._negotiation = Negotiation(self.timing, self._numbers)
        self._began_at = now
        self.given: GivenNotice | None = None
        self._is_of_end = False  # the offer is of the end of the job
        self._end_given_at = math.inf  # when they first had notice of it; inf: they had none
        self._end_at = math.inf  # when the job was to end, as known at that notice
        self._pending: deque[PendingNotice] = deque()
        self._passed: dict[int, tuple[int, int]] = {}  # the last signal that each agent received
        self._last_signal = 0  # the last signal that an agent has received in this round; 0: none
        self._wave_until = -math.inf  # until then, other agents receive the same signal
        self._in_wave: set[int] = set()  # the agents that have received it

    @property
    def offer(self) -> StepNotice | None:
        return self._negotiation.offer

    # The notice of the end

    @property
    def knows_end(self) -> bool:
        """Whether the workers have had notice of the end of the job."""
        return self._end_given_at < math.inf

    @property
    def seconds(self) -> float:
        """For how long workers have notice before they are stopped."""
        if self.timing.notice != LEARNED:
            return self.timing.notice
        return self.timing.least_notice + SAVES * self._save

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
            self._end_given_at = math.inf

    def learn(self, save: float) -> None:
        """Note the duration of a save, in seconds."""
        self._save = max(self._save, save)

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
        if signum != self._last_signal or now >= self._wave_until or agent in self._in_wave:
            self._pending.append(PendingNotice(signum, now))
            self._last_signal, self._wave_until, self._in_wave = signum, now + WAVE, set()
        self._in_wave.add(agent)

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
        all_run = all(p.last_report.round == current.number for p in current.participants)
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
        self._end_given_at, self._end_at = now, self.allocation.at
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

    # Whether workers that have ended have left because of one

    def may_have_left(self, now: float) -> bool:
        """Return whether workers that have ended with 0 may have done so because of a notice or a
        signal.

        A signal may have reached them without a notice; or they took the notice of the end; or
        they took another notice, given recently or for their last step.
        """
        if self._signalled_at < math.inf:
            return True
        given = self.given
        if given is None or not given.is_taken:
            return False
        is_recent = now < given.at + self._lasts
        for_signal = not given.is_unheard and (is_recent or given.is_last)
        return self.knows_end or for_signal

    @property
    def may_have_saved(self) -> bool:
        """Whether workers that have failed had reached the step of a notice of the end."""
        return self.knows_end and self._is_taken

    @property
    def have_left(self) -> bool:
        """Whether workers that have ended with 0 are not finished even if they have saved nothing:
        they ended after Slurm's SIGTERM before any notice, or at the step of a notice of the end.
        """
        at_once = self.knows_end and self.given is not None and self.given.is_last
        unnoticed = self._sigterm_at < math.inf and not self._is_taken
        return self.job.saves and (unnoticed or at_once)

    @property
    def asked_at(self) -> float:
        """When the workers were first asked to leave; infinite if they were not."""
        given_at = math.inf if self._relevant is None else self._relevant.at
        return min(self._end_given_at, given_at, self._signalled_at)

    @property
    def warned_at(self) -> float:
        """When the workers were first warned of the end of the job; infinite if they were not."""
        return min(self._end_given_at, self._sigterm_at)

    def origin(self, *, drains: bool) -> Origin:
        """Return why they were asked to leave. `drains`: one reason is that Slurm drains a node."""
        if drains and not self.knows_end:
            return Origin.DRAIN
        is_of_slurm = self.knows_end or self.allocation.comes_later
        return self.allocation.origin if is_of_slurm else Origin.NOTICE

    @property
    def request(self) -> str:
        """The request after which they left, in words."""
        given = self._relevant
        if given is not None and given.is_taken:
            return f"the notice{given.where}"
        announced = self._sigterm_at < math.inf
        return "Slurm's SIGTERM" if announced else signal_name(self._last_signal)

    @property
    def _lasts(self) -> float:
        """For how long workers may take to leave because of a notice."""
        return max(self.seconds, self.timing.least_notice)

    @property
    def _relevant(self) -> GivenNotice | None:
        """The last notice, unless the workers had continued after it when Slurm announced the end
        by SIGTERM.
        """
        given = self.given
        if given is None or self.knows_end:
            return given
        return None if given.at + self._lasts <= self._sigterm_at < math.inf else given

    @property
    def _is_taken(self) -> bool:
        return self._relevant is not None and self._relevant.is_taken

    @property
    def _sigterm_at(self) -> float:
        """The time of the SIGTERM by which Slurm announced the end in this round; infinite if there
        was none. It goes to all processes of the step, so the workers received it as well.
        """
        warned_at = self.allocation.warned_at
        is_theirs = self.allocation.comes_later and warned_at >= self._began_at
        return warned_at if is_theirs else math.inf

    @property
    def _signalled_at(self) -> float:
        """When the workers may have received the first signal that they have had no notice of:
        Slurm's SIGTERM, or one that an agent has received as well. Infinite if there is none.
        """
        given = self.given
        found = [self._sigterm_at, *(pending.heard_at for pending in self._pending)]
        if given is not None and given.is_signal and not (given.is_taken or given.is_unheard):
            found.append(given.at)
        return min(found)
