"""The sample that an agent makes of the fork server's data about its workers."""

from __future__ import annotations

from hpclaunch.agent.sampling import sample_of


def test_steps_on_gpus_are_no_collectives():
    """A script may give a process group any name, even that of the steps on GPUs."""
    ranks = [
        {"rank": 0, "arrivals": {"gpu:steps": {"1": 5}}, "steps": {"7": 9}, "blind": False},
        {"rank": 1, "arrivals": {"gpu:steps": {"1": 6}}, "steps": ["nonsense"], "blind": False},
    ]
    found = sample_of(ranks, {}, agents=1).arrivals
    assert [(each.members, each.numbers, each.on_gpus) for each in found] == [
        (2, (1,), False),
        (1, (7,), True),
    ]
