"""A stager that leads several nodes: what it drains, keeps, restores and deletes."""

import contextlib
import errno
import json
import math
import os
import shutil
import threading
import time
import warnings

import pytest
from kill_points import KilledError
from led_nodes import LedNodes
from looking import cut_short, damage, date, newest
from random_kills import LIMIT, eventually
from saving_scripts import deepspeed, picture, write

from hpclaunch.system.checkpoints.service import CheckpointService
from hpclaunch.system.staging import (
    copying,
    draining,
    gathering,
    looking,
    messages,
    node,
    restoring,
    room,
    service,
    view,
)
from hpclaunch.system.staging import nodes as nodes_of
from hpclaunch.system.staging.fetching import END
from hpclaunch.system.staging.memory import Memory
from hpclaunch.system.staging.orders import Call, Copy, Look, Note
from hpclaunch.system.staging.stage_directory import BESIDE

NEWER = "storage has a newer one"
SILENT = "storage has not answered for 60 s, and may have a newer one"


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


def with_the_first_of_two_deleted(nodes, leader, scratch):
    """Save two checkpoints, of which the script then deletes its part of the first. Return the
    stager that leads, and the picture of the second.
    """
    stager = nodes.lead(leader)
    dcp(nodes, 1, scratch)
    nodes.work(stager)
    expected = picture(dcp(nodes, 2, scratch))
    nodes.work(stager)
    shutil.rmtree(nodes.stages[0] / "step-1")
    return stager, expected


def clear(storage):
    """Delete all that is on storage, so that only memory has something to restore."""
    shutil.rmtree(storage)
    storage.mkdir()


def without_an_answer(peer, monkeypatch, error, times=-1, order=Look):
    """Have a node not answer an order for some times; -1: never."""
    ask, left = peer.ask, [times]

    def silent(given):
        if not isinstance(given, order) or left[0] == 0:
            return ask(given)
        left[0] -= 1
        call = Call()
        call.set_exception(error)
        return call

    monkeypatch.setattr(peer, "ask", silent)


# Draining


def test_a_directory_reaches_storage_where_an_earlier_launch_has_left_a_file_of_this_name(nodes):
    """Lightning's last.ckpt is a file under DDP, and a directory under FSDP."""
    write(nodes.storage / "last.ckpt", 1)
    before = (nodes.storage / "last.ckpt").read_bytes()
    stager = nodes.lead()
    for rank in (0, 1):
        write(nodes.stages[rank] / "last.ckpt" / f"rank-{rank}.pt", 2)
    (nodes.stages[0] / "last.ckpt" / ".complete").touch()
    nodes.work(stager)
    assert newest(nodes.storage)[0] == str(nodes.storage / "last.ckpt")
    assert len(os.listdir(nodes.storage / "last.ckpt")) == 3
    assert (nodes.storage / "last.ckpt.~1~").read_bytes() == before
    assert stager.flush(1) == messages.Flushed(1, (), "")


def test_what_another_node_has_saved_reaches_storage(nodes):
    stager = nodes.lead(1)
    write(nodes.stages[0] / "step-1.pt", 1)
    (nodes.stages[0] / "log.txt").write_text("step 1")
    nodes.work(stager)
    assert picture(nodes.storage) == picture(nodes.stages[0])
    assert [m.path for m in nodes.sent(messages.Drained)] == [str(nodes.storage / "step-1.pt")]


@pytest.mark.parametrize("leader", [0, 1])
def test_shards_of_several_nodes_become_one_checkpoint(nodes, tmp_path, leader):
    """Each node copies its own, since they are too large for the view."""
    stager = nodes.lead(leader)
    expected = picture(dcp(nodes, 1, tmp_path))
    nodes.work(stager)
    assert picture(nodes.storage) == expected
    dcp(nodes, 2, tmp_path)
    os.utime(nodes.stages[2] / "step-2" / "__0_1.distcp")
    nodes.work(stager)
    assert newest(nodes.storage)[0] == str(nodes.storage / "step-2")
    assert not nodes.sent(messages.DrainFailed)


def test_a_node_that_answers_late_does_not_put_off_the_next_look(nodes, monkeypatch):
    stager = nodes.lead()
    inventory = node.StageNode.inventory

    def late(self):
        time.sleep(0.5)
        return inventory(self)

    monkeypatch.setattr(node.StageNode, "inventory", late)
    monkeypatch.setattr(looking, "PERIOD", 1.0)
    stager.looking.look()
    assert stager.looking.due < time.monotonic() + 10


def test_looks_that_fail_for_long_are_reported(nodes, monkeypatch):
    """Nothing reaches storage meanwhile."""
    stager = nodes.lead()
    error = TimeoutError(errno.ETIMEDOUT, "no answer", "n1")
    without_an_answer(stager.memory.peers[1], monkeypatch, error, times=3)
    stager.work()
    assert nodes.sent(messages.DrainFailed) == []
    monkeypatch.setattr(looking, "LASTING", 0.0)
    stager.work()
    assert nodes.sent(messages.DrainFailed) == [
        messages.DrainFailed(str(nodes.storage), "n1: no answer")
    ]
    monkeypatch.setattr(looking, "LASTING", 60.0)
    stager.work()
    stager.work()
    assert len(nodes.sent(messages.DrainFailed)) == 1


def test_a_look_that_takes_long_puts_off_the_next_one_by_seconds(nodes, monkeypatch):
    stager = nodes.lead()
    monkeypatch.setattr(time, "thread_time", iter((0.0, 5.0)).__next__)
    monkeypatch.setattr(looking, "PERIOD", 1.0)
    began = time.monotonic()
    stager.looking.look()
    assert began + 5 < stager.looking.due < time.monotonic() + 15


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_search_waits_for_a_node_that_does_not_answer(nodes, monkeypatch, is_lasting):
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    error = TimeoutError(errno.ETIMEDOUT, "no answer", "n1")
    without_an_answer(stager.memory.peers[1], monkeypatch, error, times=-1 if is_lasting else 3)
    monkeypatch.setattr(nodes_of, "PATIENCE", 0.2 if is_lasting else 60.0)
    searched = stager.search(5)
    if is_lasting:
        assert searched == messages.Searched(5, (), "n1: no answer")
    else:
        assert [found.name for found in searched.found] == ["step-1.pt"]


def test_a_search_that_waits_for_a_node_gives_way_to_a_flush(nodes, monkeypatch):
    """Else both would wait for it in turn, a minute each."""
    stager = nodes.lead()
    error = TimeoutError(errno.ETIMEDOUT, "no answer", "n1")
    without_an_answer(stager.memory.peers[1], monkeypatch, error)
    stager.requests.pending.append(messages.Flush(6))
    began = time.monotonic()
    assert stager.search(5) == messages.Searched(5, (), "n1: no answer")
    assert time.monotonic() < began + 20


def test_links_to_directories_that_are_not_searched(nodes, tmp_path):
    """Both links count as checkpoints: one to a part of the staging directory, one to a model."""
    stager = nodes.lead()
    saved, model = nodes.stages[1] / "runs" / "1" / "step-1", tmp_path / "model"
    write(saved / "rank-0.pt", 1)
    (saved / ".complete").touch()
    (nodes.stages[1] / "latest").symlink_to(saved)
    write(model / "weights.pt", 1)
    (model / ".complete").touch()
    (nodes.stages[1] / "pretrained").symlink_to(model)
    nodes.work(stager)
    expected = picture(nodes.stages[1])
    assert picture(nodes.storage) == expected
    clear(nodes.storage)
    nodes.lose(1)
    assert nodes.restore(stager).path == ""
    assert picture(nodes.stages[2]).items() >= {("latest", expected["latest"])}


def test_a_checkpoint_whose_last_file_is_deleted_while_it_is_looked_at(nodes, monkeypatch):
    """The script deletes it, file by file."""
    stager = nodes.lead()
    two_ranks(nodes, 1)
    contents_of = looking.contents_of

    def late(root, found):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(root, "step-1", ".complete"))
        return contents_of(root, found)

    monkeypatch.setattr(looking, "contents_of", late)
    stager.work()
    assert os.listdir(nodes.storage) == []


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


@pytest.mark.parametrize("meanwhile", ["copy", "share"])
def test_a_stager_that_leads_no_more_does_not_replace_what_is_newer(nodes, monkeypatch, meanwhile):
    stager = nodes.lead()
    write(nodes.stages[0] / "snapshot.pt", 1)
    (nodes.stages[0] / "latest").write_text("1")
    done = getattr(Memory, meanwhile)

    def late(self, *words, **options):
        done(self, *words, **options)
        write(nodes.storage / "snapshot.pt", 2)
        (nodes.storage / "latest").write_text("2")

    monkeypatch.setattr(stager.memory, meanwhile, late.__get__(stager.memory))
    stager.work()
    stager.work()  # too early to try it again
    newer = picture(nodes.storage)
    assert [message.why for message in nodes.sent(messages.DrainFailed)] == [NEWER]
    assert (nodes.storage / "latest").read_text() == "2"
    assert newer["snapshot.pt"] != picture(nodes.stages[0])["snapshot.pt"]
    assert stager.flush(1).why == NEWER


@pytest.mark.parametrize("fails", [False, True])
def test_the_next_leader_knows_what_the_last_one_has_put_on_storage(nodes, monkeypatch, fails):
    """Else it would keep that as a checkpoint of an earlier launch."""
    stager = nodes.lead(0)
    if fails:  # the first time, a node does not get the record
        error = ConnectionResetError(errno.ECONNRESET, "connection lost", "n1")
        without_an_answer(stager.memory.peers[1], monkeypatch, error, times=1, order=Note)
    else:

        def die(*_):
            raise KilledError

        monkeypatch.setattr(stager.others, "drain", die)
    write(nodes.stages[1] / "snapshot.pt", 1)
    with contextlib.nullcontext() if fails else pytest.raises(KilledError):
        nodes.work(stager)
    nodes.lose(0)
    stager = nodes.lead(1)
    nodes.restore(stager)
    write(nodes.stages[1] / "snapshot.pt", 2)
    nodes.work(stager)
    assert picture(nodes.storage) == picture(nodes.stages[1])


@pytest.mark.parametrize("is_during_a_look", [False, True])
def test_a_stager_that_leads_no_more_gives_no_orders(nodes, monkeypatch, is_during_a_look):
    """Orders to its own node have no term that could be refused."""
    stager, orders = nodes.lead(), []
    memory = stager.memory
    stager.work()
    monkeypatch.setattr(memory._replicating, "look", lambda *look: orders.append(look))
    if is_during_a_look:
        monkeypatch.setattr(memory.peers[1], "ask", lambda _: Call())
        monkeypatch.setattr(stager.requests, "serve", lambda _: memory._follow())
    else:
        memory._follow()
    stager.work()
    assert orders == []


def test_a_stager_that_leads_no_more_keeps_no_memory(nodes):
    """The view has links to the files of its node. Once it leads again, there is another view."""
    stager, saved = nodes.lead(0), nodes.stages[0] / "step-1.pt"
    write(saved, 1)
    nodes.work(stager)
    assert saved.stat().st_nlink == 2
    stager.memory._follow()
    assert saved.stat().st_nlink == 1
    nodes.join(0)
    write(nodes.stages[1] / "step-2.pt", 2)
    nodes.work(stager)
    assert sorted(os.listdir(nodes.storage)) == ["step-1.pt", "step-2.pt"]


def test_the_record_names_no_tracker_that_was_left_out(nodes):
    """Another user has written it: the next one of the script must not replace it for good."""
    stager = nodes.lead()
    latest, theirs = nodes.stages[0] / "latest", nodes.storage / "latest"
    write(nodes.stages[0] / "step-1.pt", 1)
    latest.write_text("step-1.pt")
    theirs.write_text("theirs")
    os.utime(latest, (100, 100))
    nodes.work(stager)
    assert theirs.read_text() == "theirs"
    latest.write_text("step-1.pt once more")
    assert stager.flush(1).missing == ()
    assert theirs.read_text() == "step-1.pt once more"
    assert (nodes.storage / "latest.~1~").read_text() == "theirs"


def test_a_checkpoint_that_another_stager_has_replaced_by_an_older_one_is_copied_again(nodes):
    stager = nodes.lead()
    write(nodes.stages[1] / "snapshot.pt", 2)
    nodes.work(stager)
    write(older := nodes.storage / "snapshot.pt", 1)
    os.utime(older, (100, 100))
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert picture(nodes.storage) == picture(nodes.stages[1])


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
    assert all({*os.listdir(s.parent)} <= {s.name, *BESIDE} for s in nodes.stages)


def test_shards_of_a_lost_node_are_restored(nodes, tmp_path):
    stager = nodes.lead()
    expected = picture(dcp(nodes, 1, tmp_path))
    nodes.work(stager)
    clear(nodes.storage)
    nodes.lose(1)
    nodes.join(1)
    assert nodes.restore(stager).path == ""
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3


def test_a_buddys_own_copy_is_not_fetched(nodes):
    stager = nodes.lead(0)
    write(nodes.stages[0] / "step-1.pt", 1)
    nodes.work(stager)
    size = (nodes.stages[0] / "step-1.pt").stat().st_size
    nodes.lose(0)
    assert nodes.restore(nodes.lead(1)).fetched == size  # by the third node
    assert [os.listdir(nodes.stages[index]) for index in (1, 2)] == [["step-1.pt"]] * 2


def with_best(root, epoch):
    """Save to a fixed name, and then a copy with another name; the script looks for the first."""
    for name, at in (("checkpoint.pt", 1000 + epoch), ("model_best.pt", 1000.5 + epoch)):
        write(root / name, epoch)
        date(root / name, at)


def with_a_newer_best(nodes, leader=0):
    """Restore a save, and save again on the third node. Return the stager, and the new files."""
    with_best(nodes.storage, 1)
    stager = nodes.lead(leader)
    nodes.restore(stager)
    with_best(nodes.stages[2], 2)
    expected = picture(nodes.stages[2])
    nodes.work(stager)
    return stager, expected


@pytest.mark.parametrize("leader", [0, 1])
def test_all_nodes_of_a_new_launch_get_what_scripts_look_for_by_a_fixed_name(nodes, leader):
    with_best(nodes.storage, 1)
    (nodes.storage / "last_checkpoint").write_text("checkpoint.pt")
    write(nodes.storage / "step-1.pt", 1)
    date(nodes.storage / "step-1.pt", 1000)
    stager = nodes.lead(leader)
    assert nodes.restore(stager).path == str(nodes.storage / "model_best.pt")
    expected = {n: p for n, p in picture(nodes.storage).items() if n != "step-1.pt"}
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3
    nodes.work(stager)
    assert not nodes.sent(messages.Drained)  # they are there already
    assert nodes.restore(stager).fetched == 0


def test_without_room_for_one_by_a_fixed_name_no_node_has_it(nodes, monkeypatch):
    """Else the ranks would begin at different epochs."""
    with_best(nodes.storage, 1)
    inventory = node.StageNode.inventory
    size = (nodes.storage / "model_best.pt").stat().st_size

    def little_on_the_last(self):
        found = inventory(self)
        is_last = self.stage == str(nodes.stages[2])
        used = sum(each.size for each in found.entries if each.is_file)
        free = int(3 * size) - used if is_last else found.free.free
        return found._replace(free=found.free._replace(free=free, kept=0))

    monkeypatch.setattr(node.StageNode, "inventory", little_on_the_last)
    assert nodes.restore(nodes.lead()).path == str(nodes.storage / "model_best.pt")
    assert [os.listdir(stage) for stage in nodes.stages] == [["model_best.pt"]] * 3
    assert len(os.listdir(nodes.storage)) == 2


def test_one_by_a_fixed_name_does_not_take_the_room_of_the_newest(nodes, monkeypatch):
    """The node that leads now has just joined."""
    stager = nodes.lead(0)
    nodes.restore(stager)
    with_best(nodes.stages[2], 1)
    size = (nodes.stages[2] / "model_best.pt").stat().st_size
    nodes.work(stager)
    nodes.lose(1, 2)
    nodes.join(1)

    def limited(stage):
        found = real(stage)
        if stage != str(nodes.stages[1]):
            return found
        used = sum(path.stat().st_size for path in nodes.stages[1].iterdir())
        return found._replace(free=int(2.5 * size) - used, kept=0)

    real = room.room
    for module in (restoring, node):
        monkeypatch.setattr(module, "room", limited)
    stager = nodes.lead(1)
    assert nodes.restore(stager).path == ""
    assert [os.listdir(nodes.stages[n]) for n in nodes.living] == [["model_best.pt"]] * 2


def test_all_nodes_get_what_one_has_saved_by_a_fixed_name(nodes):
    with_best(nodes.storage, 1)
    stager = nodes.lead()
    nodes.restore(stager)
    with_best(nodes.stages[1], 2)
    expected = picture(nodes.stages[1])
    nodes.work(stager)
    clear(nodes.storage)
    nodes.lose(2)
    nodes.join(2)
    assert nodes.restore(stager).path == ""
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3


@pytest.mark.parametrize("leader", [0, 1])
@pytest.mark.parametrize("is_lost", [False, True])
def test_storage_has_what_no_node_has_complete_by_a_fixed_name(nodes, leader, is_lost):
    """The node that saves is lost, or its script is killed during a save. Another one may still
    have what an earlier round began with.
    """
    stager, expected = with_a_newer_best(nodes, leader)
    if is_lost:
        nodes.lose(2)
    else:
        damage(nodes.stages[2] / "checkpoint.pt", cut_short)
    assert nodes.restore(stager).path == ""
    assert [picture(nodes.stages[n]) for n in nodes.living] == [expected] * len(nodes.living)
    assert "checkpoint.pt.~1~" not in os.listdir(nodes.storage)


def test_a_restore_that_is_tried_again_also_has_what_it_has_copied_before(nodes, monkeypatch):
    stager, expected = with_a_newer_best(nodes)
    nodes.lose(2)

    def lose_another(self, transfers):
        monkeypatch.undo()
        nodes.lose(1)
        nodes.join(1)
        raise gathering.LostError("n1 is lost")

    monkeypatch.setattr(nodes_of.Nodes, "fetch", lose_another)
    assert nodes.restore(stager).path == ""
    assert picture(nodes.stages[0]) == picture(nodes.stages[1]) == expected


def test_what_storage_has_by_a_fixed_name_is_not_waited_for(nodes, answer_of_storage):
    answer_of_storage.set()
    stager = nodes.lead()
    with_best(nodes.stages[2], 1)
    expected = picture(nodes.stages[2])
    nodes.work(stager)
    nodes.lose(2)
    answer_of_storage.clear()
    assert nodes.restore(stager).path == ""
    del expected["checkpoint.pt"]
    assert picture(nodes.stages[0]) == picture(nodes.stages[1]) == expected


@pytest.mark.parametrize("name", ["step", "model"])
def test_storage_is_not_asked_about_checkpoints_with_steps(nodes, answer_of_storage, clock, name):
    answer_of_storage.set()
    stager = nodes.lead()
    for step in (1, 2):
        write(nodes.stages[2] / f"{name}-{step}.pt", step)
        nodes.work(stager)
    nodes.lose(2)
    answer_of_storage.clear()
    assert nodes.restore(stager).path == ""
    assert not clock.ahead


def test_a_restore_cancels_copies_to_buddies(nodes, monkeypatch):
    """Two nodes would fetch the same file at the same time."""
    stager = nodes.lead()
    fetch, has_begun, has_ended = node.StageNode.fetch, threading.Event(), threading.Event()

    def fetch_until_cancelled(self, transfers, generation, sources, between=copying.at_once):
        if not generation:
            return fetch(self, transfers, generation, sources, between)
        has_begun.set()
        try:
            while True:
                between(0, 0.01)
        finally:
            has_ended.set()

    monkeypatch.setattr(node.StageNode, "fetch", fetch_until_cancelled)
    write(nodes.stages[2] / "step-1.pt", 1)
    for _ in range(2):
        stager.memory.replicate(stager.looking.complete(stager.looking.look()))
    assert has_begun.wait(LIMIT)
    assert nodes.restore(stager).fetched > 0
    assert has_ended.wait(LIMIT)
    monkeypatch.undo()
    nodes.replicate(stager)
    assert sum(kept(nodes)) == 1


def test_what_is_deleted_soon_after_a_restore_is_deleted_everywhere(nodes, monkeypatch):
    """While the workers load, nothing is copied, but looks show what the script deletes."""
    monkeypatch.setattr(service, "AFTER_RESTORE", 3600.0)
    stager = nodes.lead(1)
    write(nodes.storage / "step-1.pt", 1)
    stager.requests.take(messages.Restore(1, (), (0, 1, 2)))
    stager._answer()
    for _ in range(2):
        if stager.looking.is_due:
            stager.work()
            stager.looking.due = 0.0
    assert not any(kept(nodes))
    write(nodes.stages[0] / "step-2.pt", 2)
    os.unlink(nodes.stages[0] / "step-1.pt")
    nodes.work(stager)
    assert not any(kept(nodes))
    assert os.listdir(nodes.storage) == ["step-1.pt"]
    stager.memory.copies_at = 0.0
    nodes.work(stager)
    assert sum(kept(nodes)) == 1
    assert os.listdir(nodes.storage) == ["step-2.pt"]
    assert [os.listdir(stage) for stage in nodes.stages] == [["step-2.pt"], [], []]


def test_what_is_deleted_at_once_after_a_restore_is_deleted_on_storage(nodes):
    stager = nodes.lead(1)
    for step in (1, 2):
        write(nodes.stages[0] / f"step-{step}.pt", step)
        nodes.work(stager)
    stager.looking.due = math.inf
    stager.requests.take(messages.Restore(1, (), (0, 1, 2)))
    stager._answer()
    if stager.looking.is_due:
        stager.work()
    write(nodes.stages[0] / "step-3.pt", 3)
    os.unlink(nodes.stages[0] / "step-1.pt")
    stager.memory.copies_at = 0.0
    nodes.work(stager)
    assert sorted(os.listdir(nodes.storage)) == ["step-2.pt", "step-3.pt"]


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
    nodes.join(0)
    nodes.restore(stager)
    dcp(nodes, 3, tmp_path)
    nodes.work(stager)
    assert stager.flush(1).missing == ()
    assert (nodes.storage / "log.txt").read_text() == "step 1\nstep 2\n"
    assert sorted(os.listdir(nodes.storage)) == ["log.txt", "old.pt", "step-1", "step-2", "step-3"]


def kept(nodes):
    """Return the numbers of generations that the nodes keep."""
    roots = (stage.parent / "kept" for stage in nodes.stages)
    return [len(os.listdir(root)) if root.exists() else 0 for root in roots]


def test_the_next_leader_does_not_wait_for_storage_that_has_nothing_newer(nodes, monkeypatch):
    write(nodes.stages[1] / "step-1.pt", 1)
    nodes.work(nodes.lead(0))
    nodes.lose(0)
    stager, asked = nodes.lead(2), []
    monkeypatch.setattr(stager._launch.there, "examine", lambda *_: asked.append(1) or iter(()))
    assert nodes.restore(stager).path == ""
    assert newest(nodes.stages[2])[0] == str(nodes.stages[2] / "step-1.pt")
    assert asked == []


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("lost_at", ["publish", "note_drained"])
def test_the_next_leader_restores_from_storage_what_only_storage_has(
    nodes, monkeypatch, lost_at, has_room
):
    """The last one is lost with the checkpoint that it drains, before it is on storage or after.
    Memory of other nodes may be full.
    """
    stager = nodes.lead(0)
    write(nodes.stages[1] / "step-1.pt", 1)
    nodes.work(stager)
    write(nodes.stages[0] / "step-2.pt", 2)
    if not has_room:

        def fail(*_):
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(node, "_write", fail)

    def die(*_, **__):
        raise KilledError

    monkeypatch.setattr(draining if lost_at == "publish" else stager.draining, lost_at, die)
    with pytest.raises(KilledError):
        stager.work()
    monkeypatch.undo()
    nodes.lose(0)
    restored = nodes.restore(nodes.lead(2))
    is_there = lost_at == "note_drained"
    assert restored.path == (str(nodes.storage / "step-2.pt") if is_there else "")
    assert newest(nodes.stages[2])[0].endswith("step-2.pt" if is_there else "step-1.pt")


def test_of_both_nodes_that_have_it_lost_an_older_one_is_restored(nodes):
    """Node 0 keeps what node 2 has saved. Storage has step 1 only."""
    stager = nodes.lead(1)
    write(nodes.stages[2] / "step-1.pt", 1)
    nodes.work(stager)
    before = picture(nodes.storage)
    write(nodes.stages[2] / "step-2.pt", 2)
    nodes.replicate(stager)
    nodes.replicate(stager)
    assert kept(nodes) == [1, 0, 0]
    nodes.lose(0, 2)
    assert nodes.restore(stager).path == str(nodes.storage / "step-1.pt")
    assert picture(nodes.stages[1]) == before


def test_a_later_one_on_storage_replaces_the_one_of_its_name_in_memory(nodes):
    """The leader still has the state that was restored last."""
    stager = nodes.lead(1)
    write(nodes.stages[2] / "snapshot.pt", 1)
    nodes.work(stager)
    nodes.restore(stager)
    write(nodes.stages[2] / "snapshot.pt", 2)
    nodes.work(stager)
    expected = picture(nodes.stages[2])
    assert picture(nodes.storage) == expected != picture(nodes.stages[1])
    nodes.lose(0, 2)
    assert nodes.restore(stager).path == str(nodes.storage / "snapshot.pt")
    assert picture(nodes.stages[1]) == expected


def test_one_on_storage_replaces_a_mixture_of_its_name_in_memory(nodes, tmp_path):
    """The nodes with the new shards are lost, and the leader has old ones and the new metadata."""
    stager = nodes.lead(0)
    expected = picture(dcp(nodes, 1, tmp_path, key="last"))
    nodes.work(stager)
    nodes.restore(stager)
    dcp(nodes, 2, tmp_path, key="last")
    nodes.lose(1, 2)
    assert nodes.restore(stager).path == str(nodes.storage / "last")
    assert picture(nodes.stages[0]) == expected


def test_trackers_are_restored_with_their_checkpoint_from_storage(tmp_path):
    """The two nodes that are left have the trackers of the restore before."""
    nodes = LedNodes(tmp_path, 4)
    stager = nodes.lead(1)
    for step in (1, 2):
        deepspeed(nodes.stages[2], step)
        (nodes.stages[2] / "newest").unlink(missing_ok=True)
        (nodes.stages[2] / "newest").symlink_to(nodes.stages[2] / f"global_step{step}")
        nodes.work(stager)
        if step == 1:
            nodes.restore(stager)
    expected = picture(nodes.stages[2])
    nodes.lose(2, 3)
    assert nodes.restore(stager).path == str(nodes.storage / "global_step2")
    found = [picture(stage) for stage in nodes.stages[:2]]
    assert all(each.items() >= expected.items() for each in found)
    nodes.close()


def test_what_is_only_on_storage_is_read_once_and_reaches_all(nodes, tmp_path):
    expected = picture(dcp(nodes, 1, tmp_path / "other"))
    for stage in nodes.stages:
        shutil.rmtree(stage / "step-1")
    shutil.copytree(tmp_path / "other" / "saved" / "1", nodes.storage, dirs_exist_ok=True)
    (nodes.storage / "log.txt").write_text("step 1\n")
    stager = nodes.lead()
    restored = nodes.restore(stager)
    assert restored.path == str(nodes.storage / "step-1")
    for stage in nodes.stages:
        found = picture(stage)
        assert found.pop("log.txt")
        assert found == expected
    nodes.work(stager)
    assert not nodes.sent(messages.Drained)
    assert stager.flush(1).missing == ()
    assert sorted(os.listdir(nodes.storage)) == ["log.txt", "step-1"]


def test_a_save_in_place_that_a_kill_has_torn_is_restored_whole(nodes):
    """The buddy keeps the last state, and all nodes get it."""
    stager = nodes.lead()
    write(nodes.stages[1] / "snapshot.pt", 1)
    nodes.work(stager)
    assert nodes.restore(stager).path == ""
    write(nodes.stages[1] / "snapshot.pt", 2)
    expected = picture(nodes.stages[1])
    nodes.work(stager)
    clear(nodes.storage)
    damage(nodes.stages[1] / "snapshot.pt", cut_short)
    assert nodes.restore(stager).path == ""
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3


def test_a_save_of_shards_in_place_that_a_kill_has_torn_is_restored_whole(nodes, tmp_path):
    stager = nodes.lead()
    expected = picture(dcp(nodes, 1, tmp_path, key="last"))
    nodes.work(stager)
    clear(nodes.storage)
    os.unlink(nodes.stages[0] / "last" / ".metadata")
    damage(nodes.stages[1] / "last" / "__0_0.distcp", cut_short)
    assert nodes.restore(stager).path == ""
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3


def test_a_node_that_returns_with_an_old_state_has_no_say(nodes, tmp_path):
    """Neither its files nor a mixture with them is restored."""
    stager = nodes.lead()
    dcp(nodes, 1, tmp_path, key="last")
    nodes.work(stager)
    nodes.restore(stager)
    old = nodes.stages[2].parent.with_name("old")
    shutil.copytree(nodes.stages[2].parent, old, copy_function=shutil.copy2)
    expected = picture(dcp(nodes, 2, tmp_path, key="last"))
    nodes.work(stager)
    nodes.lose(2)
    assert nodes.restore(stager, nodes=(0, 1)).path == ""
    assert [picture(stage) for stage in nodes.stages[:2]] == [expected] * 2
    shutil.rmtree(nodes.stages[2].parent)
    old.rename(nodes.stages[2].parent)
    nodes.join(2)
    nodes.work(stager)
    assert picture(nodes.storage) == expected
    assert nodes.restore(stager).path == ""
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3


def test_a_checkpoint_with_which_the_job_has_failed_is_avoided(nodes):
    stager = nodes.lead()
    for step in (1, 2):
        write(nodes.stages[1] / f"step-{step}.pt", step)
        nodes.work(stager)
    restored = nodes.restore(stager, str(nodes.storage / "step-2.pt"), nodes=(0, 2))
    assert restored.path == ""
    assert [sorted(picture(nodes.stages[i])) for i in (0, 2)] == [["step-1.pt"]] * 2


def limit_room(monkeypatch, stage, free):
    """Let one node have only so many free bytes."""
    inventory = node.StageNode.inventory

    def limited(self):
        found = inventory(self)
        left = free if self.stage == str(stage) else found.free.free
        return found._replace(free=found.free._replace(free=left))

    monkeypatch.setattr(node.StageNode, "inventory", limited)


def test_without_room_on_a_node_its_host_is_named(nodes, monkeypatch):
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    nodes.work(stager)
    limit_room(monkeypatch, nodes.stages[2], 100)
    refused = nodes.restore(stager)
    assert isinstance(refused, messages.Refused)
    assert refused.host == "n2"
    assert "2 checkpoints of 158 KiB" in refused.why


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_restore_that_a_node_does_not_record_is_begun_again(nodes, monkeypatch, is_lasting):
    """Without the record, all that the node saves in the next round would count as a mixture."""
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    record_restore, tries = node.StageNode.record_restore, []

    def full(self, restore):
        if self.stage == str(nodes.stages[1]):
            tries.append(restore)
            if is_lasting or len(tries) == 1:
                raise OSError(errno.ENOSPC, "no space left", self.stage)
        record_restore(self, restore)

    monkeypatch.setattr(node.StageNode, "record_restore", full)
    answer = nodes.restore(stager)
    if is_lasting:
        assert answer == messages.Refused(1, f"{nodes.stages[1]}: no space left", "n1")
    else:
        assert answer.path == ""
        write(nodes.stages[1] / "step-2.pt", 2)
        nodes.work(stager)
        assert sorted(picture(nodes.storage)) == ["step-1.pt", "step-2.pt"]


def test_a_node_that_does_not_answer_keeps_no_memory_from_the_leading_one(nodes, monkeypatch):
    """The view has links to the leading node's own files."""
    stager = nodes.lead(0)
    deleted, replaced = (nodes.stages[0] / name for name in ("step-1.pt", "snapshot.pt"))
    for path in (deleted, replaced):
        write(path, 1)
    nodes.work(stager)
    with replaced.open("rb") as before:
        deleted.unlink()
        write(replaced, 2)
        error = TimeoutError(errno.ETIMEDOUT, "no answer", "n1")
        without_an_answer(stager.memory.peers[1], monkeypatch, error, times=1)
        stager.looking.look()
        assert not os.path.exists(os.path.join(stager.memory.launch.root, deleted.name))
        assert os.fstat(before.fileno()).st_nlink == 0
    nodes.work(stager)
    assert picture(nodes.storage) == picture(nodes.stages[0])


def test_the_leading_node_needs_room_for_the_ends_of_other_nodes_files(nodes, monkeypatch):
    stager = nodes.lead(0)
    nodes.restore(stager)
    write(nodes.stages[1] / "step-1.pt", 1, more=os.urandom(1 << 20))
    limit_room(monkeypatch, nodes.stages[0], 1_000_000)
    nodes.work(stager)
    (no_room,) = nodes.sent(messages.NoRoom)
    assert no_room.host == "n0"


# Deletion


def test_what_the_first_rank_deletes_is_deleted_everywhere(nodes, tmp_path):
    """The script rotates only on the node of its first rank."""
    stager = nodes.lead(1)
    dcp(nodes, 1, tmp_path)
    nodes.work(stager)
    nodes.restore(stager)
    expected = picture(dcp(nodes, 2, tmp_path))
    nodes.work(stager)
    assert sorted(os.listdir(nodes.storage)) == ["step-1", "step-2"]
    shutil.rmtree(nodes.stages[0] / "step-1")
    nodes.work(stager)
    assert picture(nodes.storage) == expected
    assert [os.listdir(stage) for stage in nodes.stages] == [["step-2"]] * 3


def test_a_lost_node_has_deleted_nothing(nodes):
    stager = nodes.lead()
    for step in (1, 2):
        write(nodes.stages[1] / f"step-{step}.pt", step)
        nodes.work(stager)
    nodes.lose(1)
    nodes.restore(stager)
    write(nodes.stages[2] / "step-3.pt", 3)
    nodes.work(stager)
    assert stager.flush(1).missing == ()
    assert sorted(os.listdir(nodes.storage)) == ["step-1.pt", "step-2.pt", "step-3.pt"]


@pytest.mark.parametrize("end", ["restore", "flush"])
def test_what_is_deleted_after_the_last_look_is_deleted_everywhere(nodes, tmp_path, end):
    stager, expected = with_the_first_of_two_deleted(nodes, 1, tmp_path)
    if end == "restore":
        nodes.restore(stager)
        nodes.work(stager)
    assert stager.flush(1).missing == ()
    assert picture(nodes.storage) == expected
    assert {name for stage in nodes.stages for name in os.listdir(stage)} == {"step-2"}


def test_a_look_that_fails_during_a_drain_does_not_count_as_a_deletion(nodes, monkeypatch):
    """Without room for another checkpoint, the drain of a deleted one is given up."""
    stager = nodes.lead(1)
    write(nodes.stages[0] / "step-1.pt", 1, more=os.urandom(3 << 20))
    copied, error = node.copying.copy, TimeoutError(errno.ETIMEDOUT, "no answer", "n0")

    def copy(items, source, draft, *more):
        if "storage" in draft and items:
            without_an_answer(stager.memory.peers[0], monkeypatch, error, times=1)
            stager.looking.due = 0.0
            while not stager.looking.due:
                time.sleep(0.01)
        copied(items, source, draft, *more)

    monkeypatch.setattr(node.copying, "copy", copy)
    monkeypatch.setattr(stager.memory, "lack", lambda *_: ("no room", ""))
    stager.work()
    assert picture(nodes.storage) == picture(nodes.stages[0])


def test_what_is_deleted_while_it_is_drained_is_deleted_on_storage(nodes, monkeypatch):
    """The script saves and deletes as soon as the first look has shown a checkpoint."""
    stager = nodes.lead(1)
    first, second = (nodes.stages[0] / f"step-{step}.pt" for step in (1, 2))
    copied = node.copying.copy

    def copy(items, source, draft, *more):
        copied(items, source, draft, *more)
        if "storage" in draft and first.exists() and any(i.name == first.name for i in items):
            write(second, 2)
            first.unlink()
            stager.looking.due = 0.0
            while not stager.looking.due:
                time.sleep(0.01)

    write(first, 1, more=os.urandom(3 << 20))
    monkeypatch.setattr(node.copying, "copy", copy)
    nodes.work(stager)
    drained = [os.path.basename(message.path) for message in nodes.sent(messages.Drained)]
    assert drained == [first.name, second.name]
    assert os.listdir(nodes.storage) == [second.name]


def test_what_is_left_of_a_deleted_checkpoint_that_was_never_complete_goes(nodes, tmp_path):
    """A worker failed during its save, and later the first rank deletes its own files of it."""
    stager = nodes.lead()
    for step in (1, 2, 3, 4):
        dcp(nodes, step, tmp_path)
        if step == 2:
            (nodes.stages[1] / "step-2" / "__0_0.distcp").unlink()
        nodes.work(stager)
    shutil.rmtree(nodes.stages[0] / "step-2")
    nodes.work(stager)
    assert sorted(os.listdir(nodes.stages[2])) == ["step-1", "step-3", "step-4"]


def delete_before_drained(nodes, stager, first="step-1.pt", second="step-2.pt"):
    """Save two checkpoints, and delete the first before the second is on storage."""
    write(nodes.stages[1] / first, 1)
    nodes.work(stager)
    write(nodes.stages[1] / second, 2)
    (nodes.stages[1] / first).unlink()
    nodes.replicate(stager)


@pytest.mark.parametrize("is_led_by_the_same", [False, True])
def test_the_next_leader_deletes_on_storage_what_the_script_has_deleted(nodes, is_led_by_the_same):
    """The last one is lost before the newer checkpoint is on storage."""
    delete_before_drained(nodes, nodes.lead(0))
    if not is_led_by_the_same:  # else only the stager was killed
        nodes.lose(0)
    stager = nodes.lead(0 if is_led_by_the_same else 2)
    nodes.restore(stager)
    nodes.work(stager)
    assert os.listdir(nodes.storage) == ["step-2.pt"]


def test_the_next_leader_deletes_what_is_left_of_a_deleted_checkpoint(nodes, tmp_path, monkeypatch):
    """The last one is lost before it has the other nodes delete their shards."""
    stager, expected = with_the_first_of_two_deleted(nodes, 2, tmp_path)

    def die(*_):
        raise KilledError

    monkeypatch.setattr(stager.memory, "delete_at", die)
    with pytest.raises(KilledError):
        stager.work()
    nodes.lose(2)
    stager = nodes.lead(0)
    nodes.restore(stager)
    nodes.work(stager)
    assert [os.listdir(nodes.stages[index]) for index in (0, 1)] == [["step-2"]] * 2
    assert picture(nodes.storage) == expected


def test_a_checkpoint_that_is_saved_again_is_deleted_no_longer(nodes):
    """The last leader is lost before it has looked again."""
    delete_before_drained(nodes, nodes.lead(0))
    write(nodes.stages[1] / "step-1.pt", 3)
    again = picture(nodes.stages[1])["step-1.pt"]
    nodes.lose(0)
    stager = nodes.lead(2)
    nodes.restore(stager)
    assert picture(nodes.stages[1])["step-1.pt"] == again
    write(nodes.stages[1] / "step-4.pt", 4)
    nodes.work(stager)
    assert sorted(os.listdir(nodes.storage)) == ["step-1.pt", "step-2.pt", "step-4.pt"]


def test_a_checkpoint_that_was_saved_again_stays_on_storage(nodes, monkeypatch):
    """The last leader and that checkpoint are lost as soon as it is on storage."""
    stager = nodes.lead(0)
    delete_before_drained(nodes, stager, "best.pt", "last.pt")
    write(nodes.stages[0] / "best.pt", 3)
    again = picture(nodes.stages[0])["best.pt"]

    def die(*_):
        raise KilledError

    monkeypatch.setattr(stager.draining, "note_drained", die)
    with pytest.raises(KilledError):
        stager.work()
    assert picture(nodes.storage)["best.pt"] == again
    write(nodes.stages[1] / "last.pt", 4)
    nodes.lose(0)
    stager = nodes.lead(2)
    nodes.restore(stager)
    nodes.work(stager)
    assert sorted(picture(nodes.storage)) == ["best.pt", "last.pt"]


def test_a_deleted_checkpoint_that_is_restored_is_deleted_no_longer(nodes):
    """The later checkpoint is lost."""
    delete_before_drained(nodes, nodes.lead(0))
    nodes.lose(0, 1)
    nodes.join(1)
    (nodes.stages[2].parent / "kept").rename(nodes.stages[2].parent / "lost")
    stager = nodes.lead(2)
    restored = nodes.restore(stager)
    assert restored.path == str(nodes.storage / "step-1.pt")
    write(nodes.stages[1] / "step-4.pt", 4)
    nodes.work(stager)
    assert sorted(os.listdir(nodes.storage)) == ["step-1.pt", "step-4.pt"]


def test_only_the_newest_generation_is_kept(nodes):
    stager = nodes.lead()
    for step in (1, 2, 3):
        write(nodes.stages[0] / f"step-{step}.pt", step)
        nodes.work(stager)
        assert sum(kept(nodes)) == 1


def test_restored_copies_are_dropped_once_a_newer_one_is_safe(nodes):
    """Logs stay: a script may have opened one and not yet written to it."""
    stager = nodes.lead(0)
    write(nodes.stages[1] / "step-1.pt", 1)
    (nodes.stages[1] / "log.txt").write_text("step 1")
    nodes.work(stager)
    nodes.restore(stager)
    write(nodes.stages[1] / "step-2.pt", 2)
    nodes.work(stager)
    assert [sorted(os.listdir(stage)) for stage in nodes.stages] == [
        ["log.txt", "step-1.pt"],
        ["log.txt", "step-1.pt", "step-2.pt"],
        ["log.txt"],
    ]
    assert sorted(os.listdir(nodes.storage)) == ["log.txt", "step-1.pt", "step-2.pt"]


def test_nodes_that_keep_everything_make_room(nodes, monkeypatch):
    stager = nodes.lead(1)
    inventory = node.StageNode.inventory

    def limited(self):
        found = inventory(self)
        used = sum(e.size for e in found.entries if e.is_file)
        return found._replace(free=found.free._replace(free=700_000 - used))

    monkeypatch.setattr(node.StageNode, "inventory", limited)
    for step in range(1, 9):
        write(nodes.stages[0] / f"step-{step}.pt", step)
        nodes.work(stager)
    assert sorted(os.listdir(nodes.storage)) == [f"step-{step}.pt" for step in range(1, 9)]
    assert len(os.listdir(nodes.stages[0])) <= 3


def test_copies_of_other_nodes_never_take_the_room_of_the_next_save(nodes, monkeypatch):
    """A node of which another one's copies take the last room has its own back."""
    stager = nodes.lead()
    inventory, most, others = node.StageNode.inventory, [], []

    def limited(self):
        found = inventory(self)
        size = sum(f.size for k in found.kept for f in k.manifest.files if f.name in k.names)
        most.append(size)
        return found._replace(free=found.free._replace(free=400_000 - size - sum(others)))

    monkeypatch.setattr(node.StageNode, "inventory", limited)
    for step in (1, 2, 3):
        write(nodes.stages[0] / f"step-{step}.pt", step)
        nodes.work(stager)
        others.append(100_000)  # by other programs
    assert 0 < max(most) < 200_000
    assert nodes.sent(messages.NoRoom)
    assert kept(nodes) == [0, 0, 0]


def test_a_checkpoint_that_is_deleted_while_another_node_copies_it_is_kept(nodes, monkeypatch):
    stager = nodes.lead(2)
    read, todo = node.StageNode.read, []

    def read_late(self, *of):
        while todo:
            todo.pop().unlink()
        return read(self, *of)

    write(nodes.stages[0] / "step-1.pt", 1, more=os.urandom(3 << 20))
    stager.memory.replicate(stager.looking.complete(stager.looking.look()))
    monkeypatch.setattr(node.StageNode, "read", read_late)
    todo.append(nodes.stages[0] / "step-1.pt")
    nodes.replicate(stager)
    assert not todo
    assert kept(nodes) == [0, 1, 0]
    nodes.lose(0)
    assert nodes.restore(stager).path == ""
    assert os.listdir(nodes.stages[2]) == ["step-1.pt"]


def test_a_copy_that_has_failed_is_tried_again_only_later(nodes, monkeypatch):
    stager = nodes.lead(1)
    failed = []

    def fetch(*_):
        failed.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(node.StageNode, "fetch", fetch)
    write(nodes.stages[0] / "step-1.pt", 1)
    nodes.work(stager)
    nodes.work(stager)
    assert len(failed) == 1


def test_room_for_two_copies_of_another_node_is_needed(nodes, monkeypatch):
    stager = nodes.lead(1)
    inventory = node.StageNode.inventory

    def limited(self):
        found = inventory(self)
        return found._replace(free=found.free._replace(free=300_000))

    monkeypatch.setattr(node.StageNode, "inventory", limited)
    write(nodes.stages[0] / "step-1.pt", 1)
    nodes.work(stager)
    assert nodes.sent(messages.NoRoom)
    assert kept(nodes) == [0, 0, 0]


# The end


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp", "__0_1.distcp"])
def test_what_a_save_to_the_same_name_has_cut_short_is_flushed(nodes, tmp_path, name):
    """A kill has ended the next save, on any node; the buddies have the checkpoint before it."""
    stager = nodes.lead(0)
    expected = picture(dcp(nodes, 1, tmp_path, key="last"))
    nodes.replicate(stager, 4)
    (torn,) = (s / "last" / name for s in nodes.stages if (s / "last" / name).exists())
    torn.write_bytes(torn.read_bytes()[:-9])
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert picture(nodes.storage) == expected


def test_what_only_buddies_have_is_flushed(nodes):
    stager = nodes.lead(1)
    write(nodes.stages[2] / "step-1.pt", 1)
    expected = picture(nodes.stages[2])
    nodes.replicate(stager)
    assert picture(nodes.storage) == {}
    nodes.lose(2)
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert picture(nodes.storage) == expected


def test_shards_that_were_not_looked_at_simultaneously_are_looked_at_again(
    nodes, tmp_path, monkeypatch
):
    """Node 2 saves again between the looks at node 1 and at itself."""
    stager = nodes.lead()
    dcp(nodes, 1, tmp_path, key="last")
    nodes.work(stager)
    refresh, todo = stager.memory.refresh, []

    def refresh_late():
        refresh()
        while todo:
            todo.pop()()

    monkeypatch.setattr(stager.memory, "refresh", refresh_late)
    expected = picture(dcp(nodes, 2, tmp_path, key="last"))
    shard = nodes.stages[1] / "last" / "__0_0.distcp"
    todo.append(lambda: shard.write_bytes(shard.read_bytes()[::-1]))
    before = picture(nodes.storage)
    stager.work()
    assert picture(nodes.storage) == before
    shutil.copy2(tmp_path / "saved" / "2" / "last" / "__0_0.distcp", shard)
    nodes.work(stager)
    assert picture(nodes.storage) == expected


@pytest.mark.parametrize("suffix", [".tmp", ".part"])
def test_the_next_saves_are_copied_after_a_kill_has_left_an_unfinished_file(nodes, suffix):
    """A restore brings it to other nodes, where no rank replaces it."""

    def save(step):
        for rank in (0, 1):
            write(nodes.stages[rank] / "last" / f"rank-{rank}.pt", step)
        (nodes.stages[0] / "last" / ".complete").touch()

    stager = nodes.lead()
    nodes.restore(stager)
    save(1)
    (nodes.stages[1] / "last" / f"rank-1.pt{suffix}").write_bytes(b"PK")
    assert nodes.restore(stager).path == ""
    for step in (2, 3):
        save(step)
        nodes.work(stager)
        assert kept(nodes) == [0, 1, 1]
        for rank in (0, 1):
            saved = nodes.stages[rank] / "last" / f"rank-{rank}.pt"
            assert (nodes.storage / "last" / saved.name).read_bytes() == saved.read_bytes()


def test_a_checkpoint_that_is_replaced_while_it_is_copied_reaches_storage_all_the_same(
    nodes, monkeypatch
):
    """Else a script that saves often to one name would never have anything on storage."""
    stager = nodes.lead(1)
    path = nodes.stages[0] / "snapshot.pt"
    write(path, 1, more=os.urandom(3 << 20))
    before = picture(nodes.stages[0])
    copied, todo = node.copying.copy, [lambda: write(path, 2)]

    def copy(items, source, draft, *more):
        if todo and "storage" in draft and items:
            todo.pop()()
        copied(items, source, draft, *more)

    monkeypatch.setattr(node.copying, "copy", copy)
    stager.work()
    assert picture(nodes.storage) == before
    nodes.work(stager)
    assert picture(nodes.storage) == picture(nodes.stages[0]) != before


def test_a_rank_whose_file_was_on_a_lost_node_is_missed(nodes):
    """Composer's format does not show how many ranks have saved."""
    stager = nodes.lead()
    write(nodes.stages[1] / "ep0-ba1-rank0.pt", 1)
    write(nodes.stages[2] / "ep0-ba1-rank1.pt", 1)
    nodes.work(stager)
    expected = picture(nodes.storage)
    assert sorted(expected) == ["ep0-ba1-rank0.pt", "ep0-ba1-rank1.pt"]
    write(nodes.stages[1] / "ep0-ba2-rank0.pt", 2)
    write(nodes.stages[2] / "ep0-ba2-rank1.pt", 2)
    stager.looking.complete(stager.looking.look())
    nodes.lose(2)
    nodes.work(stager)
    assert picture(nodes.storage) == expected
    assert nodes.restore(stager).path == ""
    assert picture(nodes.stages[0]) == expected
    assert sorted(nodes.stages[0].iterdir()) == sorted(nodes.stages[0] / name for name in expected)


@pytest.mark.parametrize("has_returned", [False, True])
def test_what_lacks_the_file_of_a_lost_node_does_not_look_complete(nodes, has_returned):
    """A script that looks for its newest checkpoint itself would load it on this node only."""
    stager = nodes.lead()
    nodes.restore(stager)
    two_ranks(nodes, 1)
    nodes.work(stager)
    expected = picture(nodes.storage)
    two_ranks(nodes, 2)
    stager.looking.complete(stager.looking.look())
    nodes.lose(1)
    if has_returned:
        nodes.join(1)
    assert nodes.restore(stager).path == ""
    for index in nodes.living:
        assert newest(nodes.stages[index])[0] == str(nodes.stages[index] / "step-1")
        assert picture(nodes.stages[index]).items() >= expected.items()
    two_ranks(nodes, 2)
    nodes.work(stager)
    assert newest(nodes.storage)[0] == str(nodes.storage / "step-2")


def track(root, how, step):
    """Have a tracker or link name a checkpoint of `two_ranks`."""
    if how == "link":
        (root / "last.tmp").symlink_to(root / f"step-{step}")
        (root / "last.tmp").replace(root / "last")
    else:
        (root / "last").write_text(f"step-{step}\n" if how == "name" else f"{step}")


@pytest.mark.parametrize("how", ["name", "step", "link"])
@pytest.mark.parametrize("where", ["memory", "storage", "nowhere"])
def test_no_tracker_names_what_was_lost_with_a_node(nodes, how, where):
    """A script that reads it would look for a file that is lost."""
    stager = nodes.lead()
    nodes.restore(stager)
    if where != "nowhere":
        two_ranks(nodes, 1)
        track(nodes.stages[0], how, 1)
        expected = picture(nodes.stages[0])["last"]
        nodes.work(stager)
    if where == "storage":
        shutil.rmtree(nodes.stages[0] / "step-1")
    two_ranks(nodes, 2)
    track(nodes.stages[0], how, 2)
    stager.looking.complete(stager.looking.look())
    nodes.lose(1)
    nodes.join(1)
    nodes.restore(stager)
    found = [picture(stage).get("last") for stage in nodes.stages]
    if where == "nowhere":
        assert found == [None] * 3
    else:
        assert found == [expected] * 3
        assert newest(nodes.stages[0])[0] == str(nodes.stages[0] / "step-1")
    assert nodes.restore(stager).fetched == 0
    assert [picture(stage).get("last") for stage in nodes.stages] == found


def test_a_tracker_of_what_was_lost_does_not_hide_what_is_flushed(nodes):
    """DeepSpeed's checkpoints count only once `latest` names them."""
    stager = nodes.lead()
    nodes.restore(stager)
    for step in (1, 2):
        tag = f"global_step{step}"
        sizes = {"dp_world_size": 2, "mp_world_size": 1, "param_shapes": []}
        write(nodes.stages[0] / tag / "mp_rank_00_model_states.pt", step, **sizes)
        for rank in (0, 1):
            name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            write(nodes.stages[rank] / tag / name, step)
        (nodes.stages[0] / "latest").write_text(tag)
        nodes.replicate(stager) if step == 1 else stager.looking.look()
    nodes.lose(1)
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert newest(nodes.storage) == (str(nodes.storage / "global_step1"), [])
    assert (nodes.storage / "latest").read_text() == "global_step1"


def test_the_links_of_ranks_name_the_files_of_these_ranks(nodes):
    stager = nodes.lead()
    nodes.restore(stager)
    for step in (1, 2):
        for rank, stage in enumerate(nodes.stages):
            write(stage / f"ep0-ba{step}-rank{rank}.pt", step)
            (stage / "last.tmp").symlink_to(f"ep0-ba{step}-rank{rank}.pt")
            (stage / "last.tmp").replace(stage / f"latest-rank{rank}.pt")
        nodes.work(stager) if step == 1 else stager.looking.complete(stager.looking.look())
    nodes.lose(1)
    nodes.restore(stager)
    for index in nodes.living:
        for rank in (0, 2):
            link = nodes.stages[index] / f"latest-rank{rank}.pt"
            assert os.readlink(link) == f"ep0-ba1-rank{rank}.pt"


def test_the_first_of_two_ranks_is_missed_too(nodes):
    """The files of the others then look like another checkpoint."""
    stager = nodes.lead(0)
    for rank, index in enumerate((1, 2)):
        write(nodes.stages[index] / f"ep0-ba1-rank{rank}.pt", 1)
        time.sleep(0.01)
    expected = picture(nodes.stages[1]) | picture(nodes.stages[2])
    nodes.replicate(stager)
    nodes.lose(1)
    assert nodes.restore(nodes.lead(2), nodes=(0, 2)).path == ""
    assert [picture(nodes.stages[i]) for i in (0, 2)] == [expected] * 2


def test_a_node_that_is_lost_during_the_flush_leaves_its_files_missing(nodes, monkeypatch):
    stager = nodes.lead()
    write(nodes.stages[1] / "step-1.pt", 1)
    (nodes.stages[0] / "log.txt").write_text("a log")
    (nodes.stages[2] / "results.data").write_bytes(os.urandom(3 << 20))
    peer = stager.memory.peers[2]
    ask = peer.ask

    def lost(order):
        if not isinstance(order, Copy):
            return ask(order)
        nodes.lose(2)
        return Call()  # which never ends

    monkeypatch.setattr(peer, "ask", lost)
    flushed = stager.flush(1)
    assert (flushed.missing, flushed.checkpoint) == ((), "")
    assert sorted(picture(nodes.storage)) == ["log.txt", "step-1.pt"]


@pytest.mark.parametrize("lost", [(1,), (1, 2)])
def test_what_lost_nodes_have_saved_last_stays_on_storage(nodes, lost):
    """Others have what the last restore has brought them: nothing of it is lost or newer."""
    stager = nodes.lead()
    for step in (1, 2):
        deepspeed(nodes.stages[1], step)
        write(nodes.stages[1] / "snapshot.pt", step)
        with (nodes.stages[1] / "log.txt").open("a") as log:
            log.write(f"step {step}\n")
        nodes.work(stager)
        if step == 1:
            nodes.restore(stager)
    newer = picture(nodes.storage)
    nodes.lose(*lost)
    stager.work()
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert not nodes.sent(messages.DrainFailed)
    assert picture(nodes.storage) == newer
    nodes.restore(stager)
    assert picture(nodes.stages[0])["snapshot.pt"] == newer["snapshot.pt"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lost_node_is_no_trouble_with_storage(nodes, monkeypatch, ranks):
    """The connection is lost first. Another node may still be copying."""
    stager = nodes.lead()
    for rank in range(ranks):
        write(nodes.stages[rank + 1] / f"ep0-ba1-rank{rank}.pt", 1, more=os.urandom(3 << 20))
    for index, peer in stager.memory.peers.items():

        def copying(order, index=index, ask=peer.ask):
            if not isinstance(order, Copy):
                return ask(order)
            call = Call()
            if index == 1:
                call.set_exception(ConnectionResetError(errno.ECONNRESET, "connection lost", "n1"))
                if ranks > 1:
                    threading.Timer(0.5, nodes.lose, [1]).start()
            return call

        monkeypatch.setattr(peer, "ask", copying)
    stager.work()
    assert not nodes.sent(messages.DrainFailed)
    assert stager.draining.failed[0] is None  # it is tried again at once


def test_a_node_that_does_not_see_the_directory_on_storage_is_named(nodes, tmp_path):
    stager = nodes.lead()
    nodes._stage_nodes[1].storage = str(tmp_path / "of-its-own")
    write(nodes.stages[1] / "step-1.pt", 1, more=os.urandom(3 << 20))
    path, why = str(nodes.storage / "step-1.pt"), "n1 does not see this directory"
    nodes.work(stager)
    assert nodes.sent(messages.DrainFailed) == [messages.DrainFailed(path, why)]
    assert stager.flush(1) == messages.Flushed(1, (path,), why, path)


def test_a_node_that_does_not_answer_during_a_drain_is_no_trouble_with_storage(
    nodes, tmp_path, monkeypatch
):
    stager = nodes.lead()
    dcp(nodes, 1, tmp_path)
    hold, error = Memory.hold, ConnectionResetError(errno.ECONNRESET, "connection lost", "n1")

    def lost(*words, **more):
        hold(*words, **more)
        without_an_answer(stager.memory.peers[1], monkeypatch, error, times=1)

    with monkeypatch.context() as losing:
        losing.setattr(Memory, "hold", lost)
        stager.work()
    assert not nodes.sent(messages.DrainFailed)
    assert stager.draining.failed[0] is None  # it is tried again at once
    nodes.work(stager)
    assert newest(nodes.storage)[0] == str(nodes.storage / "step-1")


def two_ranks(nodes, step):
    """Save a checkpoint of which each of two nodes has a file. Its format shows neither."""
    for rank in (0, 1):
        write(nodes.stages[rank] / f"step-{step}" / f"rank-{rank}.pt", step)
    (nodes.stages[0] / f"step-{step}" / ".complete").touch()


@pytest.mark.parametrize("is_call_of_ends", [False, True])
def test_while_a_node_does_not_answer_nothing_is_flushed(nodes, monkeypatch, is_call_of_ends):
    """Neither half a checkpoint nor its files one by one."""
    stager = nodes.lead()
    two_ranks(nodes, 1)
    nodes.work(stager)
    expected = picture(nodes.storage)
    two_ranks(nodes, 2)
    write(nodes.stages[0] / "solo.pt", 3)
    damage(nodes.stages[0] / "solo.pt", cut_short)
    error = TimeoutError(errno.ETIMEDOUT, "no answer", "n1")
    monkeypatch.setattr(nodes_of, "PATIENCE", 0.2)
    if is_call_of_ends:

        def silent(*_):
            raise error

        monkeypatch.setattr(view, "fetch_ends", silent)
    else:
        without_an_answer(stager.memory.peers[1], monkeypatch, error)
    assert stager.flush(1) == messages.Flushed(1, (str(nodes.storage),), "n1: no answer")
    assert picture(nodes.storage) == expected


def test_a_flush_waits_for_a_node_that_answers_late(nodes, monkeypatch):
    stager = nodes.lead()
    two_ranks(nodes, 1)
    error = TimeoutError(errno.ETIMEDOUT, "no answer", "n1")
    without_an_answer(stager.memory.peers[1], monkeypatch, error, times=3)
    assert stager.flush(1).missing == ()
    assert sorted(os.listdir(nodes.storage / "step-1")) == [".complete", "rank-0.pt", "rank-1.pt"]


def test_without_its_agent_a_stager_flushes_what_the_living_nodes_have(nodes, monkeypatch):
    """No agent says then which nodes are lost."""
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    stager.requests.is_gone = True
    error = ConnectionResetError(errno.ECONNRESET, "connection lost", "n1")
    without_an_answer(stager.memory.peers[1], monkeypatch, error)
    assert stager.flush(1).missing == ()
    assert os.listdir(nodes.storage) == ["step-1.pt"]


def test_without_its_agent_a_stager_flushes_nothing_once_another_one_leads(nodes, monkeypatch):
    """The other one may have drained something newer."""
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    stager.requests.is_gone = True
    error = ConnectionRefusedError(errno.ECONNREFUSED, "another stager leads")
    without_an_answer(stager.memory.peers[1], monkeypatch, error)
    began = time.monotonic()
    flushed = stager.flush(1)
    assert (flushed.missing, flushed.why) == ((str(nodes.storage),), "another stager leads")
    assert os.listdir(nodes.storage) == []
    assert time.monotonic() < began + 20


def test_without_its_agent_a_stager_ends_silently_once_another_one_leads(nodes, monkeypatch, capfd):
    """The other one has all that is in memory."""
    nodes.lease = 60.0
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    stager.requests.is_gone = True
    error = ConnectionRefusedError(errno.ECONNREFUSED, "another stager leads")
    without_an_answer(stager.memory.peers[1], monkeypatch, error)
    stager._end()
    assert capfd.readouterr().err == ""
    assert os.listdir(nodes.storage) == []
    assert not nodes.stages[0].parent.exists()


def test_without_its_agent_a_stager_waits_for_the_workers_of_other_nodes(nodes):
    """Workers save until their lease is over."""
    nodes.lease = 3.0
    stager = nodes.lead()
    results = nodes.stages[1] / "results.data"
    results.write_bytes(b"half")
    stager.requests.is_gone = True
    writer = threading.Timer(2.0, results.write_bytes, [b"all of it"])
    writer.start()
    stager._end()
    assert (nodes.storage / "results.data").read_bytes() == b"all of it"


def test_without_its_agent_a_stager_does_not_wait_for_workers_that_are_gone(nodes, monkeypatch):
    nodes.lease = 60.0
    stager = nodes.lead()
    (nodes.stages[0] / "log.txt").write_text("a log")
    stager.requests.is_gone = True
    error = ConnectionResetError(errno.ECONNRESET, "connection lost", "n1")
    for peer in stager.memory.peers.values():
        without_an_answer(peer, monkeypatch, error)
    began = time.monotonic()
    stager._end()
    assert time.monotonic() < began + 20
    assert os.listdir(nodes.storage) == ["log.txt"]


def test_what_cannot_be_collected_from_other_nodes_is_missing(nodes, monkeypatch):
    stager = nodes.lead(1)
    write(nodes.stages[2] / "step-1.pt", 1)
    (nodes.stages[0] / "log.txt").write_text("a log")
    nodes.replicate(stager)
    nodes.lose(2)

    def full(*_):
        return "no room"

    monkeypatch.setattr(room.Room, "lack", full)
    flushed = stager.flush(1)
    assert flushed.missing == (str(nodes.storage / "step-1.pt"),)
    assert flushed.why == "no room"
    assert os.listdir(nodes.storage) == ["log.txt"]


def test_the_flush_names_a_checkpoint_with_files_of_several_saves(nodes):
    """No save of it is whole, so none reaches storage, and a search before finds an older one."""
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    nodes.restore(stager)
    (nodes.stages[1].parent / node.RESTORE).unlink()
    write(nodes.stages[1] / "step-2.pt", 2)
    nodes.work(stager)
    found = stager.search(5).found
    assert [(each.name, each.lacks) for each in found] == [
        ("step-2.pt", service.MIXED),
        ("step-1.pt", None),
    ]
    flushed = stager.flush(1)
    assert (flushed.missing, flushed.unusable) == ((), (str(nodes.storage / "step-2.pt"),))
    assert os.listdir(nodes.storage) == ["step-1.pt"]
    write(nodes.stages[0] / "step-3.pt", 3)
    assert stager.flush(2).unusable == ()  # storage has a newer one


def test_a_late_copy_by_a_leader_that_was_cut_off_is_no_direct_save(nodes, monkeypatch):
    monkeypatch.setattr(service, "STORAGE_PERIOD", 0.0)
    nodes.lead(0)
    begun = saved = time.time_ns()
    nodes.lose(0)
    time.sleep(0.05)  # times of files are coarse
    stager = nodes.lead(1)
    assert nodes.restore(stager).path == ""
    write(late := nodes.storage / "step-1.pt", 1)  # by the stager of the lost node
    os.utime(late, ns=(saved, saved + 1))
    stager.requests.rounds = ((begun, saved + 2, 3), (time.time_ns(), None, 2))
    stager.work()
    assert not nodes.sent(messages.DirectSave)
    time.sleep(0.05)
    write(nodes.storage / "step-2.pt", 2)  # by the script
    stager.work()
    assert nodes.sent(messages.DirectSave) == [messages.DirectSave("step-2.pt")]


@pytest.fixture
def answer_of_storage(monkeypatch, clock):
    """Have searches of storage take long, and until this event is set."""
    answers, examine = threading.Event(), CheckpointService.examine

    def waiting(self, *more):
        if self.where.endswith("storage/ckpt") and not answers.is_set():
            clock.ahead += 2 * gathering.PATIENCE
            answers.wait(20)
        return examine(self, *more)

    monkeypatch.setattr(CheckpointService, "examine", waiting)
    yield answers
    answers.set()


def test_what_memory_has_counts_while_storage_does_not_answer(nodes, answer_of_storage):
    """The stager that leads now has not received the record of what is on storage."""
    answer_of_storage.set()
    stager = nodes.lead(0)
    write(nodes.stages[1] / "step-1.pt", 1)
    nodes.work(stager)
    write(nodes.stages[1] / "step-2.pt", 2)
    saved = picture(nodes.stages[1])
    nodes.replicate(stager)
    nodes.lose(0)
    stager = nodes.lead(1)
    stager._launch.record.newest = 0
    answer_of_storage.clear()
    restored = nodes.restore(stager)
    assert (restored.path, restored.skipped) == ("", (f"{nodes.storage}/*: {SILENT}",))
    assert picture(nodes.stages[2])["step-2.pt"] == saved["step-2.pt"]


def test_an_older_one_in_memory_counts_while_storage_does_not_answer(nodes, answer_of_storage):
    """Two nodes with the newest in memory are lost; a line says that storage may have it."""
    answer_of_storage.set()
    stager = nodes.lead(0)
    for step, index in ((1, 0), (2, 1)):
        write(nodes.stages[index] / f"step-{step}.pt", step)
        nodes.work(stager)
    nodes.lose(1, 2)
    answer_of_storage.clear()
    restored = nodes.restore(stager)
    assert (restored.path, restored.skipped) == ("", (f"{nodes.storage}/*: {SILENT}",))
    assert os.listdir(nodes.stages[0]) == ["step-1.pt"]
    answer_of_storage.set()
    restored = nodes.restore(stager)
    assert (restored.path, restored.skipped) == (str(nodes.storage / "step-2.pt"), ())


def test_while_memory_has_nothing_a_restore_waits_for_storage(nodes, answer_of_storage):
    write(nodes.storage / "step-1.pt", 1)
    threading.Timer(1.0, answer_of_storage.set).start()
    restored = nodes.restore(nodes.lead())
    assert (restored.path, restored.skipped) == (str(nodes.storage / "step-1.pt"), ())
    assert [picture(stage) for stage in nodes.stages] == [picture(nodes.storage)] * 3


def test_the_next_round_does_not_wait_for_a_drain(nodes, tmp_path, monkeypatch):
    stager = nodes.lead()
    expected = picture(dcp(nodes, 1, tmp_path))
    copied, todo = node.copying.copy, [messages.Restore(4, (), (0, 1, 2))]

    def copy(items, source, draft, *more):
        if todo and any(each.name.endswith("__0_1.distcp") for each in items):
            stager.requests.pending.append(todo.pop())
            while not nodes.sent(messages.Restored):
                time.sleep(0.01)
        copied(items, source, draft, *more)

    monkeypatch.setattr(node.copying, "copy", copy)
    nodes.work(stager)
    assert [message.id for message in nodes.sent(messages.Restored)] == [4]
    assert [picture(stage) for stage in nodes.stages] == [expected] * 3
    assert picture(nodes.storage) == expected


def test_the_next_round_does_not_wait_for_storage_that_stalls(nodes, monkeypatch):
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    copied, todo, answers = copying._copy_span, [messages.Restore(4, (), (0, 1, 2))], []

    def stall(source, draft, *more):
        if todo and "storage" in draft:
            stager.requests.pending.append(todo.pop())
            until = time.monotonic() + 60
            while not nodes.sent(messages.Restored) and time.monotonic() < until:
                time.sleep(0.01)
            answers.extend(nodes.sent(messages.Restored))
        return copied(source, draft, *more)

    monkeypatch.setattr(copying, "_copy_span", stall)
    nodes.work(stager)
    assert [message.id for message in answers] == [4]
    assert [picture(stage) for stage in (*nodes.stages, nodes.storage)] == [
        picture(nodes.stages[0])
    ] * 4


def test_storage_that_is_silent_on_another_node_is_reported(nodes, monkeypatch, clock):
    stager = nodes.lead()
    peer = stager.memory.peers[1]
    ask = peer.ask

    def hang(order):
        if not isinstance(order, Copy):
            return ask(order)

        def copy():
            until = time.monotonic() + 60
            while not nodes.sent(messages.DrainFailed) and time.monotonic() < until:
                clock.ahead += 2 * draining.SILENT
                time.sleep(0.01)
            return ask(order).result()

        call = Call()
        call.start(copy)
        return call

    monkeypatch.setattr(peer, "ask", hang)
    write(nodes.stages[1] / "step-1.pt", 1, more=os.urandom(3 << 20))
    stager.work()
    path = str(nodes.storage / "step-1.pt")
    assert [message.path for message in nodes.sent(messages.DrainFailed)] == [path]
    assert [message.path for message in nodes.sent(messages.Drained)] == [path]


def test_only_the_newest_request_of_a_kind_is_answered(nodes):
    """Each restore may wait for storage for a minute."""
    stager = nodes.lead()
    for number in (1, 2):
        stager.requests.take(messages.Restore(number, (), (0, 1, 2)))
        stager.requests.take(messages.Search(number))
    stager._answer()
    assert [reply.id for reply in nodes.channel.sent] == [2, 2]
    for request in (messages.Restore(3, (), (0, 1, 2)), messages.Flush(4)):
        stager.requests.take(request)
    stager._answer()
    assert [reply.id for reply in nodes.channel.sent[2:]] == [4]


def test_a_restore_waits_for_the_end_of_a_flush(nodes, monkeypatch):
    """Otherwise the flush would copy what the workers of the next round are just saving. A search
    does not wait behind it.
    """
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    copied, todo = copying._copy_span, [messages.Search(5), messages.Restore(4, (), (0, 1, 2))]

    def copy_span(source, draft, *more):
        if todo and "storage" in draft:
            while todo:
                stager.requests.pending.append(todo.pop())
            until = time.monotonic() + 60
            while not nodes.sent(messages.Searched) and time.monotonic() < until:
                time.sleep(0.01)
        return copied(source, draft, *more)

    monkeypatch.setattr(copying, "_copy_span", copy_span)
    assert stager.flush(1).missing == ()
    assert not todo
    assert not nodes.sent(messages.Restored)
    assert [message.id for message in nodes.sent(messages.Searched)] == [5]
    stager._answer()
    assert [message.id for message in nodes.sent(messages.Restored)] == [4]


def test_a_restore_that_takes_long_is_no_silence_of_storage(nodes, monkeypatch, clock):
    stager = nodes.lead()
    copied, todo, served = copying._copy_span, [messages.Restore(4, (), (0, 1, 2))], []
    run, serve = stager._gathering.run, stager.requests.serve

    def slow(request):
        answer = run(request)
        clock.ahead += 2 * draining.SILENT
        return answer

    def count(seconds):
        served.append(seconds)
        serve(seconds)

    def copy_span(source, draft, *more):
        if todo and "storage" in draft:
            stager.requests.pending.append(todo.pop())
            while not nodes.sent(messages.Restored):
                time.sleep(0.01)
            before = len(served)
            while len(served) <= before:  # silence is looked for before it serves
                time.sleep(0.01)
        return copied(source, draft, *more)

    monkeypatch.setattr(stager._gathering, "run", slow)
    monkeypatch.setattr(stager.requests, "serve", count)
    monkeypatch.setattr(copying, "_copy_span", copy_span)
    write(nodes.stages[0] / "step-1.pt", 1)
    stager.work()
    assert not todo
    assert not nodes.sent(messages.DrainFailed)


def test_a_newer_checkpoint_is_noticed_while_storage_stalls(nodes, monkeypatch):
    """A look falls into the copy of a piece."""
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    copied, todo, looks = copying._copy_span, [2], []
    look = stager.draining._look

    def note():
        look()
        looks.append(True)

    def slow(source, draft, *more):
        if "storage" in draft and todo:
            write(nodes.stages[0] / "step-2.pt", todo.pop())
            stager.looking.due = 0.0
            eventually(lambda: looks)
        return copied(source, draft, *more)

    monkeypatch.setattr(stager.draining, "_look", note)
    monkeypatch.setattr(copying, "_copy_span", slow)
    monkeypatch.setattr(copying, "SPAN", 50_000)
    monkeypatch.setattr(draining, "THREADS", 1)
    nodes.work(stager)
    assert [message.step for message in nodes.sent(messages.Drained)] == [2, 1]


def test_what_was_not_chosen_is_not_drained_any_more(nodes, tmp_path, monkeypatch):
    """The job resumes from step 1 while step 2, with which it has failed, is being drained."""
    stager = nodes.lead()
    dcp(nodes, 1, tmp_path)
    nodes.work(stager)
    dcp(nodes, 2, tmp_path)
    copied = node.copying.copy
    todo = [messages.Restore(4, (str(nodes.storage / "step-2"),), (0, 1, 2))]

    def copy(items, source, draft, *more):
        if todo and any(each.name.endswith("__0_1.distcp") for each in items):
            stager.requests.pending.append(todo.pop())
            while not nodes.sent(messages.Restored):
                time.sleep(0.01)
        copied(items, source, draft, *more)

    monkeypatch.setattr(node.copying, "copy", copy)
    stager.work()
    assert not todo
    assert "step-2" not in os.listdir(nodes.storage)


def test_a_checkpoint_that_is_being_published_is_restored(nodes, monkeypatch):
    """The node that has saved it is lost meanwhile, and no other has it in memory."""
    stager = nodes.lead()
    write(nodes.stages[0] / "step-1.pt", 1)
    nodes.work(stager)
    publish, run, asked = draining.publish, copying.StorageThread.run, []

    def count(self, work, *args, **more):
        asked.append(work)
        return run(self, work, *args, **more)

    def lose(*args, **more):
        nodes.lose(1)
        asked.clear()
        stager.requests.pending.append(messages.Restore(4, (), (0, 2)))
        eventually(lambda: asked)  # the restore asks storage
        publish(*args, **more)

    monkeypatch.setattr(copying.StorageThread, "run", count)
    monkeypatch.setattr(draining, "publish", lose)
    monkeypatch.setattr(stager.memory, "replicate", lambda *_: None)
    write(nodes.stages[1] / "step-2.pt", 2)
    stager.work()
    (restored,) = nodes.sent(messages.Restored)
    assert restored.path == str(nodes.storage / "step-2.pt")


def test_what_is_restored_meanwhile_is_not_deleted_on_storage(nodes, monkeypatch):
    """The script has deleted it, but the newest one is to be avoided."""
    stager = nodes.lead()
    for step in (1, 2):
        write(nodes.stages[0] / f"step-{step}.pt", step)
        nodes.work(stager)
    (nodes.stages[0] / "step-1.pt").unlink()
    examine, avoid = CheckpointService.examine, (str(nodes.storage / "step-2.pt"),)
    todo = [messages.Restore(4, avoid, (0, 1, 2))]

    def restoring(self, *more):
        if todo and self.where.endswith("storage/ckpt"):
            stager.requests.pending.append(todo.pop())
            eventually(lambda: not stager.requests.pending)  # it is being answered
        return examine(self, *more)

    monkeypatch.setattr(CheckpointService, "examine", restoring)
    stager.work()
    (restored,) = nodes.sent(messages.Restored)
    assert restored.path == str(nodes.storage / "step-1.pt")
    assert (nodes.storage / "step-1.pt").exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_a_checkpoint_that_a_tracker_has_named_is_deleted_everywhere(nodes, is_link):
    """The tracker names the next one by then: `latest`, or a link such as `last.pt`."""
    stager = nodes.lead(0)
    nodes.restore(stager)
    for step in (1, 2, 3):
        write(nodes.stages[1] / f"step-{step}.pt", step)
        latest = nodes.stages[1] / "latest"
        latest.unlink(missing_ok=True)
        if is_link:
            latest.symlink_to(f"step-{step}.pt")
        else:
            latest.write_text(f"step-{step}.pt")
        (nodes.stages[1] / f"step-{step - 1}.pt").unlink(missing_ok=True)
        nodes.work(stager)
    assert sorted(picture(nodes.storage)) == ["latest", "step-3.pt"]


def test_a_link_is_replaced_that_was_copied_after_the_script_has_made_the_next_one(nodes):
    stager = nodes.lead(0)
    nodes.restore(stager)
    for step, ago in ((1, 20), (2, 10)):
        write(nodes.stages[0] / f"step-{step}.pt", step)
        link = nodes.stages[0] / "last.pt"
        link.unlink(missing_ok=True)
        link.symlink_to(f"step-{step}.pt")
        made = time.time() - ago
        os.utime(link, (made, made), follow_symlinks=False)
        nodes.work(stager)
    stager.flush(1)
    assert os.readlink(nodes.storage / "last.pt") == "step-2.pt"


def test_a_deleted_mixture_is_deleted_on_all_nodes(nodes):
    """A node is lost within a save. Its step is saved again, and deleted later. The file of a rank
    that no longer exists was left from the first save.
    """
    stager = nodes.lead(0)
    write(nodes.stages[0] / "step-1.pt", 1)
    nodes.work(stager)
    again = [stage / "step-2" for stage in nodes.stages]
    for rank in (1, 2):
        again[rank].mkdir()
        (again[rank] / f"rank-{rank}.bin").write_bytes(b"first")
    nodes.work(stager)
    nodes.lose(2)
    nodes.restore(stager)
    again[0].mkdir()
    (again[0] / "rank-0.bin").write_bytes(b"second")
    (again[0] / ".complete").touch()
    nodes.work(stager)
    write(nodes.stages[0] / "step-3.pt", 3)
    nodes.work(stager)
    shutil.rmtree(again[0])
    nodes.work(stager)
    assert not again[1].exists()
    stager.flush(1)
    assert sorted(picture(nodes.storage)) == ["step-1.pt", "step-3.pt"]


def test_what_is_saved_again_is_not_deleted_with_the_file_of_another_rank(nodes):
    """A checkpoint is saved again under its name after a restart. Each rank deletes its own file
    first, one of them later than the other has saved.
    """
    stager = nodes.lead(0)
    nodes.restore(stager)
    again = [nodes.stages[rank] / "step-1" for rank in (0, 1)]
    for rank in (0, 1):
        again[rank].mkdir()
        (again[rank] / f"rank-{rank}.bin").write_bytes(b"first")
    (again[1] / ".complete").touch()
    nodes.work(stager)
    write(nodes.stages[0] / "step-2.pt", 2)
    nodes.work(stager)
    nodes.restore(stager)
    (again[0] / "rank-0.bin").write_bytes(b"second")
    nodes.replicate(stager)
    shutil.rmtree(again[1])
    nodes.replicate(stager)
    assert (again[0] / "rank-0.bin").read_bytes() == b"second"


@pytest.mark.parametrize("others_have_a_part", [False, True])
@pytest.mark.parametrize("leader", [0, 2])
def test_storage_keeps_the_log_of_a_lost_node_under_another_name(nodes, others_have_a_part, leader):
    """The script continues with an older log, or begins a new one. A tracker is just replaced."""
    stager = nodes.lead(leader)
    nodes.restore(stager)
    log, latest = (nodes.stages[2] / name for name in ("log.txt", "latest"))
    for step in (1, 2):
        write(nodes.stages[2] / f"step-{step}.pt", step)
        latest.write_text(f"step-{step}.pt")
        with log.open("a") as appended:
            appended.write(f"step {step}\n")
        nodes.work(stager)
        if step == 1 and others_have_a_part:
            nodes.restore(stager)
    nodes.lose(2)
    stager = nodes.lead(0) if leader == 2 else stager
    nodes.restore(stager)
    log = nodes.stages[1] / "log.txt"
    assert log.exists() == others_have_a_part
    with log.open("a") as appended:
        appended.write("step 3\n")
    write(nodes.stages[1] / "step-3.pt", 3)
    nodes.work(stager)
    (nodes.stages[1] / "latest").write_text("step-3.pt")
    stager.flush(1)
    kept = picture(nodes.storage)
    assert sorted(kept) == [
        "latest",
        "log.txt",
        "log.txt.~1~",
        "step-1.pt",
        "step-2.pt",
        "step-3.pt",
    ]
    assert (nodes.storage / "log.txt.~1~").read_text() == "step 1\nstep 2\n"
    assert (nodes.storage / "log.txt").read_text() == log.read_text()


def test_a_newer_log_of_a_living_node_is_no_lost_one(nodes):
    stager = nodes.lead(0)
    nodes.restore(stager)
    write(nodes.stages[0] / "step-1.pt", 1)
    log, deleted = nodes.stages[1] / "log.txt", nodes.stages[0] / "deleted.txt"
    log.write_text("step 1\n")
    deleted.touch()
    nodes.work(stager)
    deleted.unlink()
    log.write_text("step 1\nstep 2\n")
    nodes.lose(2)
    nodes.restore(stager)
    assert (nodes.stages[0] / "log.txt").read_text() == "step 1\nstep 2\n"
    assert not deleted.exists()
    stager.flush(1)
    assert sorted(picture(nodes.storage)) == ["deleted.txt", "log.txt", "step-1.pt"]
    assert (nodes.storage / "log.txt").read_text() == "step 1\nstep 2\n"


def big_state(stage):
    """A Trainer's log of a long training."""
    folder = stage / "checkpoint-10"
    folder.mkdir()
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        write(folder / name, 10)
    (folder / "training_args.bin").write_bytes(b"x")
    tensors(folder / "model.safetensors", 1)
    history = [{"loss": 1.0, "step": step} for step in range(80_000)]
    state = json.dumps({"global_step": 10, "log_history": history})
    (folder / "trainer_state.json").write_text(state)
    return folder / "trainer_state.json"


def big_metadata(stage):
    """DCP with many tensors."""
    import torch
    from torch.distributed import checkpoint

    folder = stage / "step-10"
    state = {f"layers.{i}.a_name_of_usual_length.exp_avg": torch.ones(2) for i in range(12_000)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process
        checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(folder))
    return folder / ".metadata"


def big_header(stage):
    return tensors(stage / "step-10.safetensors", 20_000)


def tensors(path, number):
    import torch
    from safetensors.torch import save_file

    save_file(
        {f"layers.{i}.a_name_of_usual_length.weight": torch.ones(2) for i in range(number)}, path
    )
    return path


@pytest.mark.parametrize("save", [big_state, big_metadata, big_header])
def test_what_the_search_reads_may_be_large_and_on_another_node(nodes, save):
    stager = nodes.lead(1)
    nodes.restore(stager)
    assert save(nodes.stages[0]).stat().st_size > 2 * END
    nodes.work(stager)
    assert picture(nodes.storage) == picture(nodes.stages[0])
