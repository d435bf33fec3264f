"""Stories of trainings that are over while an upload that a worker has started still runs."""

from __future__ import annotations

import pytest
from endings import REQUEUED, leave, training, verdict

from hpclaunch.core.protocol.events import LeftBehind, NoticeTaken, WorkerExited, WorkersGone
from hpclaunch.core.protocol.model import EXIT_SAVED, Leftover

UPLOAD = LeftBehind((Leftover(4711, "aws", 2),))


def end_beside_an_upload(crew):
    """The workers of agent 1 end with 0, and leave the upload behind."""
    for rank in (2, 3):
        crew.feed(1, WorkerExited(rank, 0, 0))
    crew.running.pop(1, None)
    crew.steps[1] = ()  # a fork server without workers accepts any offer
    crew.feed(1, UPLOAD)


@pytest.mark.parametrize("saves", [True, False])
def test_a_training_that_is_over_before_the_time_limit_is_finished(saves):
    crew = training(saves=saves, requeueing=REQUEUED)
    crew.until(270.0)
    end_beside_an_upload(crew)
    leave(crew, agents=[0])
    crew.until(300.0)
    assert verdict(crew).code == 0


def test_a_training_that_is_over_is_not_repeated_without_a_lost_node():
    crew = training("n0 n1 n2", fewest=2, loss=3.0, wait=30.0)
    crew.until(100.0)
    end_beside_an_upload(crew)
    leave(crew, agents=[0, 2])
    crew.until(101.0)
    crew.kill(1, down=True)
    crew.until(140.0)
    assert {crew.verdicts[agent].code for agent in (0, 2)} == {0}
    assert not crew.running


def test_workers_that_have_ended_before_a_notice_need_not_take_it():
    """The others leave at its step, and the job is not finished."""
    crew = training(requeueing=REQUEUED)
    crew.until(240.0)
    end_beside_an_upload(crew)
    crew.until(250.0)
    crew.feed(0, NoticeTaken(crew.notices[0][-1].number, last=True))
    crew.checkpoint, crew.saved_at = "/c/100.pt", 255.0
    crew.until(256.0)
    leave(crew, agents=[0])
    crew.until(258.0)
    crew.feed(1, WorkersGone())
    crew.until(272.0)
    assert verdict(crew).code == EXIT_SAVED
