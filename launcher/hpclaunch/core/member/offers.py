"""The notices that the head has offered to this agent's workers, and their answers."""

from __future__ import annotations

from ..protocol.effects import Effect, GiveNotice, OfferNotice, WithdrawNotice
from ..protocol.model import NoticeAnswer, StepNotice
from ..protocol.values import replace


class Offers:
    """The offers of one round."""

    def __init__(self) -> None:
        self.answer: NoticeAnswer | None = None  # to the newest offer; None: there is none yet
        self._newest = 0  # the number of the newest offer
        self._offered: StepNotice | None = None  # until it is withdrawn
        self._given = 0  # the number of the last notice that was given
        self._taken = 0  # the number of the last notice that was taken
        self._last = False  # the workers have ended at its step
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
