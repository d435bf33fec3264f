"""An agent that has not heard the head yet: it says so, finds out why, and gives up in the end."""

from __future__ import annotations

import math

from ..protocol.effects import Diagnose, Effect, Say
from ..protocol.model import EXIT_LOST, HEAD, Job, Place, Trouble, Verdict
from ..protocol.wording import signal_name


class Waiting:
    """For the head, from `begin` until `end`; before and after there is no deadline."""

    def __init__(self, job: Job, place: Place) -> None:
        self.job = job
        self.here = place.host
        self.head = job.places[HEAD].host
        self._since = 0.0
        self._notice_at = math.inf  # when to say that we wait
        self._give_up_at = math.inf  # when to stop waiting
        self._diagnosis = ""  # why it is not heard, as far as could be found out

    def next_deadline(self) -> float:
        return min(self._notice_at, self._give_up_at)

    def begin(self, now: float) -> None:
        self._since = now
        self._notice_at = now + self.job.timing.first_notice
        self._give_up_at = now + self.job.timing.join

    def end(self) -> None:
        self._notice_at = self._give_up_at = math.inf

    def hurry(self, now: float) -> None:
        """There is something to tell the head, but no reason to wait for it for long."""
        if self._give_up_at < math.inf:
            self._give_up_at = min(self._give_up_at, now + self.job.timing.goodbye)
            self._notice_at = math.inf

    def given_up(self, now: float) -> bool:
        return now >= self._give_up_at

    def notice(self, now: float) -> list[Effect]:
        if now < self._notice_at:
            return []
        self._notice_at = now + self.job.timing.next_notice
        return [Diagnose()]

    def explain(self, diagnosis: str, now: float) -> list[Effect]:
        """The head is still not heard, and this may be why."""
        self._diagnosis = diagnosis
        if math.isinf(self._notice_at):
            return []  # it was heard meanwhile
        why = f": {diagnosis}" if diagnosis else ""
        waited = now - self._since
        return [Say(f"{self.here} has waited {waited:.0f} s for the head on {self.head}{why}")]

    def verdict(self, now: float, signum: int, trouble: Trouble | None) -> Verdict:
        """How the job ended for one who never met the head."""
        if signum:
            name = signal_name(signum)
            return Verdict(128 + signum, f"ended by {name} while waiting for {self.head}")
        if trouble:
            return Verdict(trouble.code, trouble.reason)
        reason = self._diagnosis or (
            "is hpclaunch running there, can the hosts reach each other, and do they see the same "
            "secret file?"
        )
        waited = now - self._since
        return Verdict(
            EXIT_LOST,
            f"the head on {self.head} did not answer {self.here} within {waited:.0f} s: {reason}",
        )
