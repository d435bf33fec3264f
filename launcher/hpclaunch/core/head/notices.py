"""Notices: the workers are told, all before the same step, that the end of the job is near, or that
somebody has sent a signal for them.

A step is offered to all agents of the round (`StepNotice`). If all accept, the notice is given
there. If one of them has a rank that has begun this step, a later one is offered. The offer is the
head's alone: another head begins another round, and what was only offered is forgotten with this
one. In a new round, notice of the end is given again.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..protocol.effects import Effect, Record
from ..protocol.events import CheckpointChosen
from ..protocol.facts import NoticeGiven
from ..protocol.messages import Report
from ..protocol.model import (
    EACH_ITS_NEXT,
    EXIT_SAVED,
    Job,
    JobState,
    NoticeAnswer,
    Phase,
    StepNotice,
    Verdict,
)
from ..protocol.timing import LEARNED
from ..protocol.wording import signal_name
from .allocation_end import OTHER_ENDS, AllocationEnd
from .roster import Peer
from .round import Round

TOGETHER = 64  # steps; ranks that are further apart do not step together
WAVE = 2.0  # seconds in which all agents get the signal that one has got
TIMES = 2  # the longest save
MOST_AHEAD = 1 << 20  # steps


@dataclass(frozen=True, slots=True)
class PendingNotice:
    """A notice that the workers are to have, for a reason other than the end of the job."""

    signum: int
    heard_at: float = math.inf  # when an agent received the signal; workers may have it, too


class Notices:
    def __init__(self, job: Job, allocation: AllocationEnd) -> None:
        self.job, self.timing, self.allocation = job, job.timing, allocation
        self.offer: StepNotice | None = None  # what the orders say
        self._save = 0.0  # the longest that was seen
        self._numbers = 0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """A round begins."""
        self.offer = None
        self._began_at = self._offered_at = now
        self._try_at = -math.inf
        self._ahead = 1  # by how many steps the next offer is
        self._most = 0  # steps that a rank is known to have begun
        self._apart = False  # the ranks do not step together
        self._is_of_end = False  # the offer is
        self.knows_end = False  # the workers have had notice of it
        self._told_end_at = math.inf  # the end of the job that this was of
        self._given_at = math.inf  # time of the last notice, or of the signal that it passes on
        self._given_step = self._given_number = 0
        self._given_to: list[Peer] = []  # the agents that had workers left
        self._waits_since = math.inf  # for ranks that have no optimizer yet
        self._is_signalled = False  # the last notice passes on a signal that an agent received
        self._pending: deque[PendingNotice] = deque()
        self._passed: dict[int, tuple[int, int]] = {}  # by agent: the last that was asked for
        self._wave = (0, -math.inf)  # (signal, until when it is the same one), of
        self._in_wave: set[int] = set()  # these agents

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
        if self.offer is not None and not self.offer.given:
            return self._offered_at + self.timing.answer
        if self._pending:
            return self._try_at
        return math.inf if self.knows_end else max(self._due_at, self._try_at)

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
        if self.offer is not None and not self.offer.given:
            return self._go_on(self.offer, current, now, holds=holds)
        of_end = now >= self._due_at and not self.knows_end
        if now < self._try_at or not (of_end or self._pending):
            return None
        running = [p.report for p in current.participants]
        if any(r is None or r.round != current.number for r in running):
            self._try_at = now + self.timing.offer  # some have not begun yet
            return None
        if not self._all_have_it(current):  # another offer would take its place
            self._try_at = now + self.timing.offer
            return None
        self._is_of_end = of_end
        known = (r.progress.steps for r in running if r is not None and r.progress is not None)
        self._most = max(self._most, max((max(steps) for steps in known if steps), default=0))
        self._ahead = 1
        return self._offer(now)

    def _all_have_it(self, current: Round) -> bool:
        """Whether all agents that have workers left have heard that the last notice was given."""
        if not self._given_number:
            return True
        answers = _last_answers(_with_workers(current))
        return all(a is not None and a.given >= self._given_number for a in answers)

    def _offer(self, now: float) -> list[Effect]:
        self._numbers += 1
        step = EACH_ITS_NEXT if self._apart else self._most + self._ahead
        signum = self.job.notice_signal if self._is_of_end else self._pending[0].signum
        self.offer, self._offered_at = StepNotice(self._numbers, step, signum), now
        return []

    def _withdraw(self, now: float) -> list[Effect]:
        """And offer it anew later."""
        self.offer, self._try_at = None, now + self.timing.offer
        return []

    def _go_on(
        self, offer: StepNotice, current: Round, now: float, *, holds: bool
    ) -> list[Effect] | None:
        answers = _answers(current, offer.number)
        if answers is None:
            late = now >= self._offered_at + self.timing.answer
            return self._withdraw(now) if late else None
        counts = [a.steps for a in answers if a.steps]
        self._most = max([self._most, *(most for _, most in counts)])
        if any(a.busy for a in answers):
            return self._withdraw(now)
        if not all(a.accepted for a in answers):
            # Twice as far each time, until it is further than they come meanwhile.
            self._ahead = min(2 * self._ahead, MOST_AHEAD)
            return self._offer(now)
        if counts and not self._apart:
            self._apart = self._most - min(least for least, _ in counts) > TOGETHER
            if self._apart:
                return self._offer(now)
        if not counts and self._is_of_end:
            self._waits_since = min(self._waits_since, now)
            if now < self._waits_since + min(self.timing.first_steps, self.seconds / 2):
                return self._withdraw(now)
        if not holds:
            late = now >= self._offered_at + self.timing.answer
            return self._withdraw(now) if late else None
        return self._give(offer, current, now, stepping=bool(counts))

    def _give(
        self, offer: StepNotice, current: Round, now: float, *, stepping: bool
    ) -> list[Effect]:
        self.offer = replace(offer, given=True)
        pending = PendingNotice(offer.signum) if self._is_of_end else self._pending.popleft()
        self._is_signalled = pending.heard_at < math.inf
        self._given_at, self._given_number = min(now, pending.heard_at), offer.number
        self._given_to = _with_workers(current)
        self._given_step = offer.step if stepping else 0
        if not self._is_of_end:
            self._try_at = now + self.timing.offer
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
        answers = _last_answers(self._given_to)
        return self._given_step > 0 and all(a is not None and a.last for a in answers)

    @property
    def may_have_saved(self) -> bool:
        """Whether workers that have failed have had notice of the end, and came to its step."""
        return self.knows_end and self._is_taken

    @property
    def _is_taken(self) -> bool:
        """By all agents that had workers left when the last notice was given."""
        answers = _last_answers(self._given_to)
        number = self._given_number
        return bool(answers) and all(a is not None and a.taken >= number for a in answers)

    @property
    def _is_unheard(self) -> bool:
        """Whether no worker handles the signal of the last notice: none leaves because of it."""
        answers = _last_answers(self._given_to)
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


def _last_answers(peers: Sequence[Peer]) -> list[NoticeAnswer | None]:
    """None: it has answered to no offer."""
    return [None if peer.report is None else peer.report.notice for peer in peers]


def _answers(current: Round, number: int) -> list[NoticeAnswer] | None:
    """Return those of all agents that have workers left; None while one has not answered, or there
    is none.
    """
    found = []
    for answer in _last_answers(_with_workers(current)):
        if answer is None or answer.number != number:
            return None
        found.append(answer)
    return found or None


def _with_workers(current: Round) -> list[Peer]:
    """The agents that have workers left, as far as is known."""
    number = current.number
    running = (p for p in current.participants if p.report and p.report.phase is not Phase.DONE)
    return [p for p in running if not p.workers_have_ended(number)]
