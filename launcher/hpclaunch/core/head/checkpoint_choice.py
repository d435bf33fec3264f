"""Choosing the checkpoint that a round begins with.

It is the newest complete one that all agents of the round see in the same state as the head, unless
earlier rounds have failed while they were resuming from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ..ending.table import verdict
from ..protocol.crc import checksum
from ..protocol.effects import ChooseCheckpoint, Effect, Record
from ..protocol.events import CheckpointChosen
from ..protocol.facts import CheckpointSought, ReadersAwaited
from ..protocol.model import Job, Look, Origin, Seen, Tally, Verdict
from ..protocol.values import replace
from .restarts import Budget, passed_over
from .roster import Awaited, Peer, hosts_of

NO_STEP_IN_NAME = (
    "its name has no step in it, so the checkpoints of that name on several nodes may be of "
    "different steps"
)

Participants = Callable[[], list[Peer]]


class CheckpointChoice:
    """The choice for one round. Call `begin` first. Once it is `done`, the round can begin with
    `choice`. Once there is a `verdict`, no round can begin.
    """

    def __init__(self, job: Job, budget: Budget, numbers: Iterator[int]) -> None:
        """`numbers` are those of the head's questions."""
        self.job, self.budget, self._numbers = job, budget, numbers
        self.search_number = 0  # of the last search
        self.choice: CheckpointChosen | None = None
        self._chosen_at = 0.0
        self.done = False
        self.verdict: Verdict | None = None
        self.asked = 0  # how often the agents were asked to look
        self._look: Look | None = None  # what the agents were asked to look at
        self._shares: dict[int, tuple[int, int]] = {}  # by agent: which share of the bytes to read
        # Checkpoints are known by the checksums of their marks.
        self._avoid: dict[int, str] = {}  # why each is passed over that has not failed
        self._failed: set[int] = set()  # those that have failed
        self._tally_before: Tally | None = None  # the tally before the first choice was rejected
        self._accepts_rejected = False  # there is nothing better
        self._unseen = ""  # which agent does not see a checkpoint that was passed over for this
        self._not_answered = Awaited()
        self._waited_for: list[Peer] = []
        self._since = self._asked_at = 0.0
        self._give_up_at = math.inf  # until then, agents may not see it yet; inf: they never will
        self._notice_at = math.inf

    def begin(self, now: float) -> list[Effect]:
        self._avoid, self._failed = {}, set(self.budget.tally.avoided)
        self._tally_before, self._accepts_rejected, self._unseen = None, False, ""
        self._since = now
        self._notice_at = now + self.job.timing.first_notice
        return self._search()

    def _search(self) -> list[Effect]:
        self.choice = self._look = None
        self.done = False
        avoid = (*passed_over(sorted(self._failed)), *self._avoid.items())
        self.search_number = next(self._numbers)
        return [ChooseCheckpoint(avoid, number=self.search_number)]

    def chosen(self, choice: CheckpointChosen, now: float) -> bool:
        """Note what a search has found. Return False if that answers an earlier search."""
        if choice.number != self.search_number:
            return False
        self.choice, self._chosen_at = choice, now
        return True

    # Time

    def next_deadline(self, paused_until: float) -> float:
        """Return when to call `notice`. `paused_until` is the end of the rendezvous's pause, or
        `inf`.
        """
        if self.choice is None:
            return self._notice_at
        if self._look is None or self.done:
            return paused_until
        return min(paused_until, self._notice_at, self._give_up_at)

    def notice(self, now: float) -> list[Effect]:
        """Note which time-outs are over, and record if the choice takes long. Call this whether or
        not the round could begin.
        """
        if now >= self._give_up_at:
            self._give_up_at = math.inf
            self._not_answered = Awaited()
        if now < self._notice_at:
            return []
        self._notice_at = now + self.job.timing.next_notice
        if self.choice is None:
            return [Record(CheckpointSought(now - self._since))]
        hosts, waited = hosts_of(self._waited_for), now - self._asked_at
        return [Record(ReadersAwaited(hosts, self.choice.path, waited))] if hosts else []

    @property
    def _is_late(self) -> bool:
        """Whether an agent that does not see the choice by now counts as never seeing it."""
        return self._give_up_at == math.inf

    # What the search has found

    def as_of(self, now: float) -> CheckpointChosen:
        """Return the choice with its age as it is now."""
        assert self.choice is not None, "the search has an answer"
        age = self.choice.age
        return replace(self.choice, age=None if age is None else age + now - self._chosen_at)

    def consider(self, participants: Participants, now: float) -> list[Effect] | None:
        """Take the next step with the choice, for a round of these agents.

        Return effects if that leads to another search, or to new questions to the agents (`asked`
        is then higher). Return None if there is nothing to do but wait, or if this is `done` or has
        a `verdict`.
        """
        choice = self.choice
        assert choice is not None, "there is something to consider"
        if not choice.path:
            return self._none_found()
        if not self._accepts_rejected and self.budget.rejects(choice):
            self._tally_before = self.budget.tally
            self.budget.avoid(choice)
            self._failed.add(checksum(choice.mark))
            return self._search()
        if self.job.local and self.job.nodes > 1 and choice.step is None:
            return self._pass_over(choice, NO_STEP_IN_NAME)
        present = participants()
        if self._look is None or self._has_lost_a_reader(present):
            return self._ask(choice, present, now)
        return self._check_answers(choice, participants)

    def _pass_over(self, choice: CheckpointChosen, why: str) -> list[Effect]:
        self._avoid[checksum(choice.mark)] = why
        return self._search()

    def _none_found(self) -> list[Effect] | None:
        if not self._accepts_rejected and self._failed:
            # A rejected checkpoint is better than none. The rejection in this round is undone.
            self._accepts_rejected = True
            self.budget.tally = self._tally_before or self.budget.tally
            self._failed = set()
            return self._search()
        if self._unseen and not self.job.local:
            reason = f"{self._unseen}, and there is no other: are the checkpoints in a directory "
            reason += "that all nodes share? (--checkpoint-local is for one on each node)"
            self.verdict = verdict(Origin.TROUBLE, reason)
            return None
        self.done = True
        return None

    # What the agents see

    def _ask(self, choice: CheckpointChosen, present: list[Peer], now: float) -> list[Effect]:
        # Where each node has its own directory, the head's search has read the head's files only.
        readers = present if self.job.local or not choice.is_read else []
        indices = [peer.place.index for peer in readers]
        self._shares = {index: (k, len(indices)) for k, index in enumerate(indices)}
        if self._look is None:
            timing = self.job.timing
            limit = timing.older if self._unseen else timing.visible
            # No other node writes into a node's own directory: what is missing will not appear.
            self._give_up_at = math.inf if self.job.local else now + limit
            self._asked_at, self._notice_at = now, now + self.job.timing.next_notice
        what = (choice.path, choice.mark, choice.size, choice.time)
        self._look = Look(next(self._numbers), *what, rounds=choice.rounds)
        self._not_answered = Awaited()
        self.asked += 1
        return []

    def _has_lost_a_reader(self, present: list[Peer]) -> bool:
        return not self._shares.keys() <= {peer.place.index for peer in present}

    def _check_answers(
        self, choice: CheckpointChosen, participants: Participants
    ) -> list[Effect] | None:
        def has_answered(peer: Peer) -> bool:
            seen = self._seen(peer)
            if peer.out or seen is None:
                return peer.out  # it no longer takes part
            return self._is_late or not seen.missing

        if not self._not_answered.none_left(participants, has_answered):
            self._waited_for = [peer for peer in participants() if not has_answered(peer)]
            return None
        for peer in participants():
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
        """Return the agent's answer to the present question; None if it has not answered yet."""
        seen, look = None if peer.report is None else peer.report.seen, self.look(peer)
        return seen if look is not None and seen is not None and look.is_answered(seen) else None

    def look(self, peer: Peer) -> Look | None:
        """Return the checkpoint that the agent is asked to look at; None for none."""
        share = self._shares.get(peer.place.index)
        if self._look is None or share is None:
            return self._look
        return replace(self._look, share=share)
