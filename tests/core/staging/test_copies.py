"""The copies of files between nodes: who fetches which file from whom."""

from __future__ import annotations

from collections import Counter

import pytest
from holdings import a_save, have, keep, nodes

from hpclaunch.core.protocol.values import replace
from hpclaunch.core.staging.copies import buddies, is_kept, is_safe, keeping, restoring

SAVE = a_save(100, 0, 1, 2)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("a", {}),
        ("aa", {}),
        ("ab", {0: 1, 1: 0}),
        ("abc", {0: 1, 1: 2, 2: 0}),
        ("aabb", {0: 2, 1: 2, 2: 0, 3: 0}),
        ("aba", {0: 1, 1: 2, 2: 1}),
    ],
)
def test_a_buddy_is_the_next_node_on_another_host(hosts: str, expected: dict[int, int]) -> None:
    assert buddies(dict(enumerate(hosts))) == expected


def test_buddies_keep_what_others_own() -> None:
    holdings = nodes(SAVE)
    fetches = {(f.file.name, f.source, f.node) for f in keeping(SAVE, holdings)}
    assert fetches == {
        *(("last/0", 0, 1), ("last/meta", 0, 1)),
        *(("last/1", 1, 2), ("last/2", 2, 0)),
    }
    assert not is_safe(SAVE, holdings)
    holdings = [
        keep(holdings[0], SAVE, "last/2"),
        keep(holdings[1], SAVE, "last/0", "last/meta"),
        keep(holdings[2], SAVE, "last/1"),
    ]
    assert keeping(SAVE, holdings) == []
    assert is_safe(SAVE, holdings)
    assert is_kept(SAVE, holdings)


def test_another_buddy_is_chosen_after_a_loss() -> None:
    holdings = [keep(h, SAVE) for h in nodes(SAVE)]
    left = [replace(h, kept=()) for h in holdings if h.node != 1]
    fetches = {(f.file.name, f.source, f.node) for f in keeping(SAVE, left)}
    assert fetches == {("last/0", 0, 2), ("last/meta", 0, 2), ("last/2", 2, 0)}  # 1 is lost
    # Node 0 keeps that of node 1, so a loss of node 0 would be one too many for a part of it.
    assert is_safe(SAVE, holdings[:1]) is False
    assert is_safe(SAVE, holdings[::2])


def test_a_node_on_the_same_host_is_no_help() -> None:
    save = a_save(100, 0)
    holdings = nodes(save, hosts="aab")
    holdings[1] = keep(holdings[1], save)
    assert not is_safe(save, holdings)
    assert is_kept(save, holdings)
    assert {f.node for f in keeping(save, holdings)} == {2}


def test_a_script_that_has_written_its_file_again_changes_nothing() -> None:
    save = a_save(100, 0)
    holdings = nodes(save)
    holdings[1] = keep(holdings[1], save)
    holdings[0].files["last/0"] = (10, 200)
    assert is_safe(save, holdings)
    assert keeping(save, holdings) == []


def test_a_file_without_a_holder_is_not_fetched() -> None:
    holdings = nodes(SAVE)
    del holdings[1].files["last/1"]
    assert "last/1" not in {f.file.name for f in keeping(SAVE, holdings)}


# Restores


def restored(save, holdings, wanted):
    """Apply waves until there is none. Return them, and the nodes."""
    waves = []
    while wave := restoring(save, holdings, wanted):
        waves.append(wave)
        for fetch in wave:
            holdings[fetch.node].files[fetch.file.name] = fetch.file.identity
    return waves, holdings


def test_all_nodes_of_the_round_get_all_files() -> None:
    waves, holdings = restored(SAVE, nodes(SAVE, hosts="abcd"), [0, 2, 3])
    assert len(waves) == 1
    assert all(h.has(f) for h in holdings for f in SAVE.files if h.node != 1)
    assert holdings[1].files.keys() == {"last/1"}
    given = Counter(f.source for f in waves[0])
    assert max(given.values()) - min(given.values()) <= 3  # two files of node 0, one of the others


def test_holders_share_the_load() -> None:
    save = a_save(100, *(0 for _ in range(12)))
    holdings = nodes(save)
    holdings[1] = have(holdings[1], save)
    given = Counter(f.source for wave in restored(save, holdings, [2])[0] for f in wave)
    assert abs(given[0] - given[1]) <= 1


def test_many_nodes_fetch_one_file_from_each_other() -> None:
    """Two from the first holder, then two from each of three, and so on."""
    save = a_save(100, 0, size=1000)
    waves, _ = restored(save, nodes(save, hosts="abcdefghijkl"), range(12))
    assert [sum(f.file.size == 1000 for f in wave) for wave in waves] == [2, 6, 3]


def test_a_node_takes_its_own_copy() -> None:
    save = a_save(100, 0)
    holdings = nodes(save)
    holdings[1] = keep(holdings[1], save)
    wave = restoring(save, holdings[1:], [1, 2])
    assert {(f.node, f.source, f.kept) for f in wave} == {
        (1, 1, save.generation),
        (2, 1, save.generation),
    }


def test_an_older_file_of_the_name_is_replaced() -> None:
    save = a_save(200, 0)
    holdings = nodes(save)
    holdings[1].files["last/0"] = (10, 100)
    assert ("last/0", 1) in {(f.file.name, f.node) for f in restoring(save, holdings, [0, 1])}
