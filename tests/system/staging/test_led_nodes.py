"""A stager that leads several nodes: what it drains, keeps, restores and deletes."""

import os
import shutil
import warnings

import pytest
from led_nodes import LedNodes
from looking import cut_short, damage, newest
from saving_scripts import picture, write

from hpclaunch.system.staging import messages, node


@pytest.fixture
def nodes(tmp_path):
    made = LedNodes(tmp_path)
    yield made
    made.close()


def dcp(nodes, step, scratch, *, key="", times=None):
    """Save with torch.distributed.checkpoint: the first node has the metadata, the second and the
    third have a shard each. Return the whole as on a shared directory.
    """
    import torch
    from torch.distributed import checkpoint

    saved = scratch / "saved" / f"{step}" / (key or f"step-{step}")
    state = {f"layer.{i}": torch.full((100_000, 5), float(step + i)) for i in range(6)}
    writer = checkpoint.FileSystemWriter(saved, thread_count=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process
        checkpoint.save(state, storage_writer=writer)
    for at, name in enumerate((".metadata", "__0_0.distcp", "__0_1.distcp")):
        target = nodes.stages[at] / saved.name
        target.mkdir(exist_ok=True)
        shutil.copy2(saved / name, target / name)
    return saved.parent


def clear(storage):
    """Delete all that is on storage, so that only memory has something to restore."""
    shutil.rmtree(storage)
    storage.mkdir()


# Draining


def test_what_another_node_has_saved_reaches_storage(nodes):
    stager = nodes.lead(1)
    write(nodes.stages[0] / "step-1.pt", 1)
    (nodes.stages[0] / "log.txt").write_text("step 1")
    nodes.work(stager)
    assert picture(nodes.storage) == picture(nodes.stages[0])
    assert [m.path for m in nodes.sent(messages.Drained)] == [str(nodes.storage / "step-1.pt")]


@pytest.mark.parametrize("leader", [0, 1])
def test_shards_of_several_nodes_become_one_checkpoint(nodes, tmp_path, leader):
    """They are too large for the view, so each node copies its own."""
    stager = nodes.lead(leader)
    expected = picture(dcp(nodes, 1, tmp_path))
    nodes.work(stager)
    assert picture(nodes.storage) == expected
    dcp(nodes, 2, tmp_path)
    os.utime(nodes.stages[2] / "step-2" / "__0_1.distcp")
    nodes.work(stager)
    assert newest(nodes.storage)[0] == str(nodes.storage / "step-2")
    assert not nodes.sent(messages.DrainFailed)


@pytest.mark.parametrize("change", [None, cut_short])
def test_without_the_whole_shard_of_another_node_it_is_incomplete(nodes, tmp_path, change):
    stager = nodes.lead()
    expected = picture(dcp(nodes, 1, tmp_path))
    shard = nodes.stages[2] / "step-1" / "__0_1.distcp"
    whole, times = shard.read_bytes(), (os.stat(shard).st_atime_ns, os.stat(shard).st_mtime_ns)
    if change is None:
        shard.unlink()
    else:
        damage(shard, change)
    nodes.work(stager)
    assert not nodes.sent(messages.Drained)
    shard.write_bytes(whole)
    os.utime(shard, ns=times)
    nodes.work(stager)
    assert picture(nodes.storage) == expected


def test_a_shard_that_is_rewritten_while_its_node_copies_it_is_not_published(
    nodes, tmp_path, monkeypatch
):
    stager = nodes.lead()
    dcp(nodes, 1, tmp_path)
    shard = nodes.stages[2] / "step-1" / "__0_1.distcp"
    copied, todo = node.copying.copy, [lambda: shard.write_bytes(shard.read_bytes())]

    def copy(items, source, draft, *more):
        copied(items, source, draft, *more)
        if todo and any(each.name.endswith("__0_1.distcp") for each in items):
            todo.pop()()

    monkeypatch.setattr(node.copying, "copy", copy)
    stager.work()
    assert os.listdir(nodes.storage) == []
    nodes.work(stager)
    assert newest(nodes.storage)[0] == str(nodes.storage / "step-1")


def test_everything_of_all_nodes_is_flushed(nodes):
    stager = nodes.lead(1)
    for at, stage in enumerate(nodes.stages):
        (stage / "logs").mkdir()
        (stage / "logs" / f"rank-{at}.log").write_text(f"rank {at}\n")
    (nodes.stages[2] / "results.bin").write_bytes(os.urandom(3 << 20))
    write(nodes.stages[0] / "step-1.pt", 1)
    write(nodes.stages[2] / "final" / "weights.pt", 9)
    expected = {name: data for stage in nodes.stages for name, data in picture(stage).items()}
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert picture(nodes.storage) == expected
    damage(nodes.stages[2] / "results.bin", lambda data: data[::-1])
    assert stager.flush(2).missing == ()
    assert picture(nodes.storage)["results.bin"] == picture(nodes.stages[2])["results.bin"]


# Restoring


@pytest.mark.parametrize("leader", [0, 1])
def test_what_a_lost_node_has_saved_is_restored_from_its_buddy(nodes, leader):
    stager = nodes.lead(leader)
    write(nodes.stages[2] / "step-1.pt", 1)
    (nodes.stages[2] / "last.pt").symlink_to(nodes.stages[2] / "step-1.pt")
    (nodes.stages[2] / "latest").write_text("step-1.pt")
    before = picture(nodes.stages[2])
    nodes.work(stager)
    clear(nodes.storage)
    nodes.lose(2)
    restored = nodes.restore(stager)
    assert restored.path == ""
    assert restored.fetched > 0
    assert picture(nodes.stages[0]) == picture(nodes.stages[1]) == before
    assert nodes.restore(stager).fetched == 0  # all have it


def test_shards_of_a_lost_node_are_restored(nodes, tmp_path):
    stager = nodes.lead()
    expected = picture(dcp(nodes, 1, tmp_path))
    nodes.work(stager)
    clear(nodes.storage)
    nodes.lose(1)
    nodes.join(1)
    assert nodes.restore(stager).path == ""
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3


def test_another_leader_continues(nodes, tmp_path):
    stager = nodes.lead(0)
    write(nodes.storage / "old.pt", 5)
    (nodes.stages[1] / "log.txt").write_text("step 1\n")
    dcp(nodes, 1, tmp_path)
    expected = dcp(nodes, 2, tmp_path)
    nodes.work(stager)
    nodes.lose(0)
    stager = nodes.lead(1)
    assert nodes.restore(stager).path == ""
    for index in (1, 2):
        assert newest(nodes.stages[index])[0] == str(nodes.stages[index] / "step-2")
        found = picture(nodes.stages[index] / "step-2")
        assert found == picture(expected / "step-2")
    with (nodes.stages[1] / "log.txt").open("a") as file:
        file.write("step 2\n")
    dcp(nodes, 3, tmp_path)
    nodes.work(stager)
    assert stager.flush(1).missing == ()
    assert (nodes.storage / "log.txt").read_text() == "step 1\nstep 2\n"
    assert sorted(os.listdir(nodes.storage)) == ["log.txt", "old.pt", "step-1", "step-2", "step-3"]
