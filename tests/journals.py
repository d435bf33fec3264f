"""Replay of a whole journal (`journal.WHOLE`) by the core."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol.effects import Effect
from hpclaunch.core.protocol.events import Event, Received
from hpclaunch.core.protocol.messages import Message
from hpclaunch.system.logs.journal import entry
from hpclaunch.system.shared import packing

EVENTS = {kind.__name__: kind for kind in typing.get_args(Event)}
MESSAGES = {kind.__name__: kind for kind in typing.get_args(Message)}


def feed(lines: Iterable[bytes]) -> int:
    """Feed the events to a core; return their number.

    AssertionError if the core's effects differ from those in the journal.
    """
    core, effects, count = None, list[dict[str, Any]](), 0
    for number, line in enumerate(lines, start=1):
        record = json.loads(line)
        if "effect" in record:
            assert effects, f"line {number}: the core has no such effect"
            assert {key: record.get(key) for key in effects[0]} == effects.pop(0), f"line {number}"
            continue
        assert not effects, f"line {number}: {effects[0]} is not recorded"
        if record.get("note") == "core":
            core = Control(_convert(record["with"]["made"], AgentStart))
        elif "event" in record:
            assert core is not None, "a run begins with its core"
            effects = [plain(effect) for effect in core.handle(event_of(record), record["now"])]
            count += 1
    assert not effects, effects[0]
    return count


def event_of(record: Mapping[str, Any]) -> Event:
    body = dict(record["with"])
    if record["event"] == Received.__name__:
        return Received(**body | {"message": _convert(body["message"], MESSAGES[record["of"]])})
    return typing.cast(Event, _convert(body, EVENTS[record["event"]]))


def plain(effect: Effect) -> dict[str, Any]:
    """Return an effect as it is in the journal."""
    return typing.cast("dict[str, Any]", json.loads(packing.to_json(entry("effect", effect))))


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, str_keys=True)
