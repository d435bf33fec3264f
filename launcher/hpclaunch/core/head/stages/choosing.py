"""Choosing: the wait until all agree on the checkpoint that the round resumes from.

It is the newest complete one that all agents of the round see in the same state as the head, unless
earlier rounds have failed while they were resuming from it.
"""

from __future__ import annotations

import math

from ...ending.table import verdict
from ...protocol.crc import checksum
from ...protocol.effects import ChooseCheckpoint, Effect, Record
from ...protocol.events import CheckpointChosen, Event
from ...protocol.facts import CheckpointSought, ReadersAwaited
from ...protocol.model import Look, Origin, Seen, Tally
from ...protocol.stages import Stage
from ...protocol.values import field, replace, value
from ...protocol.wording import NAMES, some
from ..head_state import HeadState
from ..orders import Asks
from ..restarts import passed_over
from ..roster import Awaited, Peer, hosts_of
from ..round import begin_round
from .stage import JobStage, Step

NO_STEP_IN_NAME = (
    "its name has no step in it, so the checkpoints of that name on several nodes may be of "
    "different steps"
)


@value()
class CommonLook:
    """A question to all agents of the next round: whether they see the choice as the head does."""

    look: Look
    shares: dict[int, tuple[int, int]]  # by agent: which share of the bytes to read
    asked_at: float  # when the agents were first asked to look at the choice
    give_up_at: float  # until then, the choice may still appear; inf: it will not
    not_answered: Awaited = field(default_factory=Awaited)
    waited_for: list[Peer] = field(default_factory=list)

    def of(self, peer: Peer) -> Look:
        share = self.shares.get(peer.place.index)
        return self.look if share is None else replace(self.look, share=share)

    def answer(self, peer: Peer) -> Seen | None:
        """Return the agent's answer; None if it has not answered yet."""
        seen = peer.last_report.seen
        return seen if seen is not None and self.of(peer).is_answered(seen) else None


class Choosing(JobStage):
    kind = Stage.CHOOSING

    def __init__(self, state: HeadState) -> None:
        super().__init__(state)
        self.job, self.budget = state.job, state.budget
        self._search_number = 0  # of the last search
        self._stagers: tuple[int, ...] = ()  # the agents that it has let have it in memory
        self._can_stage = False
        self._is_restored_again = False  # into memory, since an agent has not got it
        self._choice: CheckpointChosen | None = None  # what the last search found
        self._chosen_at = 0.0
        self._look: CommonLook | None = None  # at the choice
        # Both name checkpoints by the checksums of their marks.
        self._avoid: dict[int, str] = {}  # why to pass over a checkpoint that has not failed
        self._failed = set(self.budget.tally.avoided)  # checkpoints that have failed
        self._tally_before: Tally | None = None  # the tally before a choice was rejected
        self._accepts_rejected = False  # no other checkpoint was found
        self._unseen = ""  # the first checkpoint that an agent did not see, and which agent
        self._notice_at = math.inf

    def enter(self, now: float) -> list[Effect]:
        self._notice_at = now + self.job.timing.first_notice
        return super().enter(now) + self._search()

    def _search(self) -> list[Effect]:
        self._choice = self._look = None
        avoid = (*passed_over(sorted(self._failed)), *self._avoid.items())
        self._search_number = next(self.state.numbers)
        stagers = self.state.stagers
        self._stagers, self._can_stage = stagers.agents, stagers.can_stage
        search = ChooseCheckpoint(
            avoid,
            number=self._search_number,
            agents=self._stagers,
            stages=self._can_stage,
            is_first=self.state.job.stages_together and not self.state.knows_rounds,
        )
        return [*stagers.lead(), search]

    def event(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, CheckpointChosen) and event.number == self._search_number:
            self._choice, self._chosen_at = event, now
            self.state.end.notices.learn(event.took)
        return []

    def needs_search(self, number: int) -> bool:
        return self.state.end.verdict is None and number == self._search_number

    def asks(self, peer: Peer, now: float) -> Asks:
        return Asks(look=None if self._look is None else self._look.of(peer))

    def step(self, now: float, *, ticked: bool) -> Step:
        state = self.state
        if (ended := self.end_without_round(now, ticked=ticked)) is not None:
            return ended
        if state.rendezvous.is_short:
            return Step(next=Stage.RENDEZVOUS)
        if recorded := self._notice(now):
            return Step(recorded)
        choice = self._choice
        if choice is None:
            return Step()
        # All must still be ready. If an agent's fork server was killed meanwhile, its store port is
        # closed until it reports a new one: workers would wait for a store that does not exist.
        ready, effects = state.rendezvous.can_begin_round(state.next_participants, now)
        if not ready:
            return Step(effects)
        considered = self._consider(choice, now)
        if considered is not None:
            return Step(effects + considered)
        if state.end.verdict is None:
            state.end.note(self.budget.begin(choice))
        if state.end.verdict is not None:
            ended = self.end_job(now)
            return Step([*effects, *ended.effects], ended.next)
        age = None if choice.age is None else choice.age + now - self._chosen_at
        began = begin_round(state, replace(choice, age=age), now)
        return Step([*effects, Record(began)], Stage.RUNNING)

    # Time

    def _next_deadline(self) -> float:
        stop_at = self.state.end.allocation.stop_at
        paused_until = self.state.rendezvous.paused_until
        if self._choice is None:
            return min(stop_at, self._notice_at)
        if self._look is None:
            return min(stop_at, paused_until)
        return min(stop_at, paused_until, self._notice_at, self._look.give_up_at)

    def _notice(self, now: float) -> list[Effect]:
        """Apply the look's time-out. If choosing takes long, record that it does."""
        look = self._look
        if look is not None and now >= look.give_up_at:
            look.give_up_at, look.not_answered = math.inf, Awaited()
        if now < self._notice_at:
            return []
        self._notice_at = now + self.job.timing.next_notice
        if self._choice is None:
            return [Record(CheckpointSought(now - self.since))]
        if look is None or not look.waited_for:
            return []
        hosts, waited = hosts_of(look.waited_for), now - look.asked_at
        return [Record(ReadersAwaited(hosts, self._choice.path, waited))]

    # What the search has found

    def _consider(self, choice: CheckpointChosen, now: float) -> list[Effect] | None:
        """Take the next step with the choice. Return None once a round can begin with it, or there
        is a verdict; else the effects, which are [] while the agents look at it.
        """
        if choice.staged and self._has_other_stagers:
            return self._search()
        if choice.staged and (hosts := self.state.stagers.missing):
            names = some(hosts, NAMES)
            reason = f"{names} cannot save in memory, where the others have checkpoints that are "
            self.state.end.note(verdict(Origin.TROUBLE, reason + "not on storage"))
            return None
        if not choice.path:
            return self._none_found(choice)
        if not self._accepts_rejected and self.budget.rejects(choice):
            self._tally_before = self.budget.tally
            self.budget.avoid(choice)
            self._failed.add(checksum(choice.mark))
            return self._search()
        if self.job.local and self.job.nodes > 1 and choice.step is None:
            return self._pass_over(choice, NO_STEP_IN_NAME)
        present = self.state.next_participants()
        look = self._look
        if look is None or not look.shares.keys() <= {p.place.index for p in present}:
            self._look = self._ask(choice, present, now)
            return self.order_all(now)
        return self._check_answers(choice, look)

    def _pass_over(self, choice: CheckpointChosen, why: str) -> list[Effect]:
        self._avoid[checksum(choice.mark)] = why
        return self._search()

    @property
    def _has_other_stagers(self) -> bool:
        """Whether an agent has come, or can no longer save in memory, since the search began."""
        stagers = self.state.stagers
        came = set(stagers.agents) - set(self._stagers)
        return bool(came) or (self._can_stage and not stagers.can_stage)

    def _none_found(self, choice: CheckpointChosen) -> list[Effect] | None:
        if not self._accepts_rejected and self._failed:
            # A rejected checkpoint is better than none. A rejection in this stage is undone.
            self._accepts_rejected = True
            self.budget.tally = self._tally_before or self.budget.tally
            self._failed = set()
            return self._search()
        if self._unseen and not self.job.local:
            reason = f"{self._unseen}, and there is no other"
            if not choice.staged:
                reason += ": are the checkpoints in a directory that all nodes share? "
                reason += "(--checkpoint-local is for one on each node)"
            self.state.end.note(verdict(Origin.TROUBLE, reason))
        return None

    # What the agents see

    def _ask(self, choice: CheckpointChosen, present: list[Peer], now: float) -> CommonLook:
        """Let the agents look at the choice, and read it unless the search has done so."""
        # Where each node has its own directory, the head's search has read the head's files only.
        readers = present if self.job.local or not choice.is_read else []
        shares = {peer.place.index: (k, len(readers)) for k, peer in enumerate(readers)}
        what = (choice.path, choice.mark, choice.size, choice.time)
        look = Look(next(self.state.numbers), *what, rounds=choice.rounds, staged=choice.staged)
        if (last := self._look) is not None:
            return CommonLook(look, shares, last.asked_at, last.give_up_at)
        timing = self.job.timing
        self._notice_at = now + timing.next_notice
        limit = timing.older if self._unseen else timing.visible
        # No other node writes into a node's own directory: what is missing will not appear.
        is_own = self.job.local or choice.staged
        return CommonLook(look, shares, now, math.inf if is_own else now + limit)

    def _check_answers(self, choice: CheckpointChosen, look: CommonLook) -> list[Effect] | None:
        is_late = look.give_up_at == math.inf  # an agent that does not see it by now never will

        def has_answered(peer: Peer) -> bool:
            seen = look.answer(peer)
            if peer.out or seen is None:
                return peer.out  # an agent that is out no longer takes part
            return is_late or not seen.missing

        participants = self.state.next_participants
        if not look.not_answered.none_left(participants, has_answered):
            look.waited_for = [peer for peer in participants() if not has_answered(peer)]
            return []
        for peer in participants():
            seen = look.answer(peer)
            if seen is not None and seen.damage:
                return self._pass_over(choice, seen.damage)
            if seen is not None and seen.missing:
                if choice.staged and not self._is_restored_again:
                    self._is_restored_again = True
                    return self._search()
                unseen = f"{peer.host} does not see {choice.path}: {seen.missing}"
                self._unseen = self._unseen or unseen
                return self._pass_over(choice, f"{peer.host} does not see it: {seen.missing}")
        return None
