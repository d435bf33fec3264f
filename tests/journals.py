"""A whole journal (`journal.WHOLE`), fed to the core again."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hpclaunch.core.control import Control
from hpclaunch.core.protocol.effects import Effect
from hpclaunch.core.protocol.events import Event, Received
from hpclaunch.core.protocol.messages import Message
from hpclaunch.system.logs.journal import entry
from hpclaunch.system.shared import packing

EVENTS = {kind.__name__: kind for kind in typing.get_args(Event)}
MESSAGES = {kind.__name__: kind for kind in typing.get_args(Message)}


def feed(lines: Iterable[bytes]) -> int:
    """Return how many events there are. AssertionError where a core decides otherwise than is
    recorded.
    """
    core, asked, count = None, list[dict[str, Any]](), 0
    for number, line in enumerate(lines, start=1):
        told = json.loads(line)
        if "effect" in told:
            assert asked, f"line {number}: nothing was asked for"
            assert {key: told.get(key) for key in asked[0]} == asked.pop(0), f"line {number}"
            continue
        assert not asked, f"line {number}: {asked[0]} is not recorded"
        if told.get("note") == "core":
            core = _made(told["with"]["made"])
        elif "event" in told:
            assert core is not None, "a run begins with its core"
            asked = [plain(effect) for effect in core.handle(event_of(told), told["now"])]
            count += 1
    assert not asked, asked[0]
    return count


def _made(arguments: Mapping[str, Any]) -> Control:
    hints = typing.get_type_hints(Control.__init__)
    return Control(**{name: _convert(value, hints[name]) for name, value in arguments.items()})


def event_of(told: Mapping[str, Any]) -> Event:
    body = dict(told["with"])
    if told["event"] == Received.__name__:
        return Received(**body | {"message": _convert(body["message"], MESSAGES[told["of"]])})
    return typing.cast(Event, _convert(body, EVENTS[told["event"]]))


def plain(effect: Effect) -> dict[str, Any]:
    """An effect as a reader of the journal has it."""
    return typing.cast("dict[str, Any]", json.loads(packing.to_json(entry("effect", effect))))


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, str_keys=True)
