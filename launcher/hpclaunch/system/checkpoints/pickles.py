"""Readers of the pickles in checkpoints.

Their unpickler imports nothing and calls nothing: one inert class replaces every class, function
and instance that a pickle names. Whoever can write a file must not be able to run code in our
processes.
"""

from __future__ import annotations

import gc
import pickle
from collections import defaultdict
from collections.abc import Callable, Collection
from types import EllipsisType
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from .archives import Window

LARGEST_NUMBER = 1 << 63

Pieces = dict[str, list[tuple[int, int]]]  # by file: (start, length) in bytes
Field = int | bool | list[int] | EllipsisType | None  # an ellipsis replaces any other value

# What the unpickler raises for bytes that make no sense.
_SENSELESS = (
    pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, MemoryError,
    RuntimeError, SystemError, TypeError, Warning,
)  # fmt: skip


class _InertType(type):
    """The type of the inert class. Nothing that a pickle does with it has an effect."""

    def __call__(cls, *_: object, **__: object) -> _InertType:
        return cls

    def __setitem__(cls, key: object, value: object) -> None:
        pass

    def append(cls, _: object) -> None:
        pass

    extend = add = append


def _itself(cls: _InertType, *_: object, **__: object) -> _InertType:
    return cls


def _ignore(_: object) -> None:
    pass


def _inert(name: str = "Inert", on_state: Callable[[Any], None] = _ignore) -> _InertType:
    """Return an inert class that also stands for its instances. `on_state` is called with the state
    of each: nearly always the dictionary of its attributes."""
    return _InertType(name, (), {"__new__": _itself, "__setstate__": staticmethod(on_state)})


class _Reader(pickle.Unpickler):
    """An unpickler of one pickle, which leaves the stream just after it."""

    def __init__(self, stream: BinaryIO, inert: _InertType | None = None) -> None:
        super().__init__(stream, encoding="latin1")
        self._inert = inert or _inert()

    def find_class(self, _module: str, _name: str) -> Any:
        return self._inert

    def persistent_load(self, _pid: Any) -> Any:
        return self._inert

    def load(self) -> Any:
        """Return the object of the next pickle. Raises ValueError if the pickle is not whole."""
        is_collecting = gc.isenabled()
        if is_collecting:
            gc.disable()  # with millions of objects, its passes would take most of the time
        try:
            return super().load()
        except _SENSELESS as e:
            raise ValueError(str(e) or type(e).__name__) from e
        finally:
            if is_collecting:
                gc.enable()


def pieces(window: Window) -> Pieces:
    """Return the files that metadata of torch.distributed.checkpoint name, and the parts of tensors
    in each. The metadata have a _StorageInfo (torch's checkpoint/filesystem.py) for each part.
    Raises ValueError if the metadata are not whole.
    """
    found: Pieces = defaultdict(list)

    def note(state: Any) -> None:
        if type(state) is not dict:
            return
        if "relative_path" in state and "offset" in state:
            name, start, length = state["relative_path"], state["offset"], state.get("length")
            if not (
                type(name) is str and type(start) is type(length) is int and start >= 0 <= length
            ):
                raise ValueError("a part of a tensor has no place")
            found[name].append((start, length))
        state.clear()  # there may be millions, and the unpickler keeps them until it ends

    _Reader(window.stream(), _inert(on_state=note)).load()
    return dict(found)


def fields(window: Window, names: Collection[str], before: int = 0) -> dict[str, Field]:
    """Return the values of `names` in a pickled dictionary, without those that it lacks. `before`
    is the number of pickles before it. Raises ValueError for anything but pickles.
    """
    stream = window.stream()
    for _ in range(before):
        _Reader(stream).load()
    found = _Reader(stream).load()
    if type(found) is not dict:
        return {}
    return {name: _plain(found[name]) for name in names if name in found}


def _plain(value: object) -> Field:
    """Return None, a bool, a small int or a list of ints as it is; else an ellipsis."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int and abs(value) < LARGEST_NUMBER:
        return value
    if type(value) is list and {*map(type, value)} <= {int}:
        return value
    return ...


def storages(window: Window) -> tuple[list[tuple[str, int]], int]:
    """Return the storages in a file in torch's older form, in order, and where the first begins.
    For each, return the name of its class ("" if it is not known) and how many numbers it has.
    Five pickles come before the first: a magic number, a version, facts about the system, the
    object, and the keys of its storages. Raises ValueError if they are not whole."""
    stream = window.stream()
    for _ in range(3):
        _Reader(stream).load()
    reader = _StorageReader(stream)
    reader.load()
    keys = _Reader(stream).load()
    if type(keys) is not list:
        raise ValueError("no list of storages")
    known = [reader.found.get(key, ("", 0)) if type(key) is str else ("", 0) for key in keys]
    return known, stream.tell()


class _StorageReader(_Reader):
    """A reader that collects the storages to which a pickle of torch.save refers."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.found: dict[str, tuple[str, int]] = {}  # by key
        self._classes: dict[str, _InertType] = {}

    def find_class(self, _module: str, name: str) -> Any:
        if name not in self._classes:
            self._classes[name] = _inert(name)
        return self._classes[name]

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("storage", _InertType() as kind, str(key), _, int(count), *_):
                self.found[key] = kind.__name__, count
        return super().persistent_load(pid)
