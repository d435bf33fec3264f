"""The `dataclass` of values: frozen and slotted, as that of the standard library.

Every agent makes more than a hundred such classes as it starts. The standard library generates and
compiles six methods for each of them, and that took a sixth of all CPU time of a short launch. Here
`__init__` is compiled, and the other methods are shared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")
Key = Callable[[object], tuple[Any, ...]]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, slots: bool) -> Callable[[type[T]], type[T]]:
        assert frozen, "a value does not change"
        assert slots, "a value has no other attributes"
        return _value


def _value(cls: type[T]) -> type[T]:
    own = {*cls.__dict__}
    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # else its signature would be found out
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(made)  # type: ignore[arg-type]
    key = _key([field.name for field in fields])

    def equal(self: object, other: object) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: object) -> int:
        return hash(key(self))

    methods = {
        "__init__": _init(fields, has_more="__post_init__" in own),
        "__eq__": equal,
        "__hash__": hash_of,
        "__repr__": _repr,
        "__setattr__": _set,
        "__delattr__": _delete,
        "__getstate__": lambda self: key(self),
        "__setstate__": _set_state,
    }
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _key(names: list[str]) -> Key:
    """Return what makes a tuple of the values of all fields."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    only = attrgetter(*names)
    return lambda value: (only(value),)


def _init(fields: tuple[dataclasses.Field[Any], ...], *, has_more: bool) -> Any:
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    parameters, body = ["self"], []
    for field in fields:
        is_shown = field.repr and field.compare and field.hash is None
        assert is_shown, f"{field.name} is part of the value"
        assert field.init, f"{field.name} has to be given"
        assert not field.kw_only, f"{field.name} has its place"
        value = name = field.name
        if field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_make_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        body.append(f"_set(self, {name!r}, {value})")
    body += ["self.__post_init__()"] if has_more else []
    text = f"def __init__({', '.join(parameters)}):\n    {'; '.join(body) or 'pass'}"
    exec(text, names)  # noqa: S102 - of names of fields, as the standard library does it
    return names["__init__"]


def _repr(value: Any) -> str:
    shown = (f"{name}={getattr(value, name)!r}" for name in value.__match_args__)
    return f"{value.__class__.__qualname__}({', '.join(shown)})"


def _set(_: object, name: str, __: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(_: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _set_state(value: Any, state: tuple[object, ...]) -> None:
    for name, each in zip(value.__match_args__, state, strict=True):
        object.__setattr__(value, name, each)
