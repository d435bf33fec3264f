"""Frozen values: dataclasses that are made quickly.

Python makes four methods for each dataclass when its module is imported. Those for equality and
text are the same for all, so the many values that every agent imports share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from dataclasses import dataclass

    def value(*, frozen: bool, slots: bool):
        def make(cls: type) -> type:
            cls.__eq__, cls.__hash__, cls.__repr__ = _eq, _hash, _repr
            return dataclass(cls, frozen=frozen, slots=slots, eq=False, repr=False)

        return make

    def _fields(self):
        return [getattr(self, name) for name in self.__slots__]

    def _eq(self, other):
        return type(self) is type(other) and _fields(self) == _fields(other)

    def _hash(self):
        return hash((type(self), *_fields(self)))

    def _repr(self):
        fields = zip(self.__slots__, _fields(self), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={each!r}' for name, each in fields)})"


__all__ = ["value"]
