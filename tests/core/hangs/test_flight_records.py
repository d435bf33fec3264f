"""The flight recorder of torch, read."""

from __future__ import annotations

import pytest

from hpclaunch.core.hangs.flight_records import awaited, entries


def entry(number, *, group="0", name="gloo:all_reduce", retired=True, **fields):
    return {
        "collective_seq_id": number,
        "process_group": [group, "default_pg"],
        "profiling_name": name,
        "retired": retired,
        "state": "scheduled",
        "is_p2p": False,
        **fields,
    }


def test_the_first_collective_that_is_not_done_is_awaited():
    some = [entry(25), entry(26, group="2", retired=False), entry(27, retired=False)]
    assert awaited({"entries": some}) == ("2", 26, "all_reduce")


def test_one_of_nccl_that_is_completed_is_not_awaited():
    done = entry(3, name="nccl:all_gather", retired=False, state="completed")
    assert awaited({"entries": [done]}) is None


def test_messages_between_two_ranks_are_no_collectives():
    assert awaited({"entries": [entry(1, is_p2p=True, retired=False)]}) is None


@pytest.mark.parametrize("records", [None, {}, {"entries": []}, {"entries": ["?"]}])
def test_nothing_is_recorded(records):
    assert awaited(records) is None
    assert entries(records) == []
