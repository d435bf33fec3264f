"""Messages as JSON, there and back; whatever does not fit is refused with its name."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args

import pytest

from hpclaunch.worker.messages import Kinds, Message, MessageError, by_op, decode


class Place(Message):
    rank: int
    files: list[str] = []  # noqa: RUF012 frozen


class Grade(str, Enum):
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Reading:
    grade: Grade
    at: int
    pids: tuple[int, ...] = ()


class AwaitStillness(Message):
    seconds: tuple[float, ...]
    places: list[Place]
    pids: dict[int, int]
    program: str | None = None
    more: Any = None
    reading: Reading = Reading(Grade.OK, 1)


class Stop(Message):
    now: bool = True


Request = AwaitStillness | Stop
REQUESTS: Kinds[Request] = by_op(get_args(Request))
EXAMPLE = AwaitStillness(
    (1.5, 2),
    [Place(3, ["a"]), Place(4)],
    {0: 17},
    more={"x": [1]},
    reading=Reading(Grade.OK, 3, (4,)),
)


def sent(message):
    return json.loads(json.dumps(message.encoded()))


def test_a_message_arrives_as_it_was():
    assert decode(REQUESTS, sent(EXAMPLE)) == EXAMPLE
    assert decode(REQUESTS, sent(Stop())) == Stop(now=True) != Stop(now=False)
    assert sent(EXAMPLE)["op"] == "await-stillness"
    assert repr(Stop()) == "Stop(now=True)"


def test_a_message_can_be_matched_and_not_changed():
    match EXAMPLE:
        case AwaitStillness(seconds, [Place(rank=rank), _]):
            assert (seconds, rank) == ((1.5, 2), 3)
    with pytest.raises(AttributeError):
        EXAMPLE.program = "sh"


@pytest.mark.parametrize("wrong", [{}, {"rank": 1, "files": [], "of": 1}])
def test_it_is_made_with_all_of_its_fields(wrong):
    with pytest.raises(TypeError, match="Place"):
        Place(**wrong)
    with pytest.raises(TypeError, match="Place"):
        Place(1, [], 3)
    with pytest.raises(TypeError, match="Place"):
        Place(1, rank=2)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"op": "start"}, "unknown message 'start'"),
        ({"op": None}, "unknown message None"),
        ({"op": ["stop"]}, "unknown message ['stop']"),
        ({"op": {}}, "unknown message {}"),
        ({"seconds": 1.0}, "AwaitStillness.seconds"),
        ({"seconds": ["1"]}, "AwaitStillness.seconds: '1' is not float"),
        ({"seconds": [10**400]}, "AwaitStillness.seconds: 1"),
        ({"seconds": [True]}, "AwaitStillness.seconds"),
        ({"places": [{"rank": "3"}]}, "Place.rank: '3' is not int"),
        ({"places": [{"rank": True}]}, "Place.rank: True is not int"),
        ({"places": [{"files": []}]}, "Place.rank is missing"),
        ({"places": [3]}, "AwaitStillness.places: 3 is not Place"),
        ({"pids": {"x": 1}}, "AwaitStillness.pids: a key is not int"),
        ({"pids": []}, "AwaitStillness.pids"),
        ({"program": 7}, "AwaitStillness.program: 7 is not"),
        ({"reading": {"grade": "bad", "at": 1}}, "Reading.grade: 'bad' is not Grade"),
        ({"reading": {"grade": "ok"}}, "missing 1 required positional argument: 'at'"),
        ({"reading": {"grade": "ok", "at": 1, "of": 2}}, "Reading has no field 'of'"),
        ({"step": 7}, "AwaitStillness has no field 'step'"),
    ],
)
def test_what_does_not_fit_is_named(changed, named):
    with pytest.raises(MessageError, match=re.escape(named)):
        decode(REQUESTS, sent(EXAMPLE) | changed)


def test_something_else_is_no_message():
    with pytest.raises(MessageError, match="not a message"):
        decode(REQUESTS, [1])


@pytest.mark.parametrize("name", ["op", "fields", "encoded", "replaced"])
def test_no_field_hides_what_every_message_has(name):
    with pytest.raises(TypeError, match=f"Wrong.{name}: Message has this name"):
        type("Wrong", (Message,), {"__annotations__": {name: int}})


@pytest.mark.parametrize("bases", [(Stop,), (Message, str)])
def test_all_fields_are_in_one_class(bases):
    with pytest.raises(TypeError, match="Wrong is not directly below Message"):
        type("Wrong", bases, {"__annotations__": {"more": int}})
