"""Messages as bytes: what goes in comes out, and nothing else comes out."""

import contextlib
import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.head.restarts import Budget
from hpclaunch.core.protocol.configuration import Configuration, JobRecord, Voters
from hpclaunch.core.protocol.events import CheckpointChosen
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.messages import Order, Report
from hpclaunch.core.protocol.model import (
    Answer,
    Assignment,
    Evidence,
    Failure,
    Goal,
    Load,
    Origin,
    Phase,
    Query,
    QueryKind,
    RankState,
    RankVitals,
    Sample,
    Tally,
    Trouble,
    Verdict,
    Vitals,
    WorkerExit,
)
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.network import wire

ASSIGNMENT = Assignment(
    1, 1, 4, 2, 8, 0, 2, 2, 4, "2(x4)", "10.0.0.3", "10.0.0.1", 4242, False, "/c/e.pt"
)
FAILURE = Failure(1, 3, "n2", 137, 9, 12.5, "last words é")
REPORT = Report(
    host="n2",
    incarnation="f00d",
    serial=9,
    nproc=2,
    address="10.0.0.3",
    head_address="10.0.0.1",
    store_port=4243,
    round=1,
    phase=Phase.STOPPING,
    exits=(WorkerExit(4, 137, 9, 0.25, False, "Killed\n"),),
    stop_signal=0,
    trouble=Trouble(Origin.TROUBLE, "no disk"),
)
CONFIGURATION = Configuration(
    8,
    Voters(0, "0-3"),
    Voters(1, "1-3"),
    JobRecord(
        7,
        Tally(
            *(3, 1),
            checkpoint=2**32 - 1,
            failed=True,
            last_line=2**31,
            host="n2",
            failures_in_a_row=2,
        ),
    ),
)


VITALS = Vitals(
    (RankVitals(2, "step", 7, 1007, 0.5, 1 << 33), RankVitals(3, "other", 0, 0, 0.0, 0)),
    (GpuUse(None, 1, 2, 60, 300.5), GpuUse(0.5, 1 << 36, 1 << 37, 60, 0.0)),
)
EVIDENCE = Evidence((RankState(2, "a.py:9, f", "S", waits=("0", 7, "all_reduce")),))
ANSWERS = (
    Answer(Query(QueryKind.VITALS, 3), VITALS),
    Answer(Query(QueryKind.EVIDENCE, 4), EVIDENCE),
    Answer(Query(QueryKind.SAMPLE, 5), Sample(0.5, loads=(Load(2, 1.0, 0.0, 0.0, 0.0),))),
)


def with_tally(tally):
    return replace(CONFIGURATION, record=JobRecord(7, tally))


ORDERS = [
    Order(1, 1, "f00d", Goal.WAIT, 0),
    Order(1, 2, "f00d", Goal.RUN, 1, assignment=ASSIGNMENT),
    Order(
        1,
        3,
        "f00d",
        Goal.END,
        1,
        verdict=Verdict(137, "why", Origin.FAILURE, FAILURE, (FAILURE,), 3),
    ),
    Order(1, 4, "f00d", Goal.WAIT, 1, configuration=CONFIGURATION),
    Order(1, 4, "f00d", Goal.RUN, 1, queries=tuple(answer.query for answer in ANSWERS)),
    Order(
        *(1, 5, "f00d", Goal.WAIT, 1),
        configuration=with_tally(
            replace(
                CONFIGURATION.record.tally,
                pending_verdict=Verdict(137, "why", Origin.FAILURE, FAILURE),
            )
        ),
    ),
]


OLD_NAME = os.fsdecode(b"/c/gr\xf6\xdfe.pt")  # in Latin-1
OF_OLD_NAMES = [
    replace(REPORT, trouble=Trouble(Origin.USAGE, f"on n2: no script {OLD_NAME}")),
    Order(1, 2, "f00d", Goal.RUN, 1, assignment=replace(ASSIGNMENT, checkpoint=OLD_NAME)),
]


@pytest.mark.parametrize(
    "message", [REPORT, replace(REPORT, answers=ANSWERS), *ORDERS, *OF_OLD_NAMES]
)
def test_there_and_back(message):
    assert wire.decode(wire.encode(message)) == message


def test_what_a_successor_has_to_know_is_small():
    """The size is small for any paths and words, since each agent of a large job gets them."""
    budget = Budget(3)
    budget.begin(CheckpointChosen(f"/{'long/' * 800}/1.pt"))
    failure = replace(FAILURE, tail=f"ValueError: {'x' * 4000}", signal=0, code=1)
    assert budget.spend([failure], saves=True) is None
    data = wire.encode(Order(1, 4, "f00d", Goal.WAIT, 1, configuration=with_tally(budget.tally)))
    assert len(data) < 800


def altered(**changes) -> bytes:
    envelope = json.loads(wire.encode(REPORT))
    body = changes.pop("body", {})
    envelope["body"].update(body)
    return json.dumps({**envelope, **changes}).encode()


def packed(body) -> bytes:
    return json.dumps({**json.loads(wire.encode(REPORT)), "body": body}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",  # a pickle
        b"{}",
        b"[]",
        altered(kind="pickle"),
        altered(kind="order"),
        altered(body={"nproc": "2"}),
        altered(body={"phase": "dancing"}),
        altered(body={"exits": [{"rank": 1}]}),
        altered(body={"serial": None}),
        altered(body={"serial": math.pi}),
        packed(""),
        packed("nonsense"),
        packed("[]"),
        packed('{"host": "\\udcff"}'),
        packed("[" * 10_000),
        packed("1" * 5_000),
        altered(version=int("1" * 4_000)),
        wire.encode(REPORT)[:-3],
    ],
)
def test_anything_else_is_refused(data):
    with pytest.raises(wire.WireError):
        wire.decode(data)


def test_another_version_says_what_to_do():
    with pytest.raises(wire.WireError, match="install the same hpclaunch on all nodes"):
        wire.decode(altered(version=wire.VERSION + 1))


def test_the_size_is_limited():
    with pytest.raises(wire.WireError, match="over the limit"):
        wire.decode(altered(body={"address": "x" * wire.MAX_BYTES}))


@pytest.mark.fuzz
@given(st.binary(max_size=300))
def test_noise_never_does_harm(data):
    with pytest.raises(wire.WireError):
        wire.decode(data)


@pytest.mark.fuzz
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_one_wrong_byte_never_does_harm(position, value):
    data = bytearray(wire.encode(REPORT))
    data[position % len(data)] = value
    with contextlib.suppress(wire.WireError):
        assert isinstance(wire.decode(bytes(data)), Report)
