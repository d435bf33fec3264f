"""All orders of a few events, from histories after which little is missing for two heads at once.

The search must find them where a rule is left out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from search import (
    ELECTED_AND_LEFT,
    HALF_ARE_LEFT,
    ONE_IS_MISSING,
    OTHERS_BESIDE,
    SCENES,
    THREE_ARE_LEFT,
    TWO_DEATHS,
    BrokenLawError,
    Cluster,
    Limits,
    Scene,
    parsed,
)

from hpclaunch.core.consensus import leader_lease, quorum
from hpclaunch.core.consensus.follower import Follower
from hpclaunch.core.consensus.leader_lease import LeaderLease
from hpclaunch.core.consensus.presence import Presence
from hpclaunch.core.consensus.quorum import Dead
from hpclaunch.core.protocol.configuration import Configuration, Voters


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_two_heads_never_lead_at_once(scene: Scene) -> None:
    assert not scene.search(scene.quick).broken


def count_no_dead(
    voters: Voters, dead: Dead, _: float, *, at_once: bool
) -> list[tuple[frozenset[int], int]]:
    living = voters.members.difference(dead)
    return [(living, len(living) // 2 + 1)]


def half_replaces(configuration: Configuration, have_it: Collection[int], *_: Any) -> bool:
    assert configuration.old is not None
    members = configuration.old.members
    return 2 * len(members.intersection(have_it)) >= len(members)


def exclude_last(presence: Presence, start: Any = Presence.start_anew, **_: bool) -> None:
    start(presence, excludes_last=True)


ALWAYS = property(lambda _: True, lambda _, value: None)
LEFT_OUT: dict[str, tuple[Scene, Any, str, Any]] = {
    "all but one of the dead count": (TWO_DEATHS, quorum, "_majorities", count_no_dead),
    "less than half are without": (HALF_ARE_LEFT, leader_lease, "replaces_old", half_replaces),
    "the same of six": (THREE_ARE_LEFT, leader_lease, "replaces_old", half_replaces),
    "claims may differ": (OTHERS_BESIDE, Presence, "start_anew", exclude_last),
    "none follows an older one": (ELECTED_AND_LEFT, Follower, "_is_behind", lambda *_: False),
    "a voter is one start": (ONE_IS_MISSING, Presence, "has_configuration", ALWAYS),
}


@pytest.mark.parametrize(("scene", "where", "name", "instead"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_it_finds_what_is_wrong_without_a_rule(
    scene: Scene, where: Any, name: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, instead, raising=False)
    assert "lead at the same time" in scene.search(3).broken


def test_a_lease_ends_with_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that lists agents that have not come yet has no quorum of them."""
    monkeypatch.setattr(LeaderLease, "_is_there", lambda *_: True)
    with pytest.raises(BrokenLawError, match="0a has lost its lease, and no time has passed"):
        Cluster(3, Limits(), absent=2)


# Agent 1 is cut off from the head. It knows that agent 3 is dead, and not that another start of it
# has a vote. It is elected, and agent 6 goes back to the first head.
EVERYBODY = "talk 2 0, talk 3 0, talk 4 0, talk 5 0, talk 6 0, beat 0, "
WITHOUT_3 = "talk 2 0, talk 4 0, talk 5 0, talk 6 0, beat 0, "
OLD_PROOF = (
    f"pass, {EVERYBODY} pass, {EVERYBODY} {EVERYBODY} kill 3, prove 3 0, beat 0, {WITHOUT_3} "
    f"{WITHOUT_3} pass, prove 3 1, {WITHOUT_3} start 3, talk 3 0, beat 0, "
    f"{EVERYBODY} {EVERYBODY} {EVERYBODY} pass, {EVERYBODY} pass, {EVERYBODY} {EVERYBODY} pass, "
    "talk 3 0, beat 0, pass, talk 3 0, beat 0, pass, talk 3 0, beat 0, talk 3 0, "
    "talk 6 1, talk 2 1, talk 4 1, talk 5 1, talk 2 1, talk 4 1, talk 5 1, "
    "talk 6 0, talk 6 0, talk 3 0, talk 6 0, beat 0"
)


def test_a_later_start_of_a_dead_agent_counts() -> None:
    cluster = Cluster(7, Limits(kills=1, starts=1))
    for action in parsed(OLD_PROOF):
        cluster.do(action)  # raises if two heads lead
    assert cluster.heads() == ["0a"]
