"""All orders of a few events, from histories after which little is missing for two heads at once.

The search must find them where a rule is left out.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from search import A_NEWCOMER, ARRIVALS, SCENES, Scene

from hpclaunch.core.consensus.contact import Acknowledged
from hpclaunch.core.consensus.leader_lease import LeaderLease


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_two_heads_never_lead_at_once(scene: Scene) -> None:
    assert not scene.search(scene.quick).broken


LEFT_OUT: dict[str, tuple[Scene, type, str, Any, str]] = {
    "a newcomer may follow another head": (
        *(A_NEWCOMER, LeaderLease, "_is_only_head", lambda lease: lease.tenure == 0),
        "0a and 1a lead at the same time",
    ),
    "one that has not answered yet counts": (
        *(ARRIVALS, Acknowledged, "first_sent_at", lambda _: -math.inf),
        "0a has lost its lease, and no time has passed",
    ),
}


@pytest.mark.parametrize(
    ("scene", "where", "name", "instead", "broken"), LEFT_OUT.values(), ids=LEFT_OUT
)
def test_it_finds_what_is_wrong_without_a_rule(
    scene: Scene,
    where: type,
    name: str,
    instead: Any,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, name, property(instead, lambda _, value: None), raising=False)
    assert broken in scene.search(3).broken
