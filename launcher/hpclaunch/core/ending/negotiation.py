"""The negotiation about the step before which all ranks of a round take a notice.

    head:   offers a step in its orders (`StepNotice`)
    agents: accept it if none of their ranks has begun that step, and report that
            (`NoticeAnswer`); from then on, a rank that reaches the step waits
    head:   offers a later step if one agent does not accept; gives the notice if all accept
    agents: have their ranks take it, and report it `given`, then `taken` by all ranks

`Negotiation` is the head's side, and `Offers` an agent's. An offer does not outlive its head, since
another head begins another round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Protocol

from ..protocol.effects import Effect, GiveNotice, OfferNotice, WithdrawNotice
from ..protocol.messages import Report
from ..protocol.model import EACH_ITS_NEXT, NoticeAnswer, Phase, StepNotice
from ..protocol.timing import Timing
from ..protocol.values import replace

TOGETHER = 64  # steps; ranks that are further apart do not make their steps together
MOST_AHEAD = 1 << 20  # steps


class Agent(Protocol):
    """An agent as the head knows it."""

    @property
    def last_report(self) -> Report: ...

    def workers_have_ended(self, number: int) -> bool: ...


class Round(Protocol):
    """A round that is running."""

    @property
    def number(self) -> int: ...

    @property
    def participants(self) -> Sequence[Agent]: ...


class Outcome(Enum):
    OPEN = "open"  # nothing has changed
    CHANGED = "changed"  # another step is offered, or the offer is withdrawn
    AGREED = "agreed"


class Negotiation:
    """The head's offers in one round: `begin` makes one, `advance` evaluates the answers, and
    `give` makes the offer a notice.
    """

    def __init__(self, timing: Timing, numbers: Iterator[int]) -> None:
        """`numbers` yields a new number for each offer."""
        self.timing, self._numbers = timing, numbers
        self.offer: StepNotice | None = None  # in the orders
        self.try_at = -math.inf  # when there may be another offer
        self._offered_at = 0.0
        self._ahead = 1  # steps from `_most` to the next offer
        self._most = 0  # the most steps that any rank is known to have begun
        self._apart = False  # the ranks do not make their steps together
        self._waits_since = math.inf  # for ranks that have no optimizer yet
        self.is_stepping = False  # the ranks that have agreed have an optimizer

    @property
    def is_open(self) -> bool:
        return self.offer is not None and not self.offer.given

    def next_deadline(self) -> float:
        """Return when the open offer is withdrawn."""
        return self._offered_at + self.timing.answer

    def begin(self, current: Round, signum: int, now: float) -> None:
        """Offer a step for this signal."""
        reports = [p.last_report for p in current.participants]
        known = (r.progress.steps for r in reports if r.progress is not None)
        self._most = max(self._most, max((max(steps) for steps in known if steps), default=0))
        self._ahead = 1
        self._offer(signum, now)

    def _offer(self, signum: int, now: float) -> Outcome:
        step = EACH_ITS_NEXT if self._apart else self._most + self._ahead
        self.offer, self._offered_at = StepNotice(next(self._numbers), step, signum), now
        return Outcome.CHANGED

    def put_off(self, now: float) -> None:
        self.try_at = now + self.timing.offer

    def _withdraw(self, now: float) -> Outcome:
        """Withdraw the offer; there may be another one later."""
        self.offer = None
        self.put_off(now)
        return Outcome.CHANGED

    def _wait(self, now: float) -> Outcome:
        return self._withdraw(now) if now >= self.next_deadline() else Outcome.OPEN

    def advance(self, current: Round, now: float, *, holds: bool, patience: float) -> Outcome:
        """Evaluate the answers to the open offer.

        `holds`: this head has its lease. Without it, another head may lead, so nothing is given.
        `patience`: how many seconds to wait for ranks that have no optimizer yet.
        """
        offer = self.offer
        assert offer is not None, "an offer is open"
        answers = _answers(current, offer.number)
        if answers is None:
            return self._wait(now)
        counts = [a.steps for a in answers if a.steps]
        self._most = max([self._most, *(most for _, most in counts)])
        if any(a.busy for a in answers):
            return self._withdraw(now)
        if not all(a.accepted for a in answers):
            # Double the distance each time, until an offer arrives before any rank begins its step.
            self._ahead = min(2 * self._ahead, MOST_AHEAD)
            return self._offer(offer.signum, now)
        if counts and not self._apart:
            self._apart = self._most - min(least for least, _ in counts) > TOGETHER
            if self._apart:
                return self._offer(offer.signum, now)
        if not counts and patience:
            self._waits_since = min(self._waits_since, now)
            if now < self._waits_since + patience:
                return self._withdraw(now)
        if not holds:
            return self._wait(now)
        self.is_stepping = bool(counts)
        return Outcome.AGREED

    def give(self) -> StepNotice:
        """Give the notice to which all have agreed."""
        assert self.offer is not None, "an offer is open"
        self.offer = replace(self.offer, given=True)
        return self.offer


def last_answers(peers: Sequence[Agent]) -> list[NoticeAnswer | None]:
    """Return the last answer of each agent; None if it has answered to no offer."""
    return [peer.last_report.notice for peer in peers]


def _answers(current: Round, number: int) -> list[NoticeAnswer] | None:
    """Return the answers to this offer of all agents that have workers left; None while one of
    them has not answered, or if no agent has workers left.
    """
    found = []
    for answer in last_answers(with_workers(current)):
        if answer is None or answer.number != number:
            return None
        found.append(answer)
    return found or None


def with_workers(current: Round) -> list[Agent]:
    """Return the agents that have workers left, as far as is known."""
    running = (p for p in current.participants if p.last_report.phase is not Phase.DONE)
    return [p for p in running if not p.workers_have_ended(current.number)]


class Offers:
    """The offers to one agent in one round, and its answers."""

    def __init__(self) -> None:
        self.answer: NoticeAnswer | None = None  # to the newest offer; None: there is none yet
        self._newest = 0  # the number of the newest offer
        self._offered: StepNotice | None = None  # until it is withdrawn
        self._given = 0  # the number of the last notice that was given
        self._taken = 0  # the number of the last notice that was taken
        self._last = False  # the workers have taken that notice and ended, without another step
        self._unheard = 0  # the number of the last notice whose signal no worker handles

    def obey(self, notice: StepNotice | None) -> list[Effect]:
        """Obey the `notice` in an order; None: nothing is offered."""
        if notice is None:
            withdrawn = self._offered is not None and self._offered.number != self._given
            self._offered = None
            return [WithdrawNotice()] if withdrawn else []
        if notice.number > self._newest:
            self._newest, self._offered, self.answer = notice.number, notice, None
            return [OfferNotice(replace(notice, given=False))]
        if notice.given and notice.number == self._newest != self._given:
            self._given = notice.number
            self.answer = self.answer and self._complete(self.answer)
            return [GiveNotice(notice.number)]
        return []

    def hear(self, answer: NoticeAnswer) -> None:
        if answer.number == self._newest:
            self.answer = self._complete(answer)

    def taken(self, number: int, *, last: bool) -> None:
        self._taken, self._last = number, last
        self.answer = self.answer and self._complete(self.answer)

    def unheard(self, number: int) -> None:
        self._unheard = number
        self.answer = self.answer and self._complete(self.answer)

    def _complete(self, answer: NoticeAnswer) -> NoticeAnswer:
        last, unheard = self._last, self._unheard
        return replace(answer, taken=self._taken, given=self._given, last=last, unheard=unheard)
