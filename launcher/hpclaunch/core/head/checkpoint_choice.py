"""The checkpoint that a round begins with: the newest that is complete, that all agents of the
round see as the head does, and from which no earlier rounds have failed to resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..protocol.effects import ChooseCheckpoint, Effect, Say
from ..protocol.events import CheckpointChosen
from ..protocol.model import EXIT_LOST, Job, Look, Seen, Tally, Verdict, checksum
from .restarts import Budget
from .roster import Laggards, Peer, hosts_of

TWICE = "the job failed twice while it was resuming from it"
UNTOLD = "its name tells no step, so that those of several nodes may be of different ones"

Takers = Callable[[], list[Peer]]


class CheckpointChoice:
    """Begins with `begin`; the round can begin with `choice` once it is `done`, and cannot begin at
    all once there is a `verdict`."""

    def __init__(self, job: Job, budget: Budget) -> None:
        self.job, self.budget = job, budget
        self.choice: CheckpointChosen | None = None
        self.done = False
        self.verdict: Verdict | None = None
        self.asked = 0  # how often the agents were asked to look
        self._look: Look | None = None
        self._shares: dict[int, tuple[int, int]] = {}  # of agents, the bytes that each is to read
        self._avoid: dict[int, str] = {}  # checksum of a mark: why
        self._rejected: Tally | None = None  # what it was before the choice was rejected
        self._forgives = False  # what was rejected: there is nothing else
        self._unseen = ""  # why one was passed over that others see
        self._waits = Laggards()
        self._waiting: list[Peer] = []  # for these
        self._since = self._asked_at = 0.0
        self._give_up_at = math.inf  # until then it may yet be seen
        self._notice_at = math.inf

    def begin(self, now: float) -> list[Effect]:
        self._avoid = self._rejects
        self._rejected, self._forgives, self._unseen = None, False, ""
        self._since = now
        self._notice_at = now + self.job.timing.first_notice
        return self._search()

    @property
    def _rejects(self) -> dict[int, str]:
        return dict.fromkeys(self.budget.tally.avoided, TWICE)

    @property
    def search(self) -> ChooseCheckpoint:
        """For whoever asks between two rounds."""
        return ChooseCheckpoint(tuple(self._rejects.items()))

    def _search(self) -> list[Effect]:
        self.choice = self._look = None
        self.done = False
        return [ChooseCheckpoint(tuple(self._avoid.items()))]

    # Time

    def next_deadline(self, paused_until: float) -> float:
        if self.choice is None:
            return self._notice_at
        if self._look is None or self.done:
            return paused_until
        return min(paused_until, self._notice_at, self._give_up_at)

    def notice(self, now: float) -> list[Effect]:
        """What time tells, whether or not the round could begin."""
        if now >= self._give_up_at:
            self._give_up_at = math.inf
            self._waits = Laggards()
        if now < self._notice_at:
            return []
        self._notice_at = now + self.job.timing.next_notice
        if self.choice is None:
            return [Say(f"looking for a complete checkpoint since {now - self._since:.0f} s")]
        names, waited = hosts_of(self._waiting), now - self._asked_at
        text = f"waiting for {names} to look at {self.choice.path} since {waited:.0f} s"
        return [Say(text)] if names else []

    @property
    def _is_late(self) -> bool:
        """What is not seen by now will not be."""
        return self._give_up_at == math.inf

    # What was found

    def consider(self, takers: Takers, now: float) -> list[Effect] | None:
        """The choice, for a round of these agents. What is to be done next; None for nothing."""
        choice = self.choice
        assert choice is not None, "there is something to consider"
        if not choice.path:
            return self._without()
        if not self._forgives and self.budget.rejects(choice):
            self._rejected = self.budget.tally
            self.budget.avoid(choice)
            return self._pass_over(choice, TWICE)
        if self.job.local and self.job.nodes > 1 and choice.step is None:
            return self._pass_over(choice, UNTOLD)
        there = takers()
        if self._look is None or self._has_lost_a_reader(there):
            return self._ask(choice, there, now)
        return self._wait(choice, takers)

    def _pass_over(self, choice: CheckpointChosen, why: str) -> list[Effect]:
        self._avoid[checksum(choice.mark)] = why
        return self._search()

    def _without(self) -> list[Effect] | None:
        if not self._forgives and TWICE in self._avoid.values():
            # It is one of these or none. What was found out before this round stays as it is.
            self._forgives = True
            self.budget.tally = self._rejected or self.budget.tally
            self._avoid = {mark: why for mark, why in self._avoid.items() if why != TWICE}
            return self._search()
        if self._unseen and not self.job.local:
            reason = f"{self._unseen}, and there is no other: are the checkpoints in a directory "
            reason += "that all nodes share? (--checkpoint-local is for one on each node)"
            self.verdict = Verdict(EXIT_LOST, reason, restarts=self.budget.total)
            return None
        self.done = True
        return None

    # What the agents see

    def _ask(self, choice: CheckpointChosen, there: list[Peer], now: float) -> list[Effect]:
        # Where each node has its own, that the head's was read says nothing of the others.
        readers = there if self.job.local or not choice.is_read else []
        indices = [peer.place.index for peer in readers]
        self._shares = {index: (k, len(indices)) for k, index in enumerate(indices)}
        if self._look is None:
            timing = self.job.timing
            patience = timing.older if self._unseen else timing.visible
            # Nobody else writes into a node's own directory.
            self._give_up_at = math.inf if self.job.local else now + patience
            self._asked_at, self._notice_at = now, now + self.job.timing.next_notice
        self._look = Look(choice.path, choice.mark, choice.size, choice.time, rounds=choice.rounds)
        self._waits = Laggards()
        self.asked += 1
        return []

    def _has_lost_a_reader(self, there: list[Peer]) -> bool:
        return not self._shares.keys() <= {peer.place.index for peer in there}

    def _wait(self, choice: CheckpointChosen, takers: Takers) -> list[Effect] | None:
        def has_answered(peer: Peer) -> bool:
            seen = self._seen(peer)
            if peer.out or seen is None:
                return bool(peer.out)  # it takes no part any more
            return self._is_late or not seen.missing

        if not self._waits.none(takers, has_answered):
            self._waiting = [peer for peer in takers() if not has_answered(peer)]
            return None
        for peer in takers():
            seen = self._seen(peer)
            if seen is not None and seen.damage:
                return self._pass_over(choice, seen.damage)
            if seen is not None and seen.missing:
                unseen = f"{peer.host} does not see {choice.path}: {seen.missing}"
                self._unseen = self._unseen or unseen
                return self._pass_over(choice, f"{peer.host} does not see it: {seen.missing}")
        self.done = True
        return None

    def _seen(self, peer: Peer) -> Seen | None:
        """Its answer to what it is asked now."""
        look, seen = self.look(peer), None if peer.report is None else peer.report.seen
        if look is None or seen is None or (seen.mark, seen.share) != (look.mark, look.share):
            return None
        return seen

    def look(self, peer: Peer) -> Look | None:
        """What one of the agents is asked."""
        share = self._shares.get(peer.place.index)
        if self._look is None or share is None:
            return self._look
        return replace(self._look, share=share)
