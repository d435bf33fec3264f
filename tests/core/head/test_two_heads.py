"""Agents that come while heads change follow one head, and count for one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from crew import Crew

from hpclaunch.core.protocol import events


class OneWayCrew(Crew):
    """Messages are lost in one direction, or in both."""

    def __init__(self, hosts: str, **settings: Any) -> None:
        self.deaf: set[tuple[int, int]] = set()  # (who sends, who does not hear it)
        self.both: list[tuple[float, list[int]]] = []  # when several held their leader leases
        super().__init__(hosts, **settings)

    def _reaches(self, one: int, other: int) -> bool:
        return (one, other) not in self.deaf

    def part(self, some: Iterable[int], others: Iterable[int]) -> None:
        self.deaf |= {pair for a in some for b in others for pair in ((a, b), (b, a))}

    def join(self, some: Iterable[int], others: Iterable[int]) -> None:
        self.deaf -= {pair for a in some for b in others for pair in ((a, b), (b, a))}

    def feed(self, agent: int, event: events.Event) -> None:
        super().feed(agent, event)
        leads = [i for i, a in self.agents.items() if a.head and a.head.state.lease.holds(self.now)]
        if len(leads) > 1:
            self.both.append((self.now, leads))


@pytest.mark.parametrize(
    ("fewest", "heard_at"), [(3, 14.5), (3, 17.5), (2, None)], ids=["early", "late", "never"]
)
def test_a_newcomer_does_not_count_for_a_head_that_has_lost_its_lease(fewest, heard_at):
    """Another was elected meanwhile, whom it may follow. The old one has a voter back."""
    crew = OneWayCrew("n0 n1 n2 n3 n4", fewest=fewest)
    crew.start(0, 1, 2, 3)
    crew.part([4], range(4))
    crew.until(7.6)
    crew.start(4)
    crew.until(10.0)
    crew.part([0], [1, 2, 3])
    crew.until(14.0)
    crew.deaf.add((1, 2))  # the order of the new head is late
    if heard_at == 14.5:
        crew.until(14.5)
        crew.deaf.discard((4, 0))  # what the old one answers is lost
    crew.until(14.7)
    assert crew.heads == [0, 1]
    crew.join([0], [2])
    crew.until(17.5)
    crew.join([4], [1, 2, 3])
    if heard_at == 17.5:
        crew.deaf.discard((4, 0))
    crew.until(26.0 if heard_at else 60.0)
    assert not crew.clashes
    assert not crew.both


def test_nor_for_a_first_agent_that_was_started_anew():
    crew = OneWayCrew("n0 n1 n2 n3 n4", fewest=3, most=3, last_call=30.0)
    crew.part([4], range(4))
    crew.checkpoint = None
    crew.start(0, 1, 2, 3)
    crew.until(0.9)
    crew.start(4)
    crew.deaf.add((1, 2))
    crew.part([0], [1, 3])
    crew.until(1.0)
    crew.kill(0, down=True)
    crew.until(6.9)
    crew._down.clear()
    crew.start(0, anew=True)
    crew.checkpoint = ""
    crew.until(10.89)
    crew.join([4], [1, 2, 3])
    crew.deaf.discard((4, 0))
    crew.until(17.0)
    assert not crew.clashes
    assert not crew.both
