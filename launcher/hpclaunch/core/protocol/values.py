"""Values: classes of fields, made in microseconds.

For type checkers they are dataclasses, at run time structs of msgspec. Python takes 0.4 ms to make
a dataclass when its module is imported, and every agent imports nearly two hundred values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value
    from dataclasses import field, fields, replace
    from dataclasses import is_dataclass as is_value
else:
    from msgspec import Struct, field
    from msgspec.structs import fields, replace

    def value(*, frozen: bool = False):
        def make(cls: type) -> type:
            if isinstance(cls, type(Struct)):  # its base is a value
                return cls
            body = {n: v for n, v in vars(cls).items() if n not in ("__dict__", "__weakref__")}
            bases = tuple(base for base in cls.__bases__ if base is not object)
            return type(Struct)(cls.__name__, (*bases, Struct), body, frozen=frozen)

        return make

    def is_value(thing: object) -> bool:
        return isinstance(thing, Struct)


__all__ = ["field", "fields", "is_value", "replace", "value"]
