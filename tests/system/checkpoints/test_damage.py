"""Damaged files among checkpoints, whatever their bytes claim: each is passed over with one line,
and the next checkpoint is used.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looking import date, newest, passed_over
from test_format_torch_save import save, write

import hpclaunch
from damaged_data import damaged
from hpclaunch.system.checkpoints import archives, finding, listing, pickles
from hpclaunch.system.checkpoints.archives import DamagedError, Window
from hpclaunch.system.checkpoints.candidates import Facts, FileKind, Part, Step
from hpclaunch.system.checkpoints.finding import search
from hpclaunch.system.checkpoints.formats import megatron
from hpclaunch.system.checkpoints.listing import entry_at
from hpclaunch.system.checkpoints.reading import CheckpointReading, ResultCache

PACKAGE = Path(hpclaunch.__file__).parent / "system" / "checkpoints"
HUGE = 8 << 30
ROOM = 2 << 30  # bytes of memory that a search may take here


def zipped(data: object) -> bytes:
    file = io.BytesIO()
    write(data, file)
    return file.getvalue()


def limit_memory(room: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.getrlimit(resource.RLIMIT_AS)[1]))


@pytest.fixture(autouse=True)
def _little_memory():
    import torch  # noqa: F401 - its own memory is not what a search takes

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(ROOM)
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def saved(path: Path) -> Path:
    """Save an older checkpoint, which is complete."""
    import torch

    write({"model": torch.arange(50.0), "optimizer": {"param_groups": []}}, path)
    date(path, at=100)
    return path


@pytest.fixture
def good(tmp_path):
    return saved(tmp_path / "step-1.pt")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    return tmp_path / "checkpoint-5"


def sparse(path: Path, size: int = HUGE, begin: bytes = b"") -> None:
    path.write_bytes(begin)
    os.truncate(path, size)


def legacy(data: object = b"") -> bytes:
    """Return a file in torch's older form; bytes replace the pickle of its object."""
    if not isinstance(data, bytes):
        file = io.BytesIO()
        write(data, file, _use_new_zipfile_serialization=False)
        return file.getvalue()
    begin = archives.LEGACY + pickle.dumps(1001, 2) + pickle.dumps("optimizer", 2)
    return begin + data + pickle.dumps([], 2)


def nested_tuples(depth: int) -> bytes:
    """Return a pickle that names a class by an object with 2**depth parts as text."""
    data = b"\x80\x02X\x01\x00\x00\x00xq\x00"
    for i in range(depth):
        data += b"h" + bytes((i,)) + b"h" + bytes((i,)) + b"\x86q" + bytes((i + 1,))
    last = b"h" + bytes((depth,))
    return data + last + last + b"\x93."


@pytest.mark.parametrize("key", ["dp_world_size", "mp_world_size"])
@pytest.mark.parametrize("zero3", [False, True])
def test_a_world_of_any_size(good, tmp_path, key, zero3):
    place = tmp_path / "global_step5"
    place.mkdir()
    sizes = {"dp_world_size": 1, "mp_world_size": 1, key: 1 << 40}
    prefix = "zero_pp_rank_0_" if zero3 else ""
    write({"module": {}, **sizes}, place / f"{prefix}mp_rank_00_model_states.pt")
    write({}, place / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (tmp_path / "latest").write_text("global_step5")
    missing = r"global_step5: \w*_rank_0?1_\w+\.pt is missing: its rank had not saved yet"
    assert re.fullmatch(missing, passed_over(tmp_path, good))


def test_experts_of_any_number(good, tmp_path):
    place = tmp_path / "global_step5"
    place.mkdir()
    state = {"dp_world_size": 1, "mp_world_size": 1, "num_experts": [1 << 40]}
    write(state, place / "mp_rank_00_model_states.pt")
    write({}, place / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    write({}, place / "layer_0_expert_0_mp_rank_00_model_states.pt")
    (tmp_path / "latest").write_text("global_step5")
    assert "expert 1 of layer 0 is missing" in passed_over(tmp_path, good)


@pytest.mark.parametrize("name", ["random_states_{}.pkl", "rng_state_{}.pth", "__{}.metadata"])
def test_ranks_of_any_number(good, place, tmp_path, name):
    for rank in (0, 10**200):
        save(place / name.format(rank), at=200)
    (place / "trainer_state.json").write_text("{}")
    assert newest(tmp_path)[0] == str(good)


@pytest.mark.parametrize("begin", [b"", b"\x80\x04"])
def test_huge_metadata(good, place, tmp_path, begin):
    sparse(place / ".metadata", begin=begin)
    (place / "__0_0.distcp").write_bytes(b"x")
    wrong = ".metadata is cut short or damaged (larger than 1024 MiB)"
    assert passed_over(tmp_path, good) == f"checkpoint-5: {wrong}"


@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("begin", [b"", b'{"weight_map": {"a": "'])
def test_huge_json(good, place, tmp_path, name, begin):
    for each in ("trainer_state.json", "scheduler.pt", "optimizer.pt", "rng_state.pth"):
        (place / each).write_text("{}")
    sparse(place / name, begin=begin)
    date(place, at=200)
    line = passed_over(tmp_path, good)
    assert line.startswith("checkpoint-5: ")
    assert name in line or "it has no model" in line


@pytest.mark.parametrize("index", [b"[" * 100_000, b'{"weight_map": {"a": ' + b"[" * 100_000])
def test_a_deeply_nested_index(good, place, tmp_path, index):
    (place / "model.safetensors.index.json").write_bytes(index)
    assert "model.safetensors.index.json is cut short" in newest(tmp_path / "checkpoint-5")[1][0]
    assert newest(tmp_path)[0] == str(good)


def test_an_index_with_a_long_name(place):
    """The message to the user cuts off a name of any length."""
    index = {"weight_map": {"a": "x" * 10**6}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    assert newest(place)[1][0].startswith(f"{place.name}: xxx")
    assert len(newest(place)[1][0]) < 1100


@pytest.mark.parametrize(
    "step", ["9" * 4000, "1e308", "1e999", "-1", "[" * 100_000, '"9"'], ids=lambda step: step[:9]
)
def test_a_step_of_any_size(tmp_path, step):
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    (found,) = search(str(tmp_path))
    assert found.candidate.step == (
        Step(9, "step", "trainer_state.json") if step == '"9"' else None
    )


PICKLES = {
    "nested tuples": nested_tuples(60),
    "marks": b"\x80\x02" + b"N" * 100_000 + b"(t" * 100_000 + b".",
    "a long text": b"\x80\x04\x8d" + HUGE.to_bytes(8, "little") + b"x.",
    "long bytes": b"\x80\x04\x8e" + HUGE.to_bytes(8, "little") + b"x.",
    "a memo of any size": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a number of any size": b"\x80\x02I" + b"9" * 100_000 + b"\n.",
}


@pytest.mark.parametrize("data", PICKLES.values(), ids=list(PICKLES))
@pytest.mark.parametrize("name", ["step-5.pt", "step-5.ckpt", "step-5/.metadata"])
def test_pickles(good, tmp_path, data, name):
    """Reading a damaged pickle ends; pickles also mark the older form of torch.save."""
    (tmp_path / "step-5").mkdir()
    (tmp_path / name).write_bytes(data if name == "step-5/.metadata" else legacy(data))
    assert newest(tmp_path)[0] in (str(good), str(tmp_path / name))


@pytest.mark.parametrize(
    "data",
    [nested_tuples(60), b"\x80\x02X\x01\x00", b"\x80\x02X\x01\x00\x00\xff" + b"x" * 1000],
    ids=["a name that is no text", "cut short", "a bad byte in a length"],
)
def test_pickles_that_make_no_sense_are_damaged(good, tmp_path, data):
    (tmp_path / "step-5.pt").write_bytes(legacy(data))
    assert passed_over(tmp_path, good) == "step-5.pt: cut short or still being written"


def test_a_huge_file_in_the_older_form(good, tmp_path):
    begin = legacy(b"\x80\x04\x8d" + HUGE.to_bytes(8, "little"))
    sparse(tmp_path / "step-5.pt", begin=begin)
    assert passed_over(tmp_path, good) == "step-5.pt: cut short or still being written"


def test_more_spans_than_there_is_time_for(tmp_path):
    sparse(tmp_path / "__0_0.distcp", begin=b"x")
    entry = entry_at(str(tmp_path / "__0_0.distcp"))
    part = Part(entry, FileKind.PIECES, entry.name, ((0, HUGE),) * 200_000)
    outcome = CheckpointReading([part], ResultCache(), until=time.monotonic() + 0.1).run()
    assert not outcome.is_complete


@pytest.fixture
def deep(starts):
    """Make and remove directories too deep for shutil and pytest to remove."""
    above = tempfile.mkdtemp()
    before = os.open(".", os.O_RDONLY)
    os.mkdir(f"{above}/step-5")
    os.chdir(f"{above}/step-5")
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    os.fchdir(before)
    os.close(before)
    yield Path(above)
    subprocess.run(["rm", "-r", above], check=True)


def test_deep_directories(deep):
    good = saved(deep / "step-1.pt")
    (deep / "step-5" / ".complete").touch()
    wrong = "it has more than 20000 directories, or 32 levels of them"
    assert passed_over(deep, good) == f"step-5: {wrong}"
    assert newest(deep, complete="**/DONE")[0] == str(good)
    assert newest(deep / "**")[0] == str(good)


def test_directories_that_scripts_have(tmp_path):
    place = tmp_path / "runs" / "step-5"
    deepest = place.joinpath(*"abcdefgh")
    deepest.mkdir(parents=True)
    good = saved(deepest / "step-1.pt")
    assert newest(tmp_path / "**") == (str(good), [])
    (place / ".complete").touch()
    assert newest(tmp_path / "runs") == (str(place), [])


def test_wide_directories(good, place, tmp_path, monkeypatch):
    (place / ".complete").touch()
    for number in range(20):
        (place / str(number)).mkdir()
    monkeypatch.setattr(listing, "MOST_FOLDERS", 10)
    assert "it has more than 10 directories" in passed_over(tmp_path, good)
    monkeypatch.setattr(listing, "MOST_ENTRIES", 15)
    assert newest(tmp_path)[0] == str(good)
    with pytest.raises(OSError, match="it has more than 15 files"):
        search(str(place))


def test_files_are_opened_in_one_place_only():
    opened = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(
            r"(?<![\w.])open\(|os\.open\(|read_(text|bytes)\(",
            path.read_text(),
        )
    }
    assert opened == {"archives.py"}


# Any bytes


FIELDS = ("model", "num_experts", "global_step", "dp_world_size")
HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()


def samples() -> tuple[bytes, ...]:
    import torch

    state = dict(zip(FIELDS, (torch.arange(5.0), [1, 2], 5, 1), strict=True))
    return (
        zipped(state),
        legacy(state),
        len(HEADER).to_bytes(8, "little") + HEADER + bytes(4),
        HEADER,
        json.dumps({"weight_map": {"a": "b"}, "global_step": 5}).encode(),
        *(
            pickle.dumps({"some": [1, 2], "other": (3, {"a": None})}, protocol)
            for protocol in (0, 2, 4)
        ),
        b"\x80\x04\x8c\x0drelative_path\x94\x8c\x01a\x94\x8c\x06offset\x94K\x00\x8c\x06length\x94K\x01.",
        legacy(nested_tuples(60)),
    )


ANY_DATA = st.deferred(lambda: damaged(samples()))


@pytest.mark.fuzz
@given(ANY_DATA)
def test_any_pickle(data):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        window = Window(file.fileno(), len(data))
        for read in (
            pickles.pieces,
            pickles.storages,
            lambda window: pickles.fields(window, FIELDS),
            lambda window: pickles.fields(window, FIELDS, before=3),
        ):
            with contextlib.suppress(ValueError):
                read(window)


@pytest.mark.fuzz
@settings(max_examples=300)
@given(ANY_DATA)
def test_any_archive(data):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        window = Window(file.fileno(), len(data))
        for check in (
            archives.check_torch,
            archives.check_tensors,
            archives.check_json,
            archives.pickled,
            lambda window: archives.fields(window, "global_step"),
            lambda window: [archives.contents(window, m) for m in archives.members(window)],
        ):
            with contextlib.suppress(DamagedError):
                check(window)


NAMES = (
    *("step-5.pt", "5.ckpt", "5.safetensors", "latest", megatron.TRACKER, "trainer_state.json"),
    *("dir/.metadata", "dir/__0_0.distcp", "dir/__0.metadata", "dir/.complete", "dir/meta.pt"),
    *("dir/trainer_state.json", "dir/optimizer.pt", "dir/model.safetensors.index.json"),
    *("dir/scheduler.pt", "dir/rng_state.pth", "dir/random_states_0.pkl", "dir/optimizer.bin"),
    *("dir/mp_rank_00_model_states.pt", "dir/layer_0_expert_0_mp_rank_00_model_states.pt"),
    *("iter_0000005/.metadata", "iter_0000005/mp_rank_00/model.pt", "checkpoint-5/optimizer.pt"),
    *("dir/zero_pp_rank_0_mp_rank_00_optim_states.pt", "dir/pytorch_model_fsdp_0/.metadata"),
    *("dir.ckpt/.metadata", "dir.ckpt/__0_0.distcp", "dir.ckpt/meta.pt"),
)


@pytest.mark.fuzz
@settings(max_examples=100)
@given(
    st.dictionaries(st.sampled_from(NAMES), ANY_DATA, max_size=6),
    st.sampled_from(["", "*DONE"]),
)
def test_any_directory(files, complete):
    """Each checkpoint has a result, whatever its files contain."""
    with tempfile.TemporaryDirectory() as directory:
        for name, data in files.items():
            path = Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for where in (directory, f"{directory}/**"):
            for found in finding.examine(where, Facts(complete=complete), ResultCache()):
                assert found.lacks is None or 0 < len(found.lacks) <= finding.LONGEST
