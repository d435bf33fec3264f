"""Messages between an agent and a helper: typed values that travel as JSON objects, one per line.

A message is a subclass of `Message` with annotated fields, used like a frozen dataclass. (Code that
dataclasses generate for each class would cost every process 20 ms at its start.) A protocol is a
module with the classes of both directions; both ends import it:

    class Sample(Message):
        number: int

    Request = Sample | Stop
    REQUESTS: Kinds[Request] = by_op(get_args(Request))

`Sample(3).encoded()` is {"op": "sample", "number": 3}, of which `decode(REQUESTS, ...)` makes a
Sample again. It raises MessageError for an unknown op or field, a missing field that has no
default, and a value of another type.

Fields have these types: str, int, float, bool, None, `list[T]`, `tuple[T, ...]`, `dict[str, T]`,
`dict[int, T]`, other messages (which need no op there) and dataclasses with such fields, enums of
str, unions of these, and Any for the JSON of others.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from typing import dataclass_transform
else:  # typing has it from Python 3.11 on

    def dataclass_transform(**_):
        return lambda cls: cls


class MessageError(ValueError):
    """A message does not fit the protocol. The text is one line."""


@dataclass_transform(frozen_default=True)
class Message:
    """The base class of all messages. Messages are direct subclasses, and no field has the name of
    an attribute of this class."""

    op: ClassVar[str]  # the name of the class: "await-stillness" for AwaitStillness
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        if cls.__bases__ != (Message,):
            raise TypeError(f"{cls.__name__} is not directly below Message")
        for name in cls.__annotations__:
            if name == "op" or hasattr(Message, name):
                raise TypeError(f"{cls.__name__}.{name}: Message has this name")
        cls.op = "".join(f"-{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("-")
        cls.__match_args__ = tuple(cls.__annotations__)  # type: ignore[misc]

    if not TYPE_CHECKING:  # type checkers derive it from the fields

        def __init__(self, *values, **more):
            names = self.__match_args__
            given = dict(zip(names, values, strict=False))
            if len(values) > len(names) or more.keys() & given.keys() or more.keys() - {*names}:
                raise TypeError(f"{type(self).__name__} has these fields once: {', '.join(names)}")
            given |= more
            for name in names:
                if name not in given and not hasattr(type(self), name):
                    raise TypeError(f"{type(self).__name__}.{name} is missing")
                self.__dict__[name] = given[name] if name in given else getattr(type(self), name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    def encoded(self) -> dict[str, Any]:
        """Return the JSON object that `decode` reads."""
        return {"op": self.op, **self.fields()}

    def fields(self) -> dict[str, Any]:
        """Return the fields by name, as JSON: messages in them become objects, too."""
        return _fields(self)

    def replaced(self: M, **changes: Any) -> M:
        """Return a copy with other values of these fields."""
        return type(self)(**{**self.__dict__, **changes})


M = TypeVar("M", bound=Message)
T = TypeVar("T")
Kinds: TypeAlias = Mapping[str, type[M]]


def by_op(kinds: Iterable[type[M]]) -> Kinds[M]:
    return {kind.op: kind for kind in kinds}


def decode(kinds: Kinds[M], raw: object) -> M:
    """Return the message of one of these kinds from its JSON object. Raises MessageError."""
    if not isinstance(raw, dict):
        raise MessageError(f"not a message: {raw!r}")
    fields = dict(raw)
    op = fields.pop("op", None)
    if not isinstance(op, str) or op not in kinds:
        raise MessageError(f"unknown message {op!r}")
    return made(kinds[op], fields)


def never(message: NoReturn) -> NoReturn:
    """End a `match` over all kinds of a message: type checkers report a kind that is missing."""
    raise AssertionError(f"nobody handles {message!r}")


def _fields(of: Any) -> dict[str, Any]:
    return {name: _plain(getattr(of, name)) for name in of.__match_args__}


def made(cls: type[T], fields: Mapping[str, object]) -> T:
    """Return the message or dataclass with these fields of a JSON object. Raises MessageError."""
    kinds = _kinds_of(cls)  # type: ignore[arg-type]  # classes are hashable
    for name in fields.keys() - kinds.keys():
        raise MessageError(f"{cls.__name__} has no field {name!r}")
    values = {n: _checked(f"{cls.__name__}.{n}", kinds[n], v) for n, v in fields.items()}
    try:
        return cls(**values)
    except TypeError as e:
        raise MessageError(str(e)) from None


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return _fields(value) if hasattr(value, "__match_args__") else value


@functools.cache
def _kinds_of(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {name: hints[name] for name in cls.__match_args__}


def _checked(where: str, kind: Any, value: object) -> Any:
    """Convert a value from JSON to the type of a field. Raises MessageError."""
    origin, of = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        for each in of:
            try:
                return _checked(where, each, value)
            except MessageError:
                continue
    elif origin in (list, tuple) and isinstance(value, list):
        return origin(_checked(where, of[0], each) for each in value)
    elif origin is dict and isinstance(value, dict):
        try:
            keys = [of[0](key) for key in value]
        except ValueError:
            raise MessageError(f"{where}: a key is not {of[0].__name__}") from None
        return {k: _checked(where, of[1], v) for k, v in zip(keys, value.values(), strict=True)}
    elif hasattr(kind, "__match_args__"):
        if isinstance(value, dict):
            return made(kind, value)
    elif isinstance(kind, enum.EnumMeta):
        with contextlib.suppress(ValueError):
            return kind(value)
    elif kind is float and type(value) in (int, float):
        with contextlib.suppress(OverflowError):
            return float(value)  # type: ignore[arg-type]
    elif type(value) is kind:
        return value
    raise MessageError(f"{where}: {value!r} is not {getattr(kind, '__name__', kind)}")
