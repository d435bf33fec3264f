"""Value classes, like dataclasses but quicker to import.

To type checkers they are dataclasses; at run time they are structs of msgspec. Python takes 0.4 ms
to define a dataclass, and every agent imports nearly two hundred value classes.

A value class has no base, and `super()` without arguments does not work in its methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value
    from dataclasses import dataclass as variant
    from dataclasses import field, fields, replace
    from dataclasses import is_dataclass as is_value

    def names(thing: object) -> tuple[str, ...]: ...
else:
    from msgspec import Struct, field
    from msgspec.structs import fields, replace

    def value(*, frozen: bool = False, tag=None):
        def make(cls: type) -> type:
            assert cls.__bases__ == (object,)
            body = {n: v for n, v in vars(cls).items() if n not in ("__dict__", "__weakref__")}
            return type(Struct)(cls.__name__, (Struct,), body, frozen=frozen, tag=tag)

        return make

    def variant(*, frozen: bool = False):
        """Make a value class for a union. Its name in lower case is the tag in JSON."""
        return value(frozen=frozen, tag=str.lower)

    def is_value(thing: object) -> bool:
        return isinstance(thing, Struct)

    def names(thing: object) -> tuple[str, ...]:
        """Return the names of the fields of a value. `fields` looks up their types as well, which
        takes much longer."""
        return thing.__struct_fields__


__all__ = ["field", "fields", "is_value", "names", "replace", "value", "variant"]
