"""The dumps of torch's flight recorder, parsed."""

from __future__ import annotations

import pytest

from hpclaunch.core.hangs.flight_records import awaited


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


def test_what_comes_before_one_that_is_done_is_done():
    some = [entry(3, name="nccl:all_gather", retired=False), entry(3, name="nccl:coalesced")]
    assert awaited({"entries": [*some, entry(4, retired=False)]}) == ("0", 4, "all_reduce")


def message(number, name, *, retired=False, **fields):
    numbers = {"collective_seq_id": 0, "p2p_seq_id": number}
    return entry(0, name=f"nccl:{name}", retired=retired, is_p2p=True, **numbers | fields)


def test_a_message_that_has_not_come_is_awaited():
    some = [entry(25), message(3, "recv 1<-0"), entry(26, retired=False)]
    assert awaited({"entries": some}) == ("0", 3, "recv 1<-0")


def test_messages_overtake_one_another():
    some = [message(3, "recv 1<-0"), message(4, "send 1->2", retired=True)]
    assert awaited({"entries": some}) == ("0", 3, "recv 1<-0")


def test_messages_that_are_sent_as_one_are_done_with_the_last_entry():
    batch = [message(3, "send 1->2"), message(3, "recv 1<-2")]
    assert awaited({"entries": [*batch, message(3, "coalesced", retired=True)]}) is None
    assert awaited({"entries": batch}) == ("0", 3, "send 1->2")


def test_collectives_and_messages_are_counted_apart():
    some = [message(30, "recv 1<-0", retired=True), entry(4, retired=False)]
    assert awaited({"entries": some}) == ("0", 4, "all_reduce")


def test_names_are_short_and_plain():
    odd = entry(1, name="gloo:\x1b[31m" + 99 * "x", retired=False)
    assert awaited({"entries": [odd]})[2] == "?[31m" + 55 * "x"


@pytest.mark.parametrize(
    "records",
    [
        *(None, {}, {"entries": []}, {"entries": ["?"]}, {"entries": 3}),
        {"entries": [{"process_group": 5, "collective_seq_id": None}]},
        *({"entries": [entry(number, retired=False)]} for number in (1 << 63, -1, "3")),
    ],
)
def test_nothing_that_makes_sense_is_recorded(records):
    assert awaited(records) is None
