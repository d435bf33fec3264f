"""The wait of an agent that has not heard a head yet: what is recorded, and when it ends."""

from __future__ import annotations

import math

from ..ending.table import verdict
from ..protocol.effects import Diagnose, Effect, Record
from ..protocol.events import Diagnosed
from ..protocol.facts import HeadAwaited
from ..protocol.model import HEAD, Job, Origin, Place, Trouble, Verdict
from ..protocol.wording import NAMES, signal_name, some


class Waiting:
    """The wait for the head, from `begin` to `end`. Before and after that, there is no deadline."""

    def __init__(self, job: Job, place: Place, *, knows_head: bool = True) -> None:
        """`knows_head`: False for a first agent that was started again, and asks all others."""
        self.job, self.knows_head = job, knows_head
        self.here = place.host
        self.head = job.places[HEAD].host
        self._since = 0.0
        self._notice_at = math.inf
        self._give_up_at = math.inf
        self._question = 0  # the number of the last question
        self._diagnosis = ""  # why the head is not heard; "" if that could not be found out

    def next_deadline(self) -> float:
        return min(self._notice_at, self._give_up_at)

    def begin(self, now: float) -> None:
        self._since = now
        self._notice_at = now + self.job.timing.first_notice
        self._give_up_at = now + self.job.timing.join

    def end(self) -> None:
        self._notice_at = self._give_up_at = math.inf

    def hurry(self, now: float) -> None:
        """Shorten the wait: the agent is about to end, and only reports to the head why."""
        if self._give_up_at < math.inf:
            self._give_up_at = min(self._give_up_at, now + self.job.timing.goodbye)
            self._notice_at = math.inf

    def given_up(self, now: float) -> bool:
        return now >= self._give_up_at

    def notice(self, now: float) -> list[Effect]:
        """Begin to find out why the head is not heard, if it is time to record that."""
        if now < self._notice_at:
            return []
        self._notice_at = now + self.job.timing.next_notice
        self._question += 1
        return [Diagnose(self._question)]

    def explain(self, diagnosis: Diagnosed, now: float) -> list[Effect]:
        """Record that the head is still not heard, and why, if that is known."""
        if diagnosis.number != self._question:
            return []
        self._diagnosis = diagnosis.text
        if math.isinf(self._notice_at):
            return []  # the wait has ended meanwhile
        head, why = (self.head, diagnosis.text) if self.knows_head else ("", "")
        return [Record(HeadAwaited(self.here, head, now - self._since, why))]

    def verdict(self, now: float, signum: int, trouble: Trouble | None) -> Verdict:
        """Return how the job ends for this agent, which has never heard a head."""
        if signum:
            name = signal_name(signum)
            head = self.head if self.knows_head else "a head"
            reason = f"ended by {name} while waiting for {head}"
            return verdict(Origin.SIGNAL, reason, signum=signum)
        if trouble:
            return verdict(trouble.origin, trouble.reason)
        waited = now - self._since
        if not self.knows_head:
            others = (place.host for place in self.job.places if place.host != self.here)
            reason = f"the agent on {self.here} was started again, and {some(others, NAMES)} did "
            reason += f"not answer within {waited:.0f} s: the job may continue without it, or be "
            return verdict(Origin.ABSENT, reason + "over")
        why = self._diagnosis or (
            "is hpclaunch running there, can the hosts reach each other, and do they see the same "
            "secret file?"
        )
        reason = f"the head on {self.head} did not answer {self.here} within {waited:.0f} s: {why}"
        return verdict(Origin.HEAD_LOST, reason)
