"""The newest checkpoint in a snapshot of a job."""

from __future__ import annotations

from hpclaunch.core.protocol.facts import (
    CheckpointGone,
    CheckpointSaved,
    CheckpointStored,
    NodeLost,
)
from hpclaunch.core.protocol.job_snapshot import CheckpointSnapshot
from hpclaunch.core.protocol.node_facts import StageBegan, StageRefused
from hpclaunch.observe.past_rounds import NewestCheckpoint


def noted(*facts):
    newest = NewestCheckpoint()
    for at, fact in facts:
        newest.note(fact, at)
    return newest.at(20.0)


def test_there_is_none_at_first():
    assert noted() is None


def test_it_grows_older():
    saved = CheckpointSaved("10.pt", 10, 100, 1.5)
    assert noted((9.0, saved)) == CheckpointSnapshot("10.pt", 10, 100, 12.5)
    assert noted((9.0, CheckpointSaved("10.pt", None, 1, None))).age is None


def test_one_that_was_removed_is_no_longer_shown():
    facts = (9.0, CheckpointSaved("10.pt", 10, 100, 1.5)), (10.0, NodeLost("n2", "it was lost"))
    assert noted(*facts, (11.0, CheckpointGone("10.pt"))) is None
    older = CheckpointSaved("5.pt", 5, 100, 60.0)
    assert noted(*facts, (11.0, CheckpointGone("10.pt")), (12.0, older)).step == 5


def test_with_stage_the_newest_on_storage_is_known_too():
    began = StageBegan("n1", "ckpt", "/dev/shm/x", (), "ckpt/5.pt", 100, 0.1)
    facts = (8.0, began), (9.0, CheckpointSaved("ckpt/20.pt", 20, 100, 1.5))
    assert noted(*facts).stored == "ckpt/5.pt"
    stored = [
        (10.0 + i, CheckpointStored(f"ckpt/{n}.pt", n, 100, 1.0)) for i, n in ((0, 20), (1, 10))
    ]
    assert noted(*facts, *stored).stored == "ckpt/20.pt"
    refused = StageRefused("n1", "ckpt", "no room", later=True)
    assert noted(*facts, (9.5, refused), *stored).stored is None


def test_one_that_was_copied_to_storage_counts_before_a_search_has_found_it():
    saved = CheckpointSaved("1.pt", 1, 100, 1.5)
    stored = [(10.0 + n, CheckpointStored(f"{n}.pt", n, 100, 1.0)) for n in (3, 2)]
    assert noted((9.0, saved), *stored) == CheckpointSnapshot("3.pt", 3, 100, None)
    assert noted(*stored).step == 3
    unnumbered = CheckpointStored("last.pt", None, 100, 1.0)
    assert noted((9.0, saved), (10.0, unnumbered)).path == "1.pt"
