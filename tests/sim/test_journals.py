"""The journals of simulated agents: fed to a core again, each leads to the same effects."""

from __future__ import annotations

from collections import defaultdict

import cluster_sim
import pytest
import sim_agent
from sim_plan import draw
from stories import STORIES

from hpclaunch.core.control import Control
from hpclaunch.system.logs import journal
from journals import feed
from samples import quick_and_exhaustive

SEEDS = quick_and_exhaustive(range(0, 120, 6), 1)


@pytest.fixture
def journals(monkeypatch):
    """The lines of all agents to come."""
    found: dict[str, list[bytes]] = defaultdict(list)

    class Recorded(Control):
        def __init__(self, own):
            super().__init__(own)
            self.recorder = journal.Recorder(found[own.incarnation].append, lambda: 0.0)
            self.recorder.began(own, 0.0)

        def handle(self, event, now):
            self.recorder.event(event, now)
            effects = super().handle(event, now)
            self.recorder.effects(effects, self)
            return effects

    monkeypatch.setattr(journal, "WHOLE", True)
    monkeypatch.setattr(sim_agent, "Control", Recorded)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_agent_of_a_seed(seed, journals):
    cluster_sim.Simulation(draw(seed)).run()
    assert sum(map(feed, journals.values())) > 0


@pytest.mark.parametrize("name", STORIES)
def test_every_agent_of_a_story(name, journals):
    cluster_sim.Simulation(STORIES[name]).run()
    assert sum(map(feed, journals.values())) > 0
