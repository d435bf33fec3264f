"""Notices: all workers learn before the same step that the end of the job is near, or that somebody
has sent a signal for them. In a new round, notice of the end is given again.

When they have notice, and why, is decided here; before which step, in `negotiation.py`.
"""

from __future__ import annotations

import itertools
import math
import signal
from collections import deque

from ..protocol.effects import Effect, Record
from ..protocol.events import CheckpointChosen
from ..protocol.facts import NoticeGiven
from ..protocol.job_state import JobState
from ..protocol.messages import Report
from ..protocol.model import (
    EACH_ITS_NEXT,
    EXIT_SAVED,
    Job,
    StepNotice,
    Verdict,
)
from ..protocol.timing import LEARNED
from ..protocol.values import value
from ..protocol.wording import signal_name
from .allocation_end import OTHER_ENDS, AllocationEnd
from .negotiation import Negotiation, Outcome, last_answers, with_workers
from .roster import Peer
from .round import Round

WAVE = 2.0  # seconds in which all agents get the signal that one has got
TIMES = 2  # the longest save


@value(frozen=True)
class PendingNotice:
    """A notice that the workers are to have, for a reason other than the end of the job."""

    signum: int
    heard_at: float = math.inf  # when an agent received the signal; workers may have it, too


class Notices:
    def __init__(self, job: Job, allocation: AllocationEnd) -> None:
        self.job, self.timing, self.allocation = job, job.timing, allocation
        self._save = 0.0  # the longest that was seen
        self._numbers = itertools.count(1)  # of offers
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """A round begins."""
        self._negotiation = Negotiation(self.timing, self._numbers, now)
        self._began_at = now
        self._is_of_end = False  # the offer is
        self.knows_end = False  # the workers have had notice of it
        self._told_end_at = math.inf  # the end of the job that this was of
        self._given_at = math.inf  # time of the last notice, or of the signal that it passes on
        self._given_step = self._given_number = 0
        self._given_to: list[Peer] = []  # the agents that had workers left
        self._is_signalled = False  # the last notice passes on a signal that an agent received
        self._pending: deque[PendingNotice] = deque()
        self._passed: dict[int, tuple[int, int]] = {}  # by agent: the last that was asked for
        self._wave = (0, -math.inf)  # (signal, until when it is the same one), of
        self._in_wave: set[int] = set()  # these agents

    @property
    def offer(self) -> StepNotice | None:
        """What the orders say."""
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
        if self.knows_end and self.allocation.at > self._told_end_at + self.seconds:
            self.knows_end = False

    def learn(self, save: float) -> None:
        """One has taken so long, in seconds."""
        self._save = max(self._save, save)

    def give_soon(self) -> None:
        """The workers are to have notice for another reason than the end, and go on."""
        self._pending.append(PendingNotice(self.job.notice_signal))

    # Signals that agents have got

    def hear(self, agent: int, report: Report, number: int, now: float) -> None:
        """Take in what a report says of saves and passed signals; `number` is that of the round."""
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
        if not self._given_number:
            return True
        answers = last_answers(with_workers(current))
        return all(a is not None and a.given >= self._given_number for a in answers)

    def _give(self, current: Round, now: float) -> list[Effect]:
        offer = self._negotiation.give()
        pending = PendingNotice(offer.signum) if self._is_of_end else self._pending.popleft()
        self._is_signalled = pending.heard_at < math.inf
        self._given_at, self._given_number = min(now, pending.heard_at), offer.number
        self._given_to = with_workers(current)
        self._given_step = offer.step if self._negotiation.is_stepping else 0
        if not self._is_of_end:
            self._negotiation.put_off(now)
            return []
        self.knows_end, self._told_end_at = True, self.allocation.at
        left, announced = max(0.0, self.allocation.at - now), self.allocation.announced
        state = announced if announced in OTHER_ENDS else JobState.RUNNING
        return [Record(NoticeGiven(current.number, self._given_step, state, left))]

    # What is seen of it

    @property
    def account(self) -> str:
        """Of the last offer in this round; "" if there is none."""
        if self.offer is None:
            return ""
        where = "" if self.offer.step == EACH_ITS_NEXT else f" before step {self.offer.step:,}"
        return f"{'given' if self.offer.given else 'offered'}{where}"

    # The end

    @property
    def _sigterm_at(self) -> float:
        """Return when Slurm has announced the end by a SIGTERM that the workers of this round have
        received as well, since it goes to all processes of the step; infinite if it has not.
        """
        is_theirs = self.allocation.comes_later and self.allocation.warned_at >= self._began_at
        return self.allocation.warned_at if is_theirs else math.inf

    @property
    def _signalled_at(self) -> float:
        """Return when Slurm may have sent the workers the first signal for which they have had no
        notice yet: its SIGTERM, or one that an agent received as well. Infinite if there is none.
        """
        waiting = [p.heard_at for p in self._pending]
        if self._is_signalled and not (self._is_taken or self._is_unheard):
            waiting.append(self._given_at)
        return min([self._sigterm_at, *waiting])

    def have_left(self, now: float) -> bool:
        """Return whether workers that have ended with 0 may have done so because of a notice or a
        signal.

        They came to the step of a notice of the end, or of a signal, the latter a short while ago
        or as their last step; or Slurm itself had sent them a signal before the notice.
        """
        lasts = max(self.seconds, self.timing.least_notice)
        is_recent = now < self._given_at + lasts
        for_signal = not self._is_unheard and (is_recent or self._left_at_once)
        noticed = self._is_taken and (self.knows_end or for_signal)
        return noticed or self._signalled_at < math.inf

    @property
    def _left_at_once(self) -> bool:
        """Whether workers that have ended did so at the very step of the last notice."""
        answers = last_answers(self._given_to)
        return self._given_step > 0 and all(a is not None and a.last for a in answers)

    @property
    def may_have_saved(self) -> bool:
        """Whether workers that have failed have had notice of the end, and came to its step."""
        return self.knows_end and self._is_taken

    @property
    def _is_taken(self) -> bool:
        """By all agents that had workers left when the last notice was given."""
        answers = last_answers(self._given_to)
        number = self._given_number
        return bool(answers) and all(a is not None and a.taken >= number for a in answers)

    @property
    def _is_unheard(self) -> bool:
        """Whether no worker handles the signal of the last notice: none leaves because of it."""
        answers = last_answers(self._given_to)
        number = self._given_number
        return bool(answers) and all(a is not None and a.unheard == number for a in answers)

    def _is_new(self, saved: CheckpointChosen | None, now: float) -> bool:
        """Whether it was saved since the workers were asked to."""
        if saved is None or not saved.path or saved.age is None:
            return False
        return saved.age <= now - min(self._given_at, self._signalled_at) + WAVE

    def verdict_of_leaving(
        self, saved: CheckpointChosen | None, now: float, restarts: int
    ) -> Verdict | None:
        """`have_left`, and all have ended with 0: how the job ends if they are not finished.
        `saved` is the newest checkpoint.

        If they have saved nothing since, they may be finished, unless they ended at the very step
        of the notice, or before it and after Slurm's SIGTERM.
        """
        if (verdict := self.verdict_of_saving(saved, now, restarts)) is not None:
            return verdict
        at_once = self.knows_end and self._left_at_once
        unnoticed = self._sigterm_at < math.inf and not self._is_taken
        if not (self.job.saves and (unnoticed or at_once)):
            return None
        reason = f"{self._left}, and nothing was saved since"
        code = 128 + signal.SIGTERM
        return Verdict(code, reason, self.allocation.origin, restarts=restarts)

    def verdict_of_saving(
        self, saved: CheckpointChosen | None, now: float, restarts: int
    ) -> Verdict | None:
        """All workers have ended after they were asked to leave, some with another code than 0
        maybe: how the job ends if something was saved since.
        """
        if saved is None or not self._is_new(saved, now):
            return None
        reason = f"saved, {self._left}, with {saved.path}"
        return Verdict(EXIT_SAVED, reason, self.allocation.origin, restarts=restarts)

    def verdict_of_end(self, saved: CheckpointChosen | None, now: float, restarts: int) -> Verdict:
        """The workers are ended, or there is no time for another round."""
        what = OTHER_ENDS.get(self.allocation.announced, "the time limit")
        reason = f"ended {max(0.0, self.allocation.at - now):.0f} s before {what}"
        code = EXIT_SAVED
        if saved is not None and self._is_new(saved, now):
            reason = f"saved, not finished: {reason}, with {saved.path}"
        else:
            code = 128 + signal.SIGTERM
            if self._given_at < math.inf and self.job.saves:
                reason += f"; nothing was saved after the notice{self._where}"
        return Verdict(code, reason, self.allocation.origin, restarts=restarts)

    @property
    def _where(self) -> str:
        return f" before step {self._given_step:,}" if self._given_step else ""

    @property
    def _left(self) -> str:
        if self._is_taken:
            after = f"the notice{self._where}"
        else:
            announced = self._sigterm_at < math.inf
            after = "Slurm's SIGTERM" if announced else signal_name(self._wave[0])
        return f"not finished: the workers left after {after}"
