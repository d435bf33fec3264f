"""JSON that others may have written: readers take it for damaged, whatever is wrong with it."""

from __future__ import annotations

import contextlib
import json
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.observe.launches import Launch
from hpclaunch.system.logs import error_file, fact_files, history_files, output_index, status_file
from hpclaunch.system.network import view_client
from hpclaunch.system.shared import bounded_json, packing
from hpclaunch.worker import private_files

DEEP = 100_000
NESTED = {
    "lists": "[" * DEEP,
    "objects": '{"a":' * DEEP,
    "a list in an object": '{"version": ' + "[" * DEEP + "]" * DEEP + "}",
    "a packed one": json.dumps("[" * DEEP + "]" * DEEP),
}
nested = pytest.mark.parametrize("text", NESTED.values(), ids=list(NESTED))


@nested
def test_nested_too_deeply(text):
    for kind in (Launch, LaunchSnapshot):
        with pytest.raises(msgspec.MsgspecError):
            packing.unpack(text.encode(), kind)
    assert view_client._launch(text.encode()) == {}
    assert output_index.parse(f"1.0 begin {text}".encode()) is None


@nested
@pytest.mark.parametrize("end", ["", "\n"])
def test_files_that_are_nested_too_deeply(tmp_path, text, end):
    for name in ("facts-agent-0.jsonl", "history-agent-0.jsonl", "status.json", "error.json"):
        (tmp_path / name).write_text(text + end)
    assert fact_files.read(tmp_path) == ([], ["facts-agent-0.jsonl"])
    assert history_files.read(tmp_path) == []
    assert status_file.newest(str(tmp_path)) is None
    assert error_file.with_beginning("last", tmp_path / "error.json") == "last"


def test_files_that_are_too_large(tmp_path):
    for name in ("facts-agent-0.jsonl", "history-agent-0.jsonl", "status.json", "error.json"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 8 << 30)  # takes no room
    assert fact_files.read(tmp_path) == ([], ["facts-agent-0.jsonl"])
    assert history_files.read(tmp_path) == []
    assert status_file.newest(str(tmp_path)) is None
    assert error_file.with_beginning("last", tmp_path / "error.json") == "last"


def test_the_limit_of_a_file_and_of_a_text(tmp_path):
    path = tmp_path / "file"
    path.write_text("[1]")
    assert private_files.read_file(path, 3) == b"[1]"
    assert bounded_json.loads(b"[1]", 3) == [1]
    with pytest.raises(OSError, match="File too large"):
        private_files.read_file(path, 2)
    with pytest.raises(ValueError, match="longer than 2 bytes"):
        bounded_json.loads(b"[1]", 2)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.fuzz
@given(st.binary() | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(data):
    """Each reader raises its own error, or returns something."""
    for read in (
        bounded_json.loads,
        view_client.unpacked,
        lambda data: packing.unpack(data, Launch),
        lambda data: packing.unpack(json.dumps(data.decode("latin-1")).encode(), Launch),
    ):
        with contextlib.suppress(ValueError):  # MsgspecError is one
            read(data)
    output_index.parse(b"1.0 begin " + data)
    output_index.parse(data)
