"""The checkpoint that a round begins with: the newest that is complete, that all agents of the
round see as the head does, and from which no earlier rounds have failed to resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from .effects import ChooseCheckpoint, Effect, Say
from .events import CheckpointChosen
from .gathering import FIRST_NOTICE, NEXT_NOTICE
from .marks import checksum
from .model import EXIT_LOST, Job, Look, Tally, Verdict
from .restarts import Budget
from .roster import Laggards, Peer, hosts_of

PATIENCE = 20.0  # seconds for a file system to show a node what another one has written, and
OLDER = 2.0  # after that for what is older still
TWICE = "the job failed twice while it was resuming from it"


class Choosing:
    """Begins with `begin`; the round can begin with `choice` once it is `done`, and cannot begin at
    all once there is a `verdict`."""

    def __init__(self, job: Job, budget: Budget) -> None:
        self.job, self.budget = job, budget
        self.choice: CheckpointChosen | None = None
        self.done = False
        self.verdict: Verdict | None = None
        self._look: Look | None = None
        self._shares: dict[int, int] = {}  # of agents: which part of its bytes each is to read
        self._avoid: dict[int, str] = {}  # checksum of a mark: why
        self._rejected: tuple[CheckpointChosen, Tally] | None = None
        self._only = ""  # the mark of one that is taken again, since there is no older one
        self._unseen = ""  # why one was passed over that others see
        self._waits = Laggards()
        self._since = self._asked_at = 0.0
        self._give_up_at = math.inf  # until then it may yet be seen
        self._late = False  # that time has come
        self._notice_at = math.inf

    def begin(self, now: float) -> list[Effect]:
        self._avoid = dict.fromkeys(self.budget.tally.avoided, TWICE)
        self._rejected, self._only = None, ""
        self._unseen = ""
        self._since = now
        self._notice_at = now + FIRST_NOTICE
        return self._search()

    def _search(self) -> list[Effect]:
        self.choice = self._look = None
        self.done = False
        return [ChooseCheckpoint(tuple(self._avoid.items()))]

    def next_deadline(self, paused_until: float) -> float:
        if self.choice is None:
            return self._notice_at
        if self._look is None or self.done:
            return paused_until
        late = math.inf if self._late else self._give_up_at
        return min(paused_until, self._notice_at, late)

    def notice(self, now: float) -> list[Effect]:
        """While there is no choice."""
        if now < self._notice_at:
            return []
        self._notice_at = now + NEXT_NOTICE
        return [Say(f"looking for a complete checkpoint since {now - self._since:.0f} s")]

    # What was found

    def consider(self, takers: Callable[[], list[Peer]], now: float) -> list[Effect] | None:
        """The choice, for a round of these agents. What is to be done next; None for nothing."""
        choice = self.choice
        assert choice is not None, "there is something to consider"
        if not choice.path:
            return self._without()
        if choice.mark != self._only and self.budget.rejects(choice):
            self._rejected = (choice, self.budget.tally)
            self.budget.avoid(choice)
            self._avoid[checksum(choice.mark)] = TWICE
            return self._search()
        if self._look is None:
            return self._ask(choice, takers(), now)
        return self._wait(choice, takers, now)

    def _without(self) -> list[Effect] | None:
        if self._rejected is not None:
            again, self.budget.tally = self._rejected
            self._rejected, self._only = None, again.mark
            del self._avoid[checksum(again.mark)]
            return self._search()
        if self._unseen and not self.job.local:
            reason = f"{self._unseen}, and there is no other: are the checkpoints in a directory "
            reason += "that all nodes share? (--checkpoint-local is for one on each node)"
            self.verdict = Verdict(EXIT_LOST, reason, restarts=self.budget.total)
            return None
        self.done = True
        return None

    def _ask(self, choice: CheckpointChosen, takers: list[Peer], now: float) -> list[Effect]:
        readers = [] if choice.is_read else takers
        self._shares = {peer.place.index: k for k, peer in enumerate(readers)}
        self._look = Look(choice.path, choice.mark, choice.size, choice.time)
        self._waits = Laggards()
        self._asked_at = now
        # Nobody else writes into a node's own directory.
        patience = OLDER if self._unseen else PATIENCE
        self._give_up_at = now if self.job.local else now + patience
        self._late = False
        self._notice_at = now + NEXT_NOTICE
        return []

    def _wait(
        self, choice: CheckpointChosen, takers: Callable[[], list[Peer]], now: float
    ) -> list[Effect] | None:
        self._late = now >= self._give_up_at

        def has_answered(peer: Peer) -> bool:
            seen = None if peer.report is None else peer.report.seen
            if peer.out or seen is None or seen.mark != choice.mark:
                return bool(peer.out)  # it takes no part any more
            return self._late or not seen.missing

        if not self._waits.none(takers, has_answered):
            return self._remind(choice, takers, now)
        for peer in takers():
            seen = peer.report.seen if peer.report is not None else None
            if seen is not None and (seen.missing or seen.damage):
                return self._pass_over(choice, peer, seen.missing, seen.damage)
        self.done = True
        return None

    def _remind(
        self, choice: CheckpointChosen, takers: Callable[[], list[Peer]], now: float
    ) -> list[Effect] | None:
        if now < self._notice_at:
            return None
        self._notice_at = now + NEXT_NOTICE
        silent = [p for p in takers() if p.report is not None and p.report.seen is None]
        text = f"waiting for {hosts_of(silent)} to look at {choice.path}"
        return [Say(f"{text} since {now - self._asked_at:.0f} s")]

    def _pass_over(
        self, choice: CheckpointChosen, peer: Peer, missing: str, damage: str
    ) -> list[Effect]:
        if missing and not self._unseen:
            self._unseen = f"{peer.host} does not see {choice.path}: {missing}"
        why = damage or f"{peer.host} does not see it: {missing}"
        self._avoid[checksum(choice.mark)] = why
        return self._search()

    # What the agents are asked

    @property
    def is_asking(self) -> bool:
        return self._look is not None and not self.done

    def look(self, peer: Peer) -> Look | None:
        """For one of the agents."""
        if self._look is None:
            return None
        k = self._shares.get(peer.place.index)
        return self._look if k is None else replace(self._look, share=(k, len(self._shares)))
