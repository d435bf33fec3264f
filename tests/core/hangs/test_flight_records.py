"""The flight recorder of torch, read."""

from __future__ import annotations

import pytest

from hpclaunch.core.hangs.flight_records import read


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


def test_the_first_collective_that_is_not_done_is_the_one_it_waits_in():
    entries = [entry(25), entry(26, retired=False), entry(27, retired=False)]
    assert read({"entries": entries}) == ((("0", 27),), ("0", 26, "all_reduce"))


def test_one_of_nccl_that_is_completed_is_not_waited_for():
    done = entry(3, name="nccl:all_gather", retired=False, state="completed")
    assert read({"entries": [done]}) == ((("0", 3),), None)


def test_each_group_has_its_own_numbers():
    entries = [entry(25), entry(3, group="2")]
    assert read({"entries": entries}).begun == (("0", 25), ("2", 3))


def test_messages_between_two_ranks_are_no_collectives():
    assert read({"entries": [entry(1, is_p2p=True, retired=False)]}) == ((), None)


@pytest.mark.parametrize("records", [None, {}, {"entries": []}, {"entries": ["?"]}])
def test_nothing_is_recorded(records):
    assert read(records) == ((), None)
