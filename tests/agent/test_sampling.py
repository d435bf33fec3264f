"""What an agent makes of what the fork server has found out about its workers."""

from __future__ import annotations

from hpclaunch.agent.sampling import sample_of


def test_steps_on_gpus_are_no_collectives():
    """The script chooses the names of process groups."""
    ranks = [
        {"rank": 0, "arrivals": {"gpu:steps": {"1": 5}}, "steps": {"7": 9}, "blind": False},
        {"rank": 1, "arrivals": {"gpu:steps": {"1": 6}}, "steps": ["nonsense"], "blind": False},
    ]
    found = sample_of(ranks, {}, agents=1).arrivals
    assert [(each.members, each.numbers, each.on_gpus) for each in found] == [
        (2, (1,), False),
        (1, (7,), True),
    ]
