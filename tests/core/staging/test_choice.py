"""The choice among what living nodes hold, and the checkpoints that may be mixtures."""

from __future__ import annotations

from holdings import a_save, have, keep, nodes

from hpclaunch.core.protocol.values import replace
from hpclaunch.core.staging.choice import choice, mixtures, outdated, shown
from hpclaunch.core.staging.generations import LastRestore, manifest

OLD, NEW = a_save(100, 0, 1), a_save(200, 0, 1)


def test_the_newest_of_the_view_and_of_the_kept_ones_is_chosen() -> None:
    holdings = nodes(OLD)
    assert choice([OLD], holdings) == OLD
    holdings[2] = keep(holdings[2], NEW)
    assert choice([OLD], holdings) == NEW
    assert choice([], nodes()) is None


def test_among_equals_the_view_has_the_owners_of_today() -> None:
    restored = a_save(100, 2, 1)
    holdings = nodes(restored)
    holdings[1] = keep(holdings[1], OLD)
    assert OLD.generation == restored.generation
    assert choice([restored], holdings) is restored


def test_each_file_needs_a_living_holder_of_the_same_identity() -> None:
    holdings = nodes(NEW)
    holdings[1] = keep(holdings[1], NEW, "last/0", "last/meta")
    assert choice([], holdings) == NEW
    assert choice([], holdings[1:]) == NEW
    assert choice([], [holdings[0], holdings[2]]) is None
    holdings[1].files["last/1"] = (10, 300)  # written again
    assert choice([], holdings) is None


def test_what_is_kept_for_another_generation_does_not_count() -> None:
    """The shard of NEW may be that of a save of which the rest has been written again."""
    mixed = manifest("last", [NEW.files[0], OLD.files[1], NEW.files[2]], "last/meta", NEW.essential)
    holdings = nodes(NEW)
    holdings[2] = keep(keep(holdings[2], OLD, "last/1"), mixed, "last/0")
    assert choice([], holdings) is None


def test_a_checkpoint_with_which_the_job_has_failed_is_passed_over() -> None:
    other = a_save(50, 0, key="other")
    holdings = nodes(OLD, other)
    holdings[2] = keep(holdings[2], NEW)
    assert choice([OLD, other], holdings, avoid=["last"]) == other


def test_the_search_orders_what_is_in_the_view() -> None:
    """The search knows steps, and clocks of nodes differ."""
    later = a_save(101, 0, key="later")
    holdings = nodes(OLD, later)
    holdings[1] = keep(holdings[1], later)
    assert choice([OLD, later], holdings) == OLD


# The view


def test_the_view_shows_what_was_saved_last() -> None:
    holdings = nodes(OLD, old=True)
    holdings[0] = have(holdings[0], OLD, old=True)
    holdings[2].files["last/1"] = (10, 90)  # its clock is behind
    assert shown(holdings)["last/1"] is holdings[2]


def test_a_node_that_has_returned_shows_only_what_nobody_else_has() -> None:
    holdings = nodes(OLD)
    back = have(replace(holdings[2], restore=LastRestore()), a_save(150, 2, 2, 2))
    view = shown([*holdings[:2], back])
    assert [view[f"last/{rank}"].node for rank in range(3)] == [0, 1, 2]


# Mixtures

MIXED = manifest("last", [NEW.files[0], OLD.files[1], NEW.files[2]], "last/meta", NEW.essential)


def after_a_save(hosts: str = "abc") -> list:
    """Return nodes that had OLD at the last restore. Node 0 has saved its part of NEW since."""
    holdings = [have(h, OLD, old=True) for h in nodes(hosts=hosts)]
    for file in NEW.files[0], NEW.files[2]:
        holdings[0].files[file.name] = file.identity
        holdings[0] = replace(holdings[0], old=holdings[0].old - {file.name})
    return holdings


def test_the_newer_file_may_be_lost_with_a_node() -> None:
    holdings = after_a_save()
    assert mixtures([MIXED], holdings) == []  # all have the other file as it was
    assert mixtures([MIXED], [holdings[0], holdings[2]]) == [MIXED]
    assert choice([MIXED], [holdings[0], holdings[2]]) is None


def test_the_script_may_have_deleted_the_newer_file() -> None:
    holdings = after_a_save()
    del holdings[1].files["last/1"]
    assert mixtures([MIXED], holdings) == [MIXED]


def test_a_restore_that_has_failed_leaves_files() -> None:
    holdings = nodes(NEW)
    holdings[1].files["last/1"] = OLD.files[1].identity
    holdings[1] = replace(holdings[1], fetched=frozenset({"last/1"}))
    assert mixtures([MIXED], holdings) == [MIXED]


def test_what_is_known_is_no_mixture() -> None:
    holdings = after_a_save()[::2]
    holdings[1] = keep(holdings[1], MIXED, "last/0")
    assert mixtures([MIXED], holdings) == []
    holdings = [
        replace(h, restore=LastRestore(1, frozenset(range(3)), OLD.generation)) for h in holdings
    ]
    assert mixtures([OLD], holdings) == []


def test_files_of_a_node_that_was_not_there_do_not_count() -> None:
    holdings = nodes(OLD)
    holdings[1] = replace(holdings[1], restore=LastRestore())
    holdings[0] = replace(holdings[0], restore=LastRestore(1, frozenset({0, 2})))
    holdings[2] = replace(holdings[2], restore=holdings[0].restore)
    assert mixtures([OLD], holdings) == [OLD]


# What nodes remove with a restore


def test_nothing_newer_than_the_choice_is_left() -> None:
    holdings = after_a_save()[::2]  # node 1 is lost
    holdings[1].files |= {"last/2": (10, 150), "log": (1, 1)}
    removed = outdated([], [MIXED], holdings, [0, 2])
    assert removed == {0: {"last/meta"}, 2: {"last/0", "last/meta"}}
    removed = outdated([OLD], [MIXED], holdings, [0, 2])
    assert removed == {0: set(), 2: {"last/2"}}  # a shard of a save by more nodes


def test_a_node_that_gets_no_files_keeps_none_of_another_save() -> None:
    """The others have restored an older one while it was cut off."""
    holdings = after_a_save()
    removed = outdated([OLD], [MIXED], holdings, [1, 2])
    assert removed[0] == {f.name for f in OLD.files if not holdings[0].has(f)}
    assert removed[0]
