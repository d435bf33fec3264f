"""The search for checkpoints from the agent's side: its process may be killed or hang."""

from __future__ import annotations

import math
import pickle
import time
import zipfile
from types import SimpleNamespace

import psutil
import pytest
from polling import receive

from hpclaunch.agent.config import Checkpoints
from hpclaunch.agent.resuming import Resuming
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.effects import ChooseCheckpoint
from hpclaunch.core.protocol.facts import CheckpointSaved
from hpclaunch.core.protocol.model import Job, Place
from hpclaunch.observe.console import words

pytestmark = pytest.mark.starts


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def resuming(tmp_path, recorded):
    config = SimpleNamespace(
        checkpoints=Checkpoints(str(tmp_path), (), "", "structure"),
        command=(),
        job=Job((Place(0, 0, "n0"),)),
        allocation=SimpleNamespace(index=0),
    )
    resuming = Resuming(config, lambda _: None, recorded.append, lambda _: True)
    yield resuming
    resuming.close()


def process_of(resuming):
    return psutil.Process(resuming._service._process.pid)


def answer(resuming):
    found = []
    while not found:
        found = receive(resuming)
    return found


def test_a_process_that_does_not_answer_is_replaced_and_named(resuming, recorded, tmp_path):
    assert resuming.choose(ChooseCheckpoint(number=7)) == []
    helper = process_of(resuming)
    helper.suspend()
    assert resuming.update(time.monotonic()) == []
    assert resuming.update(resuming.deadline()) == []
    assert not helper.is_running()
    assert list(map(words, recorded)) == [
        "the process that searches for checkpoints on n0 does not answer and is replaced: does the "
        f"file system of {tmp_path} answer?"
    ]
    assert answer(resuming) == [events.CheckpointChosen("", number=7)]


def test_a_killed_process_is_replaced_before_it_is_needed(resuming):
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    helper = process_of(resuming)
    helper.kill()
    while helper.is_running():
        receive(resuming)
    assert process_of(resuming) != helper
    assert resuming.deadline() == math.inf


def test_a_new_checkpoint_is_recorded_once_and_makes_no_event(
    resuming, recorded, tmp_path, monkeypatch
):
    monkeypatch.setattr("hpclaunch.agent.resuming.NEWEST_AGAIN", 0.0)
    resuming.choose(ChooseCheckpoint(number=7))
    answer(resuming)
    assert recorded == []
    file = tmp_path / "step-10.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("step-10/data.pkl", pickle.dumps({"step": 10}, protocol=2))
        archive.writestr("step-10/version", "3")
    for _ in range(2):
        resuming.seek_newest()
        assert resuming.seeks_newest
        while resuming.seeks_newest:
            assert receive(resuming) == []
    assert [(type(fact), fact.path) for fact in recorded] == [(CheckpointSaved, str(file))]
