"""Events and effects as JSON, and events back from it. Generic: nothing here knows their fields."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import typing
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec

from hpclaunch.core.control import Control
from hpclaunch.core.protocol.effects import Effect
from hpclaunch.core.protocol.events import Event
from hpclaunch.core.protocol.messages import Message

from ...shared import bounded_json, packing

FORMAT = 1  # of the lines; another one cannot be replayed

EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Event)}
EFFECTS: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Effect)}
MESSAGES: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(Message)}


class JournalError(Exception):
    """What is there is not what this version of hpclaunch writes. The message says why."""


F = TypeVar("F", bound=Callable[..., Any])


def by_type(function: F) -> F:
    """`functools.cache` for functions of a class, which mypy takes for nothing hashable."""
    return typing.cast(F, cache(function))


# To JSON


def entry(kind: str, value: Event | Effect) -> dict[str, Any]:
    """The part of a line that says what happened; `kind` is "event" or "effect"."""
    field = _message_field(type(value))
    of = {} if field is None else {"of": type(getattr(value, field)).__name__}
    return {kind: type(value).__name__, **of, "with": value}


def changes(before: Message, after: Message) -> dict[str, Any]:
    """The fields that differ between two messages of one type."""
    names, values = _fields(type(after))
    pairs = zip(names, values(before), values(after), strict=True)
    return {name: new for name, old, new in pairs if new is not old and new != old}


def checksum(effects: Sequence[Effect]) -> int:
    """0 for none."""
    crc = 0
    for effect in effects:
        crc = zlib.crc32(type(effect).__name__.encode(), crc)
        crc = zlib.crc32(packing.to_json(effect), crc)
    return crc


def plain(kind: str, value: Event | Effect) -> dict[str, Any]:
    """`entry` as a reader of the journal has it."""
    return typing.cast("dict[str, Any]", bounded_json.loads(packing.to_json(entry(kind, value))))


# From JSON


def event(told: Mapping[str, Any]) -> Event:
    """Of a line. Raises JournalError."""
    kind = EVENTS.get(told["event"])
    if kind is None:
        raise JournalError(f"this version knows no event {told['event']}")
    body = told.get("with")
    field = _message_field(kind)
    if field is None:
        return typing.cast(Event, _convert(body, kind))
    if not isinstance(body, dict) or field not in body:
        raise JournalError(f"{kind.__name__} without {field}")
    parts = dict(body)
    message_ = message(told.get("of", ""), parts.pop(field))
    hints = _hints(kind)
    if unknown := parts.keys() - hints.keys():
        raise JournalError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    rest = {name: _convert(value, hints[name]) for name, value in parts.items()}
    try:
        return typing.cast(Event, kind(**{field: message_}, **rest))
    except TypeError as e:
        raise JournalError(str(e)) from e


def message(of: str, body: Any) -> Message:
    """Raises JournalError."""
    kind = MESSAGES.get(of)
    if kind is None:
        raise JournalError(f"this version knows no message {of}")
    return typing.cast(Message, _convert(body, kind))


def core(made: Any) -> Control:
    """As it was made. Raises JournalError."""
    hints = typing.get_type_hints(Control.__init__)
    wanted = inspect.signature(Control).parameters
    if not isinstance(made, dict) or not made.keys() <= wanted.keys():
        raise JournalError("the core of this version is made otherwise")
    try:
        return Control(**{name: _convert(value, hints[name]) for name, value in made.items()})
    except (TypeError, IndexError) as e:
        raise JournalError(f"the core of this version is made otherwise: {e}") from e


def _convert(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as e:
        raise JournalError(f"not a {getattr(kind, '__name__', kind)}: {e}") from e


# Types


@by_type
def _message_field(kind: type[Any]) -> str | None:
    """The one that holds a message, whose type JSON does not tell."""
    hints = _hints(kind)
    return next((name for name, hint in hints.items() if hint == Message), None)


@by_type
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@by_type
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    """The names of several, and what has their values."""
    names = tuple(field.name for field in dataclasses.fields(kind))
    return names, operator.attrgetter(*names)
