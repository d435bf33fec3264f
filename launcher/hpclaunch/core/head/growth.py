"""The decision to end a round so that other nodes take part in the next one: nodes that have
arrived or come back, and spares in place of stragglers and of nodes that Slurm drains.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..protocol.effects import Effect, Record
from ..protocol.events import CheckpointChosen, SearchFailed
from ..protocol.facts import CordonKind, DrainFound, EndReason, NodesJoin
from ..protocol.model import Grow
from ..protocol.values import replace
from .straggler_watch import Straggler

if TYPE_CHECKING:
    from .head_state import HeadState


class Growth:
    """The reasons to replace or add nodes in one round, and the search for a new checkpoint: little
    work is lost if the round ends just after a save.
    """

    def __init__(self, state: HeadState) -> None:
        self.state, self.job = state, state.job
        self._leaving: set[str] = set()  # draining hosts because of which the workers have notice
        self._base: str | None = None  # the mark of the first checkpoint found; "" if it is new
        self._since = math.inf  # a checkpoint that was saved after this is new
        self._newest: str | None = None  # the mark of the last checkpoint found
        self._look_at = -math.inf  # when to search again
        self._search = 0  # the number of the search that is running, which may take long; 0: none

    @property
    def drains(self) -> bool:
        """Whether the workers were given notice because Slurm drains a node."""
        return bool(self._leaving)

    def beat(self, slow: Straggler | None, now: float) -> list[Effect]:
        """End the round if it is time to continue with other nodes. `slow`: the straggler."""
        roster, current = self.state.roster, self.state.current_round
        hosts = self._newcomers()
        straggler, drained = self._replaceable(slow), self.relievable()
        if drained and self._has_new_checkpoint:
            effects = self.cordon_drained()
        elif straggler and self._has_new_checkpoint:
            effects = roster.cordon([straggler], CordonKind.SLOW, self.state.round)
        elif hosts and (self.job.grow is Grow.NOW or self._has_new_checkpoint):
            effects = [Record(NodesJoin(tuple(dict.fromkeys(hosts))))]
        elif drained or straggler or (hosts and self.job.grow is Grow.CHECKPOINT):
            return self._look(now)
        else:
            self.await_save(now)
            return []
        current.ends.add(EndReason.GROWTH)
        return effects

    # Which nodes

    def _newcomers(self) -> list[str]:
        """Return the hosts that could take part in a larger round; [] if the job does not grow.

        Once a worker has finished, the round is about to end by itself.
        """
        state, current = self.state, self.state.current_round
        reports = [p.report for p in state.roster if p.report is not None]
        if any(r.exits for r in reports if r.round == current.number):
            return []
        if self.job.grow is Grow.NEVER:
            return []
        nodes = set(state.next_groups()).difference(current.groups)
        return [p.host for p in state.roster if p.place.node in nodes]

    def _replaceable(self, slow: Straggler | None) -> str:
        """Return the host of the straggler; "" if there is none, or it cannot be replaced."""
        job = self.job
        if slow is None or not (job.replaces_stragglers and job.saves and self._spares):
            return ""
        return slow.host

    def relieve_drained(self, now: float) -> list[Effect]:
        """Let spares take the places of the nodes of the round that Slurm drains, once the workers
        have saved.
        """
        new = [host for host in self.relievable() if host not in self._leaving]
        if not new:
            return []
        self._leaving.update(new)
        self.await_save(now)
        self.state.end.notices.give_soon()
        return [Record(DrainFound(tuple(new)))]

    def relievable(self) -> list[str]:
        """Return the hosts of the round that Slurm drains, as far as there are spares for them."""
        state, current = self.state, self.state.current_round
        if not (state.draining and self.job.saves):
            return []
        used = dict.fromkeys(p.host for p in current.participants if p.host in state.draining)
        return list(used)[: len(self._spares)]

    @property
    def _spares(self) -> set[int]:
        """The nodes that can take the place of another one: Slurm does not drain them."""
        state = self.state
        return state.roster.nodes.difference(state.current_round.groups, state.drained_nodes)

    def cordon_drained(self) -> list[Effect]:
        """Let spares take the places of the nodes that Slurm drains."""
        roster, number = self.state.roster, self.state.round
        return roster.cordon(self.relievable(), CordonKind.DRAINING, number)

    # The new checkpoint

    @property
    def _has_new_checkpoint(self) -> bool:
        return self._newest != self._base

    def await_save(self, now: float) -> None:
        """Count only checkpoints that are saved from now on as new."""
        self._since, self._look_at, self._search = now, -math.inf, 0
        self._base = self._newest = None

    def hear_search(self, event: CheckpointChosen | SearchFailed, now: float) -> None:
        """Note what the search has found, and when to search again."""
        if not self._search or event.number != self._search:
            return
        self._search, self._look_at = 0, now + self.job.timing.look
        if isinstance(event, CheckpointChosen):
            self.state.end.notices.learn(event.took)
            self._newest = event.mark
            if self._base is None:
                is_new = event.age is not None and now - event.age > self._since
                self._base = "" if is_new else event.mark

    def _look(self, now: float) -> list[Effect]:
        """Search for a new checkpoint if it is time to do so."""
        if self._search or now < self._look_at:
            return []
        self._search = next(self.state.numbers)
        return [replace(self.state.budget.search, number=self._search)]
