"""The view of several nodes: links to own files, and skeletons of others."""

import errno
import os
import shutil

import pytest

from hpclaunch.core.staging.generations import Holding
from hpclaunch.system.staging import view as view_module
from hpclaunch.system.staging.copying import GivenUpError
from hpclaunch.system.staging.fetching import END
from hpclaunch.system.staging.node import StageNode
from hpclaunch.system.staging.view import UNKNOWN, View


class Viewed:
    """Two nodes, and their view on the first one."""

    def __init__(self, scratch):
        self.stages = [scratch / f"memory-{index}" / "ckpt" for index in range(2)]
        for stage in self.stages:
            stage.mkdir(parents=True)
        self.nodes = {i: StageNode(str(s), str(scratch)) for i, s in enumerate(self.stages)}
        self.view = View(str(self.stages[0]))
        self.root = scratch / "memory-0" / "view" / "ckpt"

    def update(self):
        inventories = {index: node.inventory() for index, node in self.nodes.items()}
        holdings = [
            Holding(
                index,
                f"n{index}",
                {e.name: e.identity for e in found.entries if not e.is_folder},
            )
            for index, found in inventories.items()
        ]
        self.view.update(0, inventories, holdings, self.nodes)

    def shown(self):
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))


@pytest.fixture
def viewed(tmp_path):
    return Viewed(tmp_path)


def test_own_files_are_links_and_others_have_their_real_ends(viewed):
    own, other = viewed.stages[0] / "own.pt", viewed.stages[1] / "run" / "other.pt"
    own.write_bytes(b"own")
    other.parent.mkdir()
    data = os.urandom(3 * END)
    other.write_bytes(data)
    os.utime(other, ns=(5, 12345678901))
    os.utime(viewed.stages[1], (9, 9))
    (viewed.stages[1] / "last.pt").symlink_to(other)
    viewed.update()
    assert viewed.shown() == ["last.pt", "own.pt", "run", "run/other.pt"]
    assert os.path.samefile(viewed.root / "own.pt", own)
    assert os.readlink(viewed.root / "last.pt") == "run/other.pt"
    skeleton = viewed.root / "run" / "other.pt"
    found = skeleton.read_bytes()
    assert (found[:END], found[-END:]) == (data[:END], data[-END:])
    assert not any(found[END:-END])
    assert skeleton.stat().st_mtime_ns == 12345678901
    assert skeleton.stat().st_blocks * 512 < len(data)
    last = max(stage.stat().st_mtime_ns for stage in viewed.stages)
    assert viewed.root.stat().st_mtime_ns == last


def test_it_follows_what_changes(viewed):
    path = viewed.stages[1] / "step.pt"
    path.write_bytes(b"first")
    viewed.update()
    before = (viewed.root / "step.pt").stat().st_ino
    viewed.update()
    assert (viewed.root / "step.pt").stat().st_ino == before
    path.write_bytes(b"later")  # in place
    os.utime(path, (5, 5))
    viewed.update()
    assert (viewed.root / "step.pt").read_bytes() == b"later"
    assert (viewed.root / "step.pt").stat().st_ino != before
    path.unlink()
    (path / "inner").mkdir(parents=True)
    viewed.update()
    assert viewed.shown() == ["step.pt", "step.pt/inner"]
    (path / "inner").rmdir()
    path.rmdir()
    (viewed.stages[0] / "step.pt").write_bytes(b"own")
    viewed.update()
    assert (viewed.root / "step.pt").read_bytes() == b"own"
    (viewed.stages[0] / "step.pt").unlink()
    viewed.update()
    assert viewed.shown() == []


def test_a_file_that_was_written_in_place_has_no_third_link(viewed):
    """After its deletion, such a link would keep its memory."""
    own = viewed.stages[0] / "own.pt"
    for data in (b"first", b"second"):
        own.write_bytes(data)
        viewed.update()
    assert own.stat().st_nlink == 2


def test_of_two_files_of_one_name_the_later_one_is_shown(viewed):
    for index, stage in enumerate(viewed.stages):
        (stage / "step.pt").write_bytes(b"%d" % index)
        os.utime(stage / "step.pt", (index, index))
    viewed.update()
    assert (viewed.root / "step.pt").read_bytes() == b"1"


def test_a_file_that_is_just_being_written_is_empty_until_the_next_look(viewed, monkeypatch):
    (viewed.stages[1] / "whole.pt").write_bytes(b"whole")
    (viewed.stages[1] / "half.pt").write_bytes(b"half")
    fetched = view_module.fetch_ends

    def fetch_ends(wanted, *more):
        if any(each.file.name == "half.pt" for each in wanted):
            raise GivenUpError("it is being written again")
        fetched(wanted, *more)

    with monkeypatch.context() as writing:
        writing.setattr(view_module, "fetch_ends", fetch_ends)
        viewed.update()
    assert (viewed.root / "whole.pt").read_bytes() == b"whole"
    assert (viewed.root / "half.pt").read_bytes() == bytes(4)
    assert viewed.view._shown["half.pt"].inode == UNKNOWN
    viewed.update()
    assert (viewed.root / "half.pt").read_bytes() == b"half"


def test_what_was_fetched_before_a_node_was_lost_leaves_nothing_in_the_view(viewed, monkeypatch):
    """A stale directory that cannot be removed would end every later look."""
    folder = viewed.stages[1] / "step-1"
    folder.mkdir()
    for name in ("first", "second", "third"):
        (folder / name).write_text(name)
    fetched = view_module.fetch_ends

    def fetch_ends(wanted, *more):
        names = [each.file.name for each in wanted]
        if "step-1/third" in names:
            lost = ConnectionResetError(errno.ECONNRESET, "connection lost", "n1")
            raise FileNotFoundError if len(names) > 1 else lost
        fetched(wanted, *more)

    with monkeypatch.context() as losing:
        losing.setattr(view_module, "fetch_ends", fetch_ends)
        with pytest.raises(ConnectionResetError):
            viewed.update()
    shutil.rmtree(folder)
    viewed.update()
    assert viewed.shown() == []


def test_a_file_that_is_being_written_does_not_have_all_others_fetched_one_by_one(
    viewed, monkeypatch
):
    for number in range(63):
        (viewed.stages[1] / f"{number}.pt").write_bytes(b"%d" % number)
    (viewed.stages[1] / "half.pt").write_bytes(b"half")
    fetched, calls = view_module.fetch_ends, []

    def fetch_ends(wanted, *more):
        calls.append(len(wanted))
        if any(each.file.name == "half.pt" for each in wanted):
            raise GivenUpError("it is being written again")
        fetched(wanted, *more)

    monkeypatch.setattr(view_module, "fetch_ends", fetch_ends)
    viewed.update()
    assert len(calls) == 13  # 64 files, and two halves of what one of them is among
    shown = {path.name: path.read_bytes() for path in viewed.root.iterdir()}
    assert shown == {f"{i}.pt": b"%d" % i for i in range(63)} | {"half.pt": bytes(4)}
