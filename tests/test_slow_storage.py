"""The slow storage of bench/ keeps files, at its rate and with its latency."""

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

from slow_storage import MB, slow_storage, why_not

LONG = 100  # seconds; the slowest of these calls takes a hundredth of that on an idle machine

pytestmark = [
    pytest.mark.starts,
    pytest.mark.skipif(bool(why_not()), reason=f"needs {why_not()}"),
]


def seconds(function, *args):
    began = time.monotonic()
    function(*args)
    return time.monotonic() - began


def test_reads_and_writes_have_a_rate(tmp_path):
    data = os.urandom(5 * MB)
    with slow_storage(tmp_path, rate=10, latency=0) as storage:
        file = storage / "file"
        assert 0.4 < seconds(file.write_bytes, data) < LONG
        assert 0.4 < seconds(file.read_bytes) < LONG
        assert 0.4 < seconds(file.read_bytes) < LONG, "nothing is cached"
        assert file.read_bytes() == data
    assert (tmp_path / "source" / "file").read_bytes() == data
    assert not os.listdir(storage), "it is unmounted"


def test_other_calls_have_a_latency(tmp_path):
    with slow_storage(tmp_path, rate=10, latency=200) as storage:
        assert 0.2 <= seconds((storage / "directory").mkdir) < LONG
        assert 0.2 <= seconds(os.listdir, storage) < LONG
        assert 0.4 <= seconds((storage / "file").touch) < LONG
