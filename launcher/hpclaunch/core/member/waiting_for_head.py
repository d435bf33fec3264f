"""The wait of an agent that has not heard a head yet: what the user is told, and when it ends."""

from __future__ import annotations

import math

from ..protocol.effects import Diagnose, Effect, Say
from ..protocol.model import EXIT_LOST, HEAD, Job, Place, Trouble, Verdict
from ..protocol.wording import signal_name, some

NAMES = 8  # hosts named in a line before it says "and so many more"


class Waiting:
    """The wait for the head, from `begin` to `end`. Before and after that, there is no deadline."""

    def __init__(self, job: Job, place: Place, *, anew: bool = False) -> None:
        """`anew`: this is the first agent, started anew. It does not know who leads."""
        self.job, self.anew = job, anew
        self.here = place.host
        self.head = job.places[HEAD].host
        self._since = 0.0
        self._notice_at = math.inf
        self._give_up_at = math.inf
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
        """The agent is about to end. It waits only a short time, to tell the head why."""
        if self._give_up_at < math.inf:
            self._give_up_at = min(self._give_up_at, now + self.job.timing.goodbye)
            self._notice_at = math.inf

    def given_up(self, now: float) -> bool:
        return now >= self._give_up_at

    def notice(self, now: float) -> list[Effect]:
        """Begin to find out why the head is not heard, if it is time to tell the user."""
        if now < self._notice_at:
            return []
        self._notice_at = now + self.job.timing.next_notice
        return [Diagnose()]

    def explain(self, diagnosis: str, now: float) -> list[Effect]:
        """Tell the user that the head is still not heard. `diagnosis` says why, or is ""."""
        self._diagnosis = diagnosis
        if math.isinf(self._notice_at):
            return []  # the wait has ended meanwhile
        why = f": {diagnosis}" if diagnosis and not self.anew else ""
        waited = now - self._since
        if self.anew:
            said = f"{self.here} was started anew, and has waited {waited:.0f} s for a head"
            return [Say(said)]
        return [Say(f"{self.here} has waited {waited:.0f} s for the head on {self.head}{why}")]

    def verdict(self, now: float, signum: int, trouble: Trouble | None) -> Verdict:
        """Return how the job ends for this agent, which has never heard a head."""
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
        if self.anew:
            others = (place.host for place in self.job.places if place.host != self.here)
            names = some(others, NAMES)
            reason = f"the agent on {self.here} was started anew, and {names} did not answer "
            reason += f"within {waited:.0f} s: they may go on without it, or the job is over"
            return Verdict(EXIT_LOST, reason)
        return Verdict(
            EXIT_LOST,
            f"the head on {self.head} did not answer {self.here} within {waited:.0f} s: {reason}",
        )
