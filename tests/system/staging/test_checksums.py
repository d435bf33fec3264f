"""Copies in the memory of another node whose bytes have changed since they arrived."""

import os

import pytest
from led_nodes import LedNodes
from looking import damage
from saving_scripts import picture, write

from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.generations import manifest
from hpclaunch.system.staging import messages
from hpclaunch.system.staging.fetching import PIECE
from hpclaunch.system.staging.node import StageNode

SIZE = 3 * PIECE + 7
CHANGED = "its bytes have changed"


def flip(path, at=-1):
    """Flip a bit, as if nobody had written to the file."""

    def flipped(data):
        data[at] ^= 1
        return data

    damage(path, flipped)


def with_both_kept(nodes, stager):
    """Return the copies of two checkpoints that n1 keeps for a moment."""
    kept = []
    while len(kept) < 2:
        nodes.replicate(stager, looks=1)
        kept = list(nodes.stages[1].parent.glob("kept/*/files/*"))
    return kept


def with_the_only_copy_changed(nodes):
    """Have a checkpoint on storage, and a changed copy on n1; its own node is lost. Return the
    stager that leads.
    """
    stager = nodes.lead(1)
    write(nodes.stages[0] / "step-1.pt", 1, more=os.urandom(SIZE))
    nodes.work(stager)
    nodes.lose(0)
    flip(max(nodes.stages[1].parent.glob("kept/*/files/*")))
    return stager


@pytest.mark.parametrize("at", [0, PIECE, -1])
def test_a_copy_that_has_changed_is_removed(tmp_path, at):
    owner, buddy = (StageNode(str(tmp_path / name / "ckpt"), "") for name in ("owner", "buddy"))
    for each in (owner, buddy):
        os.makedirs(each.stage)
    write(tmp_path / "owner" / "ckpt" / "model.pt", 1, more=os.urandom(SIZE))
    (file,) = owner.inventory().entries
    kept = manifest("model.pt", [file], file.name, frozenset({file.name}))
    there, back = Transfer(0, file, 0), Transfer(0, file, 1, kept.generation)
    buddy.keep(kept)
    buddy.fetch([there], kept.generation, {0: owner})
    owner.fetch([back], "", {1: buddy})
    flip(tmp_path / "buddy" / "kept" / kept.generation / "files" / "model.pt", at)
    with pytest.raises(OSError, match=CHANGED) as failure:
        owner.fetch([back], "", {1: buddy})
    assert failure.value.filename == "model.pt"
    assert [each.names for each in buddy.inventory().kept] == [frozenset()]
    buddy.fetch([there], kept.generation, {0: owner})
    owner.fetch([back], "", {1: buddy})


@pytest.mark.parametrize("leader", [1, 2])
def test_an_older_one_is_restored_if_the_only_copy_has_changed(tmp_path, leader):
    nodes = LedNodes(tmp_path)
    stager, first = nodes.lead(leader), nodes.stages[0]
    write(first / "step-1.pt", 1, more=os.urandom(SIZE))
    expected = picture(first)
    nodes.work(stager)
    write(first / "step-2.pt", 2, more=os.urandom(SIZE))
    nodes.replicate(stager)
    nodes.lose(0)
    flip(max(nodes.stages[1].parent.glob("kept/*/files/*")))
    restored = nodes.restore(stager)
    assert restored.path == str(nodes.storage / "step-1.pt")
    assert restored.skipped == (f"step-2.pt in the memory of n1: {CHANGED}",)
    assert picture(nodes.stages[1]) == picture(nodes.stages[2]) == expected
    assert nodes.restore(stager).skipped == ()
    nodes.close()


def test_the_same_one_is_restored_from_storage_if_the_only_copy_has_changed(tmp_path):
    """The line is about the copy, not about the checkpoint."""
    nodes = LedNodes(tmp_path)
    stager = with_the_only_copy_changed(nodes)
    restored = nodes.restore(stager)
    assert restored.path == str(nodes.storage / "step-1.pt")
    assert restored.skipped == (f"step-1.pt in the memory of n1: {CHANGED}",)
    assert picture(nodes.stages[1]) == picture(nodes.stages[2]) == picture(nodes.storage)
    nodes.close()


def test_the_newest_on_storage_is_restored_if_both_that_a_node_keeps_have_changed(tmp_path):
    nodes = LedNodes(tmp_path)
    stager, first = nodes.lead(1), nodes.stages[0]
    write(first / "step-1.pt", 1, more=os.urandom(SIZE))
    nodes.work(stager)
    expected = picture(first)
    write(first / "step-2.pt", 2, more=os.urandom(SIZE))
    nodes.replicate(stager)
    write(first / "step-3.pt", 3, more=os.urandom(SIZE))
    kept = with_both_kept(nodes, stager)
    nodes.lose(0)
    for each in kept:
        flip(each)
    restored = nodes.restore(stager)
    assert restored.path == str(nodes.storage / "step-1.pt")
    assert restored.skipped == tuple(
        f"step-{step}.pt in the memory of n1: {CHANGED}" for step in (2, 3)
    )
    assert picture(nodes.stages[1]) == picture(nodes.stages[2]) == expected
    nodes.close()


@pytest.mark.parametrize("leader", [1, 2])
def test_the_flush_copies_an_older_one_and_names_the_newest(tmp_path, leader):
    nodes = LedNodes(tmp_path)
    stager, first = nodes.lead(leader), nodes.stages[0]
    write(first / "step-1.pt", 1, more=os.urandom(SIZE))
    expected = picture(first)
    nodes.replicate(stager)
    write(first / "step-2.pt", 2, more=os.urandom(SIZE))
    kept = with_both_kept(nodes, stager)
    nodes.lose(0)
    flip(max(kept))
    lost, why = str(nodes.storage / "step-2.pt"), f"step-2.pt in the memory of n1: {CHANGED}"
    assert stager.flush(1) == messages.Flushed(1, (), why, unusable=(lost,))
    assert picture(nodes.storage) == expected
    nodes.close()


def test_the_flush_names_no_copy_of_what_is_on_storage(tmp_path):
    nodes = LedNodes(tmp_path)
    stager = with_the_only_copy_changed(nodes)
    assert stager.flush(1) == messages.Flushed(1, (), "")
    nodes.close()
