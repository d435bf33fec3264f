"""This host, as it is."""

import pytest

from hpclaunch.core.health.host_rules import judge_host
from hpclaunch.system.hosts import host
from hpclaunch.system.shared import disk, memory_groups


def test_a_look_at_this_host(tmp_path):
    logs = disk.look(tmp_path / "to" / "come")
    found = host.read(2, logs=logs, first=True, several=True)
    assert found.logs.free > 0
    assert found.logs.writable
    assert found.logs.path == str(tmp_path / "to" / "come")
    assert found.memory > 0
    assert found.load is not None
    assert not {"log directory", "memory"} & {f.check for f in judge_host(found)}


def test_the_limit_of_the_job_counts(monkeypatch):
    monkeypatch.setattr(host, "memory_limit", lambda: 1 << 20)
    found = host.read(2, logs=None, first=False, several=False)
    assert found.memory == 1 << 20
    assert (found.load, found.synchronised) == (None, None)


def test_a_control_group_may_have_any_name(monkeypatch, tmp_path):
    (tmp_path / "cgroup").write_bytes(b"1:cpu:/\x0b\xc3\xe2\x80\xa8x:y\n0::/\xff\x0cx:y\n")
    monkeypatch.setattr(memory_groups, "GROUP", tmp_path / "cgroup")
    assert host.memory_limit() is None or host.memory_limit() > 0


@pytest.mark.parametrize(
    ("file", "expected"),
    [("0.20 9.50 9.50 3/803 11206", 0.2), ("90.00 9.50 9.50 3/803 11206", 3.0)],
    ids=["quiet, but for this moment", "quiet by now"],
)
def test_load_is_of_those_who_stay(monkeypatch, tmp_path, file, expected):
    (tmp_path / "loadavg").write_text(f"{file}\n")
    monkeypatch.setattr(host, "LOAD", tmp_path / "loadavg")
    assert host.load() == expected


def test_a_directory_to_come(tmp_path):
    assert disk.look(tmp_path / "to" / "come").free > 0
    (tmp_path / "file").write_text("")
    assert not disk.look(tmp_path / "file" / "below").writable
