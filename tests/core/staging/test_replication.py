"""The replication of checkpoints while workers run."""

from __future__ import annotations

from holdings import a_save, have, keep, nodes

from hpclaunch.core.protocol.values import replace
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import LastRestore
from hpclaunch.core.staging.replication import (
    Delete,
    Drop,
    DropFetched,
    Keep,
    KeepEnded,
    Replication,
    Survey,
)

FIRST, SECOND, THIRD = (a_save(time, 0, key=f"step-{time}") for time in (100, 200, 300))


def surveyed(*surveys: Survey) -> tuple[Replication, list]:
    """Return the replication after these looks, and the effects of the last."""
    core, effects = Replication(leader=0), []
    for survey in surveys:
        effects = core.handle(survey)
    return core, effects


def test_a_generation_is_kept_once_two_looks_have_shown_it() -> None:
    survey = Survey([FIRST], nodes(FIRST))
    core, effects = surveyed(survey)
    assert effects == []
    (effect,) = core.handle(survey)
    assert isinstance(effect, Keep)
    assert (effect.node, effect.manifest) == (1, FIRST)
    assert core.handle(survey) == []  # it has not answered
    core.handle(KeepEnded(1, is_done=False))
    assert core.handle(survey) == [effect]


def test_a_generation_that_was_begun_is_finished_first() -> None:
    survey = Survey([SECOND, FIRST], nodes(FIRST, SECOND))
    core, _ = surveyed(Survey([FIRST], nodes(FIRST)), Survey([FIRST], nodes(FIRST)), survey)
    core.handle(KeepEnded(1, is_done=True))
    (effect,) = core.handle(survey)
    assert effect.manifest == FIRST
    core.handle(KeepEnded(1, is_done=False))
    (effect,) = core.handle(survey)
    assert effect.manifest == SECOND


def test_the_safe_one_stays_until_the_next_is_safe() -> None:
    holdings = nodes(FIRST, SECOND)
    holdings[1] = keep(holdings[1], FIRST)
    survey = Survey([SECOND, FIRST], holdings)
    core, effects = surveyed(survey, survey)
    assert [type(e) for e in effects] == [Keep]
    core.handle(KeepEnded(1, is_done=True))
    holdings[1] = keep(holdings[1], SECOND)
    assert core.handle(survey) == [Drop(1, FIRST.generation)]


def test_a_node_makes_room_before_it_keeps_another() -> None:
    holdings = nodes(FIRST, SECOND, THIRD)
    holdings[1] = keep(keep(holdings[1], FIRST), SECOND)
    survey = Survey([THIRD, SECOND, FIRST], holdings)
    core, effects = surveyed(survey, survey)
    assert effects == [Drop(1, FIRST.generation)]
    holdings[1] = replace(holdings[1], kept=holdings[1].kept[1:])
    assert [type(e) for e in core.handle(survey)] == [Keep]


def test_a_copy_that_cannot_be_finished_is_dropped() -> None:
    holdings = nodes(FIRST, THIRD)  # the script has deleted SECOND
    holdings[1] = keep(keep(holdings[1], FIRST), SECOND, "step-200/0")
    survey = Survey([THIRD, FIRST], holdings)
    assert surveyed(survey, survey)[1] == [Drop(1, SECOND.generation)]


def test_only_unused_copies_of_a_restore_are_dropped() -> None:
    restore = LastRestore(1, frozenset(range(3)), FIRST.generation)
    by_node_1 = a_save(200, 1, key="step-200")
    holdings = [have(h, FIRST, old=True) for h in nodes(by_node_1, restore=restore)]
    holdings = [replace(h, fetched=h.old) for h in holdings]
    holdings[2] = keep(holdings[2], by_node_1)
    survey = Survey([by_node_1, FIRST], holdings)
    # Node 0 leads, and node 1 has saved.
    assert surveyed(survey, survey)[1] == [DropFetched(2, FIRST.essential)]


# What the script deletes


def test_what_the_script_deletes_is_deleted_everywhere() -> None:
    save = a_save(100, 0, 1)
    holdings = nodes(save)
    survey = Survey([save], holdings)
    core, _ = surveyed(survey, survey)
    left = [replace(holdings[0], files={}), *holdings[1:]]
    effects = [e for e in core.handle(Survey([], left)) if isinstance(e, Delete)]
    assert effects == [Delete(save, {1: (save.files[1],)})]
    done = [replace(h, files={}) for h in holdings]
    assert [e for e in core.handle(Survey([], done)) if isinstance(e, Delete)] == [Delete(save, {})]
    assert core.handle(Survey([], done)) == []


def test_what_a_tracker_still_names_is_deleted_once() -> None:
    """The script has not yet written the tracker again."""
    save = a_save(100, 0)
    named = replace(save, files=(*save.files, StagedFile("latest", 6, 102)))
    holdings = nodes(named)
    left = [replace(h, files={"latest": (6, 102)} if not h.node else {}) for h in holdings]
    core, effects = surveyed(Survey([named], holdings), Survey([], left))
    assert effects == [Delete(named, {})]
    assert core.handle(Survey([], left)) == []


def test_what_only_one_look_has_shown_may_be_deleted() -> None:
    save = a_save(100, 0, 1)
    holdings = nodes(save)
    left = [replace(holdings[0], files={}), *holdings[1:]]
    effects = surveyed(Survey([save], holdings), Survey([], left))[1]
    assert effects == [Delete(save, {1: (save.files[1],)})]


def test_what_is_left_of_a_checkpoint_that_was_never_complete_is_deleted_too() -> None:
    partial = a_save(100, 0, 1)
    holdings = nodes(partial, SECOND)
    left = [nodes(SECOND)[0], *holdings[1:]]
    for found, expected in ([SECOND], [Delete(partial, {1: (partial.files[1],)})]), ([], []):
        survey, after = Survey(found, holdings, [partial]), Survey(found, left)
        effects = surveyed(survey, after)[1]
        assert [e for e in effects if isinstance(e, Delete)] == expected


def test_what_a_failed_restore_has_removed_is_not_deleted_by_the_script() -> None:
    holdings = nodes(FIRST)
    core, _ = surveyed(Survey([FIRST], holdings))
    removed = [replace(holdings[0], files={}), *holdings[1:]]
    assert core.finish([FIRST], holdings) == []
    assert core.finish([], removed) == []


def deletions(before: list, after: list) -> list:
    survey = Survey([FIRST], before)
    core, _ = surveyed(survey, survey)
    return [e for e in core.handle(Survey([], after)) if isinstance(e, Delete)]


def test_a_node_that_is_lost_has_deleted_nothing() -> None:
    holdings = nodes(FIRST)
    assert deletions(holdings, holdings[1:]) == []


def test_a_node_that_returns_with_nothing_has_deleted_nothing() -> None:
    holdings = nodes(FIRST)
    new = replace(holdings[0], files={}, restore=LastRestore())
    assert deletions(holdings, [new, *holdings[1:]]) == []


def test_a_node_on_which_no_worker_has_run_has_deleted_nothing() -> None:
    holdings = nodes(FIRST)
    left = frozenset(holdings[0].files)  # by a restore that has failed
    holdings[0] = replace(holdings[0], restore=LastRestore(), fetched=left)
    new = replace(holdings[0], files={}, fetched=frozenset())
    assert deletions(holdings, [new, *holdings[1:]]) == []


def test_a_file_that_is_written_again_is_not_deleted() -> None:
    holdings = nodes(FIRST)
    again = replace(holdings[0], files={"step-100/0": (10, 150)})  # the other one is to follow
    assert deletions(holdings, [again, *holdings[1:]]) == []


def test_copies_that_were_dropped_are_not_deleted_by_the_script() -> None:
    restore = LastRestore(1, frozenset(range(3)), FIRST.generation)
    holdings = [have(h, FIRST, old=True) for h in nodes(SECOND, restore=restore)]
    holdings[2] = replace(holdings[2], fetched=holdings[2].old)
    holdings[1] = keep(holdings[1], SECOND)
    survey = Survey([SECOND, FIRST], holdings)
    core, effects = surveyed(survey, survey)
    assert effects == [DropFetched(2, FIRST.essential)]
    holdings[2] = replace(holdings[2], files={}, old=frozenset(), fetched=frozenset())
    assert core.handle(survey) == []
