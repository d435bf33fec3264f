"""Pickles are read without importing or calling anything."""

import contextlib
import gc
import io
import os
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.system.checkpoints import pickles
from hpclaunch.system.checkpoints.archives import Window


def reading(read: Callable[..., object], data: bytes, *more: object) -> object:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return read(Window(file.fileno(), len(data)), *more)


def pieces(data: bytes) -> object:
    return reading(pickles.pieces, data)


def fields(data: bytes, *names: str) -> object:
    return reading(pickles.fields, data, names)


def metadata(parts: list[tuple[str, str, int, int]]) -> object:
    """Return metadata of (tensor, file, start, length); the texts are objects of their own, as from
    other ranks. (torch is imported where it is used: that takes two seconds.)"""
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.serialization import _get_layout  # noqa: F401 - that the pickles name it

    tensors, stored = {}, {}
    for i, (tensor, file, start, length) in enumerate(parts):
        chunk = ChunkStorageMetadata(torch.Size((i, 0)), torch.Size((4, 4)))
        size = torch.Size((4, 4))
        tensors[tensor] = TensorStorageMetadata(TensorProperties(), size, [chunk])
        index = MetadataIndex("".join([*tensor]), torch.Size((i, 0)), i)
        stored[index] = _StorageInfo("".join([*file]), start, length)
    return Metadata(tensors, {}, stored)


def expected(parts) -> dict[str, list[tuple[int, int]]]:
    found = defaultdict(list)
    for _, file, start, length in parts:
        found[file].append((start, length))
    return dict(found)


def parts(count: int, files: int) -> list[tuple[str, str, int, int]]:
    return [
        (f"layers.{i}.weight", f"__{i % files}_0.distcp", i * 2**24, 5 * i + 1)
        for i in range(count)
    ]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(("count", "files"), [(1, 1), (3, 2), (1000, 1000), (1000, 7)])
def test_metadata_of_any_size(protocol, count, files):
    """The metadata has many frames, and texts and numbers of all lengths."""
    of = parts(count, files)
    assert pieces(pickle.dumps(metadata(of), protocol)) == expected(of)


@pytest.mark.fuzz
@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=300),
            st.sampled_from(["a", "b/c.distcp", "ä" * 30, "\x94h\x94", "x" * 255, "y" * 256]),
            st.integers(0, 2**62),
            st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=30,
        unique_by=lambda part: part[0],
    )
)
def test_names_and_numbers_of_all_kinds(of):
    assert pieces(pickle.dumps(metadata(of))) == expected(of)


@pytest.mark.exhaustive
@pytest.mark.parametrize("protocol", [2, 4])
def test_metadata_that_are_cut_short(protocol):
    data = pickle.dumps(metadata(parts(13, 3)), protocol)  # larger ones have no other opcodes
    for length in range(len(data)):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever pickle says
            pieces(data[:length])


def test_a_tensor_by_the_name_of_a_field():
    of = [("relative_path", "a", 1, 2), ("offset", "b", 3, 4), ("length", "a", 5, 6)]
    assert pieces(pickle.dumps(metadata(of))) == expected(of)


@pytest.mark.parametrize("place", [(-1, 1), (1, -1), ("1", 1), (1, None), (1.0, 1)])
def test_a_part_that_is_nowhere(place):
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    stored = {MetadataIndex("a"): _StorageInfo("a", *place)}
    with pytest.raises(ValueError, match="a part of a tensor has no place"):
        pieces(pickle.dumps(Metadata({}, {}, stored)))


@pytest.mark.parametrize("data", [pickle.dumps([None]), b"?"])
def test_garbage_is_not_collected_meanwhile(data):
    """With millions of objects, reading would take three times as long."""
    was_collected = []

    class Stream(io.BytesIO):
        def read(self, *size):
            was_collected.append(gc.isenabled())
            return super().read(*size)

    with contextlib.suppress(ValueError):
        pickles._Reader(Stream(data)).load()
    assert not any(was_collected)
    assert was_collected
    assert gc.isenabled()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_fields(protocol):
    import torch

    plain = {"a": 5, "b": 2**40, "c": -3, "d": None, "e": True, "f": [], "g": [4, 300]}
    others = {"h": "x", "i": [True], "j": 2**63, "l": (1,), "m": torch.Size((1,))}
    nested = {"n": {"a": 6, "o": 7}}
    data = pickle.dumps(nested | plain | others, protocol)
    names = (*plain, *others, "o", "missing")
    assert fields(data, *names) == plain | dict.fromkeys(others, ...)


@pytest.mark.parametrize("kind", ["list", "text", "size", "none"])
def test_what_is_no_dictionary_has_no_fields(kind):
    import torch

    other = {"list": ["a"], "text": "a", "size": torch.Size((1,)), "none": None}[kind]
    assert fields(pickle.dumps(other), "a") == {}


class Calls:
    """An object that a pickle can only make by a call."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


def test_nothing_is_imported_or_called(tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    code = f"open({str(trace)!r}, 'w')"
    (tmp_path / "leaves_trace.py").write_text(f"{code}\ndef function(): {code}")
    monkeypatch.syspath_prepend(tmp_path)
    calls = [
        Calls(os.system, (f"touch {trace}",)),
        Calls(eval, (code,)),
        Calls(exec, (code,), {"a": 1}, iter([1]), iter([(1, 2)])),
    ]
    data = [pickle.dumps({"a": 5, "b": calls}, protocol) for protocol in range(6)]
    data += [
        b"cleaves_trace\nfunction\n.",
        b"cleaves_trace\nfunction\n)R.",
        b"(ileaves_trace\nfunction\n.",
    ]
    for each in data:
        pieces(each)
        assert fields(each, "a") == ({"a": 5} if each in data[:6] else {})
        with contextlib.suppress(ValueError):
            reading(pickles.storages, each * 5)
    assert not trace.exists()
