"""A simulated agent's side of --stage: its stager, and what it has in memory."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from sim_training import File

from hpclaunch.core.protocol import effects, events

if TYPE_CHECKING:
    from sim_agent import Agent

FULL = "no room"
LEFT = "another node cannot save in memory"
START, FLUSH = 0.3, 1.0  # the most seconds that the stager needs for these


class Stage:
    def __init__(self, agent: Agent) -> None:
        self._agent, self._sim = agent, agent.sim
        self._rng = Random(f"{agent.sim.plan.seed} {agent.name} stage")
        self._is_used = agent.sim.plan.job.stages
        self.refused = ""
        # Its directory in memory is gone: all that was saved there is on storage.
        self.has_left = (0.0, agent.index) in agent.sim.plan.refusals
        self._port = 0  # where the stager listens

    def start(self) -> None:
        """Start the stager."""
        if not self._is_used:
            return
        if self.has_left:
            self._refuse(FULL)
            return
        self._sim.after(self._rng.uniform(0.0, START), self._listen)

    def _listen(self) -> None:
        if not self.has_left:
            self._port = self._sim.fresh_port()
            self._report()

    def _report(self) -> None:
        self._agent.deliver(events.StagerFound(self._port, self.refused))

    def kill(self) -> None:
        """Kill the stager; another one is started."""
        if self._is_used and self._agent.living and not self.has_left:
            self._port = 0
            self._report()
            self.start()

    def refuse(self) -> None:
        """Let memory be short from now on."""
        if self._is_used and self._agent.living and not self.refused:
            self._refuse(FULL)

    def _refuse(self, why: str) -> None:
        self.refused = self.refused or why
        self._port = 0 if self.has_left else self._port
        self._report()

    def leave(self) -> None:
        """Save in memory no longer, since the next round does not."""
        if self._is_used and not self.has_left:
            self.has_left = True
            self._refuse(LEFT)

    # The head's

    def search(self, effect: effects.ChooseCheckpoint) -> tuple[File | None, bool]:
        """Return the newest checkpoint for a round or the end of the job, and whether it is in
        memory. Before a round, all agents get it into their memory, as far as possible.
        """
        training, avoid = self._sim.training, dict(effect.avoid)
        me, plan = self._agent.control.index, self._sim.plan
        if not effect.agents:
            return training.newest_complete(None, avoid), not self.has_left
        if not effect.stages and not self.has_left:
            is_empty = not training.directory
            if is_empty or self._rng.random() >= plan.unflushed:
                self.leave()
        if self.has_left:
            return training.newest_complete(None, avoid), False
        newest = training.newest_complete(None, avoid)
        if newest is not None:
            for agent in effect.agents:
                if self._rng.random() >= plan.unfetched:
                    newest.held.add(agent)
            if me not in newest.held:
                newest = training.newest_held(me, avoid)
        return newest, True

    def flush(self, number: int) -> None:
        wait = self._rng.uniform(0.0, FLUSH)
        flushed = events.StageFlushed(number=number)
        self._sim.after(wait, lambda: self._agent.deliver(flushed))
