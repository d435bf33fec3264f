"""A stager that leads several nodes: what it drains, keeps and restores."""

import shutil

import pytest
from led_nodes import LedNodes
from saving_scripts import SCRIPTS, picture, write

from hpclaunch.system.staging import messages


@pytest.fixture
def nodes(tmp_path):
    made = LedNodes(tmp_path)
    yield made
    made.close()


def dcp(stages, step, *, without=()):
    """Save with torch.distributed.checkpoint: a shard on each node, and the rest on the first."""
    root = stages[0].parent / "saved"
    SCRIPTS["dcp"](root, step)
    saved = root / f"step-{step}"
    (shard,) = saved.glob("*.distcp")
    return saved, shard


def test_a_checkpoint_of_the_first_rank_reaches_storage_from_another_node(nodes):
    stager = nodes.lead(1)
    write(nodes.stages[0] / "step-1.pt", 1)
    (nodes.stages[0] / "log.txt").write_text("step 1")
    nodes.work(stager)
    assert picture(nodes.storage) == picture(nodes.stages[0])
    assert [m.path for m in nodes.sent(messages.Drained)] == [str(nodes.storage / "step-1.pt")]


@pytest.mark.parametrize("leader", [0, 1])
def test_a_lost_node_is_restored_from_its_buddy(nodes, leader):
    stager = nodes.lead(leader)
    write(nodes.stages[2] / "step-1.pt", 1)
    before = picture(nodes.stages[2])
    nodes.work(stager)
    shutil.rmtree(nodes.storage)
    nodes.storage.mkdir()
    nodes.lose(2)
    restored = nodes.restore(stager)
    assert (restored.path, restored.fetched > 0) == ("", True)
    assert picture(nodes.stages[0]) == picture(nodes.stages[1]) == before
