"""The room for checkpoints: the least of the file system, the memory, and the job's limits."""

import pytest

from hpclaunch.system.shared import memory_groups
from hpclaunch.system.staging import room as room_module
from hpclaunch.system.staging.room import Room, is_in_memory, least, memory_rooms, room

GIB = 1 << 30
LIMIT = "the memory limit of this job (cgroup)"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Return a function that makes a control group of this process, which limits its memory."""
    groups = tmp_path / "cgroup"
    monkeypatch.setattr(memory_groups, "ROOT", groups)
    monkeypatch.setattr(memory_groups, "GROUP", tmp_path / "own")
    monkeypatch.setattr(room_module, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(room_module, "is_in_memory", lambda _directory: True)
    (tmp_path / "meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: {6 << 20} kB\n")

    def make(line, files):
        (tmp_path / "own").write_text(line)
        for name, text in files.items():
            (groups / name).parent.mkdir(parents=True, exist_ok=True)
            (groups / name).write_text(str(text))

    return make


def test_the_memory_of_the_node(node, tmp_path, monkeypatch):
    class Disk:
        f_frsize, f_bavail, f_blocks = 1, 100 * GIB, 200 * GIB

    monkeypatch.setattr(room_module.os, "statvfs", lambda _: Disk)
    node("", {})
    kept = 8 * GIB // 25
    assert room(str(tmp_path)) == Room(6 * GIB, 8 * GIB, "the memory of this node", kept)


def test_of_much_memory_512_mib_are_kept_free(node, tmp_path):
    files = {"max": 64 * GIB, "current": 63 * GIB, "stat": ""}
    node("0::/job\n", {f"job/memory.{name}": text for name, text in files.items()})
    (tmp_path / "meminfo").write_text("")
    assert [*memory_rooms()] == [Room(GIB, 64 * GIB, LIMIT, 512 << 20)]


def test_the_least_is_where_a_save_can_take_least():
    small, large = Room(GIB, 2 * GIB, "small", GIB // 25), Room(GIB + 1, 64 * GIB, LIMIT, GIB // 2)
    assert least([small, large]) == large


def test_a_limit_further_up_and_page_cache_that_is_free(node, tmp_path):
    node(
        "0::/job/step/task\n",
        {
            "job/step/task/memory.max": "max",
            "job/step/memory.max": GIB,
            "job/step/memory.current": 700 << 20,
            "job/step/memory.stat": (
                f"anon 5\ninactive_file {200 << 20}\nactive_file 9\nfile_mapped 2\n"
            ),
            "job/memory.max": 4 * GIB,
            "job/memory.current": 4 * GIB,
            "job/memory.stat": f"inactive_file {4 * GIB}\n",
        },
    )
    assert room(str(tmp_path))[:2] == ((524 << 20) + 7, GIB)


def test_the_older_groups(node, tmp_path):
    node(
        "4:cpu,memory:/job\n1:cpu:/other\n",
        {
            "memory/job/memory.limit_in_bytes": GIB,
            "memory/job/memory.usage_in_bytes": GIB - 5,
            "memory/job/memory.stat": (
                "inactive_file 1\ntotal_inactive_file 4\ntotal_active_file 9\ntotal_mapped_file 8\n"
            ),
        },
    )
    assert room(str(tmp_path))[:2] == (10, GIB)


def test_on_a_disk_memory_does_not_count(node, tmp_path, monkeypatch):
    node("0::/job\n", {"job/memory.max": 1, "job/memory.current": 1, "job/memory.stat": ""})
    monkeypatch.setattr(room_module, "is_in_memory", lambda _directory: False)
    assert room(str(tmp_path)).what == f"the disk of {tmp_path}"


def test_what_is_in_memory(tmp_path):
    assert is_in_memory("/dev/shm")
    assert not is_in_memory("/proc")


def test_what_does_not_fit_is_said_with_figures():
    left = Room(4 * GIB, 8 * GIB, "the memory of this node")
    assert left.lack(GIB, 2) == ""
    assert left.lack(2 * GIB, 2) == (
        "2 checkpoints of 2.0 GiB and a reserve need 4.4 GiB, but the memory of this node has "
        "4.0 GiB free"
    )
    kept = left._replace(kept=GIB)
    assert kept.lack(GIB, 2) == ""
    assert kept.lack(GIB + (GIB >> 1), 2) == (
        "2 checkpoints of 1.5 GiB and a reserve need 4.3 GiB, but the memory of this node has "
        "4.0 GiB free"
    )
    assert left.lack_of_any() == ""
    few = left._replace(free=GIB // 2)
    assert few.lack_of_any() == "the memory of this node has only 512 MiB of 8.0 GiB free"
    assert few._replace(limit=4 * GIB).lack_of_any() == ""


def test_room_is_full_if_less_than_a_hundredth_is_free():
    left = Room(GIB, 8 * GIB, "the memory of this node")
    assert left.full() == ""
    few = left._replace(free=GIB // 20)
    assert few.full() == "the memory of this node was full when a worker failed"
