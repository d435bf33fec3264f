"""The journals of simulated agents: each is replayed to the same effects, from its begin and from
every state in it, with the beats of quiet times left out.
"""

from __future__ import annotations

import inspect
from collections import defaultdict

import cluster_sim
import pytest
import sim_agent
from sim_plan import draw
from stories import STORIES

from hpclaunch.core.control import Control
from hpclaunch.system.logs.journal import recorder
from hpclaunch.system.logs.journal.recorder import Recorder
from hpclaunch.system.logs.journal.replaying import Decision, NewCore, replay
from hpclaunch.system.logs.journal.writer import Holding
from samples import quick_and_exhaustive

SEEDS = quick_and_exhaustive(range(0, 120, 6), 2)


class Written:
    """What is in the file of an agent, as far as it was written."""

    def __init__(self) -> None:
        self._holding = Holding()
        self.lines: list[bytes] = []

    def take(self, line: bytes) -> None:
        self.lines += self._holding.take(line)

    def whole(self) -> list[bytes]:
        return self.lines + self._holding.rest()


@pytest.fixture
def journals(monkeypatch):
    """Of all agents to come, by name."""
    found: dict[str, Written] = {}

    class Recorded(Control):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            made = inspect.signature(Control).bind(*args, **more).arguments
            written = found[self.member.incarnation] = Written()
            self.recorder = Recorder(written.take, clock=lambda: 0.0)
            self.recorder.began(made, 0.0)
            self.turns = 0

        def handle(self, event, now):
            # The core, but nothing of this class, is what a state is of.
            self.recorder.event(event, now, _bare(self))
            effects = super().handle(event, now)
            self.recorder.effects(effects)
            self.turns += 1
            if self.turns % 3 == 0:
                self.recorder.flush()
            return effects

    monkeypatch.setattr(sim_agent, "Control", Recorded)
    return found


def _bare(core):
    bare = object.__new__(Control)
    bare.__dict__ |= {k: v for k, v in core.__dict__.items() if k not in ("recorder", "turns")}
    return bare


def _finish(sim, journals):
    for agent in sim.agents:
        agent.control.recorder.flush()
    return {name: written.whole() for name, written in journals.items()}


def _check(files):
    count: dict[str, int] = defaultdict(int)
    for name, lines in files.items():
        for each in replay(lines):
            if isinstance(each, Decision):
                assert each.same, (name, each)
                count["beats" if each.beat else "events"] += 1
            elif isinstance(each, NewCore):
                count["states"] += each.resumed
                count["gaps"] += each.quiet > 1.0
    return count


@pytest.mark.parametrize("seed", SEEDS)
def test_every_agent_of_a_seed_is_replayed(seed, journals):
    sim = cluster_sim.Simulation(draw(seed))
    sim.run()
    count = _check(_finish(sim, journals))
    assert count["events"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_from_every_state_on(seed, journals, monkeypatch):
    """A second of quiet is enough here for the beats to be left out."""
    monkeypatch.setattr(recorder, "STRETCH", 0.5)
    sim = cluster_sim.Simulation(draw(seed))
    sim.run()
    _check(_finish(sim, journals))


@pytest.mark.exhaustive
def test_quiet_times_are_left_out(journals, monkeypatch):
    monkeypatch.setattr(recorder, "STRETCH", 0.5)
    gaps = 0
    for seed in range(10):
        sim = cluster_sim.Simulation(draw(seed))
        sim.run()
        gaps += _check(_finish(sim, journals))["gaps"]
        journals.clear()
    assert gaps > 0


@pytest.mark.parametrize("name", STORIES)
def test_every_agent_of_a_story_is_replayed(name, journals):
    sim = cluster_sim.Simulation(STORIES[name])
    sim.run()
    _check(_finish(sim, journals))
