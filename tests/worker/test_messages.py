"""Messages as JSON, there and back; whatever does not fit is refused with its name."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest

from hpclaunch.worker.messages import Kinds, Message, MessageError, by_op, decode


class Place(Message):
    rank: int
    files: list[str] = []  # noqa: RUF012 frozen


class AwaitStillness(Message):
    seconds: tuple[float, ...]
    places: list[Place]
    pids: dict[int, int]
    program: str | None = None
    more: Any = None


class Stop(Message):
    now: bool = True


Request = AwaitStillness | Stop
REQUESTS: Kinds[Request] = by_op(get_args(Request))
EXAMPLE = AwaitStillness((1.5, 2), [Place(3, ["a"]), Place(4)], {0: 17}, more={"x": [1]})


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
        ({"seconds": 1.0}, "await-stillness.seconds"),
        ({"seconds": ["1"]}, "await-stillness.seconds: '1' is not float"),
        ({"seconds": [10**400]}, "await-stillness.seconds: 1"),
        ({"seconds": [True]}, "await-stillness.seconds"),
        ({"places": [{"rank": "3"}]}, "place.rank: '3' is not int"),
        ({"places": [{"rank": True}]}, "place.rank: True is not int"),
        ({"places": [{"files": []}]}, "place lacks its field 'rank'"),
        ({"places": [3]}, "await-stillness.places: 3 is not Place"),
        ({"pids": {"x": 1}}, "await-stillness.pids: a key is not int"),
        ({"pids": []}, "await-stillness.pids"),
        ({"program": 7}, "await-stillness.program: 7 is not"),
        ({"step": 7}, "await-stillness has no field 'step'"),
    ],
)
def test_what_does_not_fit_is_named(changed, named):
    with pytest.raises(MessageError, match=re.escape(named)):
        decode(REQUESTS, sent(EXAMPLE) | changed)


def test_something_else_is_no_message():
    with pytest.raises(MessageError, match="not a message"):
        decode(REQUESTS, [1])


@pytest.mark.parametrize("name", ["op", "fields", "encoded", "replaced", "of_fields"])
def test_no_field_hides_what_every_message_has(name):
    with pytest.raises(TypeError, match=f"Wrong.{name}: Message has this name"):
        type("Wrong", (Message,), {"__annotations__": {name: int}})


@pytest.mark.parametrize("bases", [(Stop,), (Message, str)])
def test_all_fields_are_in_one_class(bases):
    with pytest.raises(TypeError, match="Wrong is not directly below Message"):
        type("Wrong", bases, {"__annotations__": {"more": int}})
