"""The whole state of a core as JSON, and back. Never pickle: a journal may come from somebody else.

Nothing here knows what the state is made of: it is objects of the core's own classes, and the
containers and scalars of the language. An object that is held in two places is one again.
"""

from __future__ import annotations

import enum
import importlib
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from .records import JournalError, by_type

CORE = "hpclaunch.core."
_SCALARS = frozenset({type(None), bool, int, str})
_CONTAINERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "dict": dict,
}


class NotPlainError(TypeError):
    """Something in the core is neither of its own classes nor a container or scalar."""


def freeze(root: object) -> dict[str, Any]:
    """Raises NotPlainError."""
    return _Freezer().freeze(root)


def thaw(frozen: Any) -> Any:
    """Raises JournalError for what `freeze` of this version could not have written."""
    try:
        return _Thawer(frozen["kinds"], frozen["nodes"]).value(frozen["root"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as e:
        raise JournalError(f"not a state of this version's core: {type(e).__name__}: {e}") from e


class _Freezer:
    """A value is a scalar itself, or [number of a node]; a node is [number of a kind, *values]."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], int] = {}  # a class with its attributes: their number
        self._slotted: dict[type[Any], int] = {}  # the same for classes with slots
        self._nodes: list[list[Any]] = []
        self._known: dict[int, tuple[list[int], object]] = {}  # by id, which must not be reused

    def freeze(self, root: object) -> dict[str, Any]:
        value = self._value(root)
        return {"kinds": [list(kind) for kind in self._kinds], "nodes": self._nodes, "root": value}

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS or (kind is float and math.isfinite(value)):
            return value
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        number = len(self._nodes)
        node: list[Any] = []
        self._nodes.append(node)
        self._known[id(value)] = ([number], value)
        node += self._node(value, kind)
        return [number]

    def _node(self, value: Any, kind: type[Any]) -> list[Any]:
        if kind is float:
            return [self._kind("float"), str(value)]
        if kind is dict:
            flat = (self._value(part) for pair in value.items() for part in pair)
            return [self._kind("dict"), *flat]
        if kind is deque:
            return [self._kind("deque"), value.maxlen, *map(self._value, value)]
        if kind.__name__ in _CONTAINERS and kind.__module__ == "builtins":
            return [self._kind(kind.__name__), *map(self._value, value)]
        if isinstance(value, int):  # a signal
            return [self._kind("int"), int(value)]
        name = f"{kind.__module__}:{kind.__qualname__}"
        if not kind.__module__.startswith(CORE):
            raise NotPlainError(f"{name} in the state of the core")
        if isinstance(value, enum.Enum):
            return [self._kind(name), value.name]
        if not (slots := _slots(kind)):
            return [self._kind(name, *value.__dict__), *map(self._value, value.__dict__.values())]
        number = self._slotted.get(kind)
        if number is None:
            number = self._slotted[kind] = self._kind(name, *slots)
        # A large job has tens of thousands of these values, nearly all scalars.
        return [
            number,
            *[v if type(v) in _SCALARS else self._value(v) for v in _getter(slots)(value)],
        ]

    def _kind(self, *names: str) -> int:
        return self._kinds.setdefault(names, len(self._kinds))


class _Thawer:
    def __init__(self, kinds: list[list[str]], nodes: list[list[Any]]) -> None:
        self._kinds, self._nodes = kinds, nodes
        self._built: dict[int, Any] = {}

    def value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        (number,) = value
        if number not in self._built:
            kind, *parts = self._nodes[number]
            self._build(number, *self._kinds[kind], parts=parts)
        return self._built[number]

    def _build(self, number: int, kind: str, *names: str, parts: list[Any]) -> None:
        match kind:
            case "float" | "int":
                self._built[number] = float(parts[0]) if kind == "float" else int(parts[0])
            case "tuple" | "frozenset":  # which can hold themselves in no direct way
                self._built[number] = _CONTAINERS[kind](map(self.value, parts))
            case "list":
                filled: list[Any] = self._keep(number, [])
                filled += map(self.value, parts)
            case "set":
                self._keep(number, set()).update(map(self.value, parts))
            case "deque":
                self._keep(number, deque(maxlen=parts[0])).extend(map(self.value, parts[1:]))
            case "dict":
                values = map(self.value, parts)
                self._keep(number, {}).update(zip(values, values, strict=True))
            case _:
                self._object(number, _class(kind), names, parts)

    def _keep(self, number: int, value: Any) -> Any:
        self._built[number] = value
        return value

    def _object(
        self, number: int, kind: type[Any], names: tuple[str, ...], parts: list[Any]
    ) -> None:
        if issubclass(kind, enum.Enum):
            self._built[number] = kind[parts[0]]
            return
        if (slots := _slots(kind)) and set(slots) != set(names):
            raise JournalError(f"{kind.__name__} has other fields in this version")
        value = self._keep(number, object.__new__(kind))
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(value, name, self.value(part))


@by_type
def _slots(kind: type[Any]) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in getattr(each, "__slots__", ()))


@cache
def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    if len(names) == 1:
        return lambda value: (getattr(value, names[0]),)
    return operator.attrgetter(*names)


@cache
def _class(name: str) -> type[Any]:
    """One of the core's own; nothing of it is called to make an object of it."""
    module, _, qualified = name.partition(":")
    if not module.startswith(CORE):
        raise JournalError(f"{name} is no class of the core")
    try:
        found = getattr(importlib.import_module(module), qualified)
    except (ImportError, AttributeError) as e:
        raise JournalError(f"this version's core has no {qualified}") from e
    if not isinstance(found, type) or found.__module__ != module:
        raise JournalError(f"{name} is no class of the core")
    return found
