"""The search for checkpoints from the agent's side: its process may be killed or hang."""

from __future__ import annotations

import errno
import math
import os
import pickle
import time
import zipfile
from types import SimpleNamespace

import psutil
import pytest
from polling import LIMIT, receive

from hpclaunch.agent.config import Checkpoints
from hpclaunch.agent.resuming import Resuming
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.effects import ChooseCheckpoint
from hpclaunch.core.protocol.facts import CheckpointGone, CheckpointSaved
from hpclaunch.core.protocol.model import Job, Look, Origin, Place, Trouble
from hpclaunch.core.protocol.node_facts import CheckpointSearchStalled, CheckpointUnused
from hpclaunch.observe.console import words
from hpclaunch.system.checkpoints.client import PATIENCE
from hpclaunch.system.shared.helper import Helper

pytestmark = pytest.mark.starts

PART = SimpleNamespace(world_size=1, checkpoint="")


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def resuming(tmp_path, recorded):
    config = SimpleNamespace(
        checkpoints=Checkpoints(str(tmp_path), (), "", "auto"),
        command=(),
        job=Job((Place(0, 0, "n0"),)),
    )
    logs = SimpleNamespace(is_replaced=lambda _: True)
    context = SimpleNamespace(config=config, logs=logs, record=recorded.append, host="n0")
    resuming = Resuming(context, lambda _: None)
    yield resuming
    resuming.close()


def process_of(resuming):
    return psutil.Process(resuming._service._process.pid)


def answer(resuming):
    found = []
    while not found:
        found = receive(resuming)
    return found


def seek_newest(resuming):
    resuming._newest_at = -math.inf  # the last search was long ago
    resuming.seek_newest()
    resuming._newest_at = math.inf  # this one is never late
    assert resuming.seeks_newest
    while resuming.seeks_newest:
        assert receive(resuming) == []


def test_a_process_that_does_not_answer_is_replaced_and_named(resuming, recorded, tmp_path):
    resuming.choose(ChooseCheckpoint(number=6))
    answer(resuming)
    helper = process_of(resuming)
    helper.suspend()
    assert resuming.choose(ChooseCheckpoint(number=7)) == []
    assert resuming.update(resuming.deadline() - 1.0) == []
    assert helper.is_running()
    assert resuming.update(resuming.deadline()) == []
    assert not helper.is_running()
    assert list(map(words, recorded)) == [
        "the process that searches for checkpoints on n0 does not answer and is replaced: does the "
        f"file system of {tmp_path} answer?"
    ]
    assert answer(resuming) == [events.CheckpointChosen("", number=7)]


def test_one_that_hangs_while_no_round_waits_for_it_is_neither_replaced_nor_waited_for(
    resuming, recorded, monkeypatch
):
    """Neither a later search for the newest checkpoint, nor a look at one before."""
    resuming.look(Look(1, "there.pt", "mark", 0, 0))
    answer(resuming)
    resuming.look(None)
    helper = process_of(resuming)
    helper.suspend()
    resuming.seek_newest()
    assert resuming.seeks_newest
    assert resuming.update(resuming.deadline()) == []
    assert process_of(resuming) == helper
    assert resuming.deadline() == math.inf
    assert recorded == []
    clock = SimpleNamespace(monotonic=lambda: resuming._newest_at)
    monkeypatch.setattr("hpclaunch.agent.resuming.time", clock)
    assert not resuming.seeks_newest
    resuming.seek_newest()  # asks a hung process nothing more
    assert resuming.deadline() == math.inf


def test_one_that_hangs_in_a_look_that_is_over_is_replaced_for_the_next(resuming, recorded):
    resuming.choose(ChooseCheckpoint(number=6))
    answer(resuming)
    helper = process_of(resuming)
    helper.suspend()
    resuming.look(Look(1, "there.pt", "mark", 0, 0))
    resuming.look(None)
    assert resuming.update(resuming.deadline()) == []
    assert not helper.is_running()
    assert [type(fact) for fact in recorded] == [CheckpointSearchStalled]
    resuming.look(Look(2, "there.pt", "mark", 0, 0))
    assert [seen.seen.missing for seen in answer(resuming)] == ["there is no such file"]


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_script_that_saves_lower_steps_than_it_resumed_from_is_reported_once(
    resuming, recorded, tmp_path, resumes, keeps
):
    newest = str(save(tmp_path, "step-40"))
    if not keeps:  # else another agent has chosen it, and led then: it is enough to know its path
        resuming.choose(ChooseCheckpoint(number=7))
        answer(resuming)
    resuming.began(SimpleNamespace(world_size=1, checkpoint=newest))
    for step in (50, 60) if resumes else (10, 20):
        later = time.time() + step
        os.utime(save(tmp_path, f"step-{step}"), (later, later))
        if not keeps:
            (tmp_path / "step-40.pt").unlink(missing_ok=True)
        seek_newest(resuming)
    unused = [fact for fact in recorded if isinstance(fact, CheckpointUnused)]
    assert unused == ([] if resumes else [CheckpointUnused("n0", newest, "step-10.pt")])


def test_checkpoints_that_lack_the_same_are_named_together(resuming, tmp_path):
    for step in range(6):
        (tmp_path / f"step-{step}.pt").write_bytes(b"text" if step < 5 else b"")
    resuming.choose(ChooseCheckpoint(number=7))
    (chosen,) = answer(resuming)
    alike = "step-4.pt, step-3.pt, step-2.pt, step-1.pt and 1 more"
    assert chosen.passed_over == (
        "step-5.pt: empty",
        f"{alike}: not written by torch.save",
    )


def test_a_killed_process_is_replaced_before_it_is_needed(resuming):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    helper = process_of(resuming)
    helper.kill()
    while helper.is_running():
        receive(resuming)
    assert process_of(resuming) != helper
    assert resuming.deadline() > time.monotonic() + PATIENCE  # nothing is asked of it


def test_without_a_process_the_search_fails_and_nothing_is_seen(resuming, monkeypatch, tmp_path):
    def fails(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    monkeypatch.setattr(Helper, "__init__", fails)
    why = "the process that looks for checkpoints cannot be started: no process is left"
    reason = f"cannot look for checkpoints in {tmp_path}: {why}"
    failed = events.SearchFailed(Trouble(Origin.TROUBLE, reason), 7)
    assert resuming.choose(ChooseCheckpoint(number=7)) == [failed]
    (seen,) = resuming.look(Look(1, "there.pt", "mark", 0, 0))
    assert seen.seen.missing == why


def test_one_that_is_idle_ends_and_the_next_request_starts_another(resuming):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    helper = process_of(resuming)
    assert resuming.update(resuming.deadline() - 1.0) == []
    assert helper.is_running()
    assert resuming.update(resuming.deadline()) == []
    assert not helper.is_running()
    assert resuming.deadline() == math.inf
    resuming.choose(ChooseCheckpoint(number=8))
    assert process_of(resuming) != helper
    assert answer(resuming) == [events.CheckpointChosen("", number=8)]


def test_a_round_that_ends_early_starts_it_before_it_is_needed(resuming):
    resuming.stopped()
    process = process_of(resuming)
    resuming.look(Look(1, "there.pt", "mark", 0, 0))
    answer(resuming)
    assert process_of(resuming) == process


def test_that_of_the_agent_that_has_chosen_reads_ahead_until_the_round_ends(resuming):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    resuming.began(PART)
    assert resuming.deadline() == math.inf
    resuming.ended()
    assert time.monotonic() < resuming.deadline() < math.inf
    resuming.began(PART)  # another agent has chosen
    assert resuming.deadline() < math.inf


def test_one_that_has_ended_before_the_round_begins_is_started_to_read_ahead(resuming):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    helper = process_of(resuming)
    resuming.update(resuming.deadline())
    assert not helper.is_running()
    resuming.began(PART)
    assert process_of(resuming).is_running()
    assert resuming.deadline() == math.inf


def save(directory, name="step-10"):
    file = directory / f"{name}.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}/data.pkl", pickle.dumps({"step": 10}, protocol=2))
        archive.writestr(f"{name}/version", "3")
    return file


def test_a_new_checkpoint_is_recorded_once_and_makes_no_event(resuming, recorded, tmp_path):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    assert recorded == []
    file = save(tmp_path)
    for _ in range(2):
        seek_newest(resuming)
    assert [(type(fact), fact.path) for fact in recorded] == [(CheckpointSaved, str(file))]
    file.unlink()
    for _ in range(2):
        seek_newest(resuming)
    assert recorded[1:] == [CheckpointGone(str(file))]


def test_the_last_checkpoint_is_recorded_although_the_one_before_was_recorded_just_now(
    resuming, recorded, tmp_path, monkeypatch
):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    resuming.began(PART)
    saved = [save(tmp_path)]
    seek_newest(resuming)
    saved.append(save(tmp_path, "step-20"))
    resuming.seek_newest()  # too early for another search
    assert not resuming.seeks_newest
    resuming.ended()
    monkeypatch.setattr("hpclaunch.agent.resuming.LAST_LIMIT", LIMIT)  # on a busy machine
    resuming.find_last(ended_well=True)
    assert [fact.path for fact in recorded] == list(map(str, saved))


def test_the_last_checkpoint_is_recorded_by_another_process_if_staging_has_ended(
    resuming, recorded, tmp_path, monkeypatch
):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    resuming.began(PART)
    resuming._searched = "memory"
    saved = save(tmp_path)
    monkeypatch.setattr("hpclaunch.agent.resuming.LAST_LIMIT", LIMIT)  # on a busy machine
    resuming.find_last(ended_well=True)
    assert [fact.path for fact in recorded] == [str(saved)]


def test_a_search_for_the_last_checkpoint_that_hangs_delays_the_end_for_a_moment(
    resuming, recorded, tmp_path, monkeypatch
):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    resuming.began(PART)
    save(tmp_path)
    process_of(resuming).suspend()
    monkeypatch.setattr("hpclaunch.agent.resuming.LAST_LIMIT", 0.01)
    resuming.find_last(ended_well=True)
    assert not resuming.seeks_newest
    assert recorded == []


def test_the_last_checkpoint_is_not_searched_again(resuming, recorded, tmp_path):
    resuming.began(PART)
    resuming.choose(ChooseCheckpoint(number=7, is_last=True))
    answer(resuming)
    save(tmp_path)
    resuming.find_last(ended_well=True)
    assert recorded == []
