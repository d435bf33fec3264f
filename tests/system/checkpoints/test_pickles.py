"""What is read off a pickle without unpickling it."""

import pickle
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import _get_layout  # noqa: F401 - that the pickles name it

from hpclaunch.system.checkpoints import pickles


def metadata(parts: list[tuple[str, str, int, int]]) -> Metadata:
    """Of (tensor, file, start, length); the texts are objects of their own, as from other ranks."""
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
    """Of many frames, with texts and numbers of all lengths."""
    of = parts(count, files)
    assert pickles.pieces(pickle.dumps(metadata(of), protocol)) == expected(of)


def test_the_fast_way_reads_what_torch_writes():
    of = parts(1000, 7)
    assert pickles._pieces_fast(pickle.dumps(metadata(of))) == expected(of)


@pytest.mark.parametrize("offset", [(), (5,), (300, 0), (1, 70_000, 2**31), (1, 2, 3, 4)])
@pytest.mark.parametrize("index", [None, 7])
@pytest.mark.parametrize("shared", [False, True])
def test_the_fast_way_knows_the_keys_of_tensors_of_any_shape(offset, index, shared):
    """Several thousand parts of a few tensors; the names are the same objects, or others."""
    tensors = ["embedding", "layers.0.weight", "optim.exp_avg"]
    files = [f"__{i}_0.distcp" for i in range(60)]
    stored = {}
    for i in range(3000):
        tensor = tensors[i % 3] if shared and offset else f"{tensors[i % 3]}.{i}"
        size = torch.Size(number + i for number in offset)
        stored[MetadataIndex(tensor, size, index)] = _StorageInfo(files[i % 60], i, i + 1)
    found = pickles._pieces_fast(pickle.dumps(Metadata({}, {}, stored)))
    assert found is not None
    assert found == {file: [(i, i + 1) for i in range(n, 3000, 60)] for n, file in enumerate(files)}


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
def test_the_fast_way_reads_it_right_or_not_at_all(of):
    data = pickle.dumps(metadata(of))
    assert pickles._pieces_fast(data) in (None, expected(of))
    assert pickles.pieces(data) == expected(of)


@pytest.mark.exhaustive
@pytest.mark.parametrize("protocol", [2, 4])
def test_metadata_that_are_cut_short(protocol):
    data = pickle.dumps(metadata(parts(13, 3)), protocol)  # larger ones have no other opcodes
    for length in range(len(data)):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever pickletools says
            pickles.pieces(data[:length])


def test_a_tensor_by_the_name_of_a_field():
    of = [("relative_path", "a", 1, 2), ("offset", "b", 3, 4), ("length", "a", 5, 6)]
    assert pickles.pieces(pickle.dumps(metadata(of))) == expected(of)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_constants(protocol):
    values = {"a": 5, "b": 300, "c": 70_000, "d": 2**40, "e": -3, "f": None, "g": True, "h": False}
    data = pickle.dumps({"other": [1, 2], **values, "text": "x", "b": 300}, protocol)
    for key, value in values.items():
        assert pickles.constant(data, key) == value
    for key in ("text", "other", "missing"):
        with pytest.raises(KeyError):
            pickles.constant(data, key)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_lists_of_numbers(protocol):
    lists = {"none": [], "one": [40], "more": [4, 300, 70_000], "text": ["4"], "number": 4}
    data = pickle.dumps(lists, protocol=protocol)
    found = {key: pickles.numbers(data, key) for key in (*lists, "missing")}
    nothing = {"none": [], "text": [], "number": [], "missing": []}
    assert found == {"one": [40], "more": [4, 300, 70_000], **nothing}
