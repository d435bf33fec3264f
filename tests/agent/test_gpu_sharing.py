"""MPS as an agent has its keeper start it: which answers count, and what the end of a keeper means.
The keeper itself, with daemons, is tested in tests/system.
"""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import ClassVar

import pytest

from hpclaunch.agent.gpu_sharing import GpuSharing
from hpclaunch.core.placement.devices import Gpu, Task, share_out
from hpclaunch.core.placement.mps_shares import MpsSupport
from hpclaunch.core.placement.worker_environment import CUDA
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.model import Origin, Place
from hpclaunch.core.protocol.node_facts import ForeignMpsAwaited, MpsBypassed, MpsStarted
from hpclaunch.observe.node_console import words_of_node
from hpclaunch.system.gpus import mps
from hpclaunch.system.shared.errands import AskMps, MpsAnswered
from hpclaunch.worker.mps_messages import Failed, Occupied, Outside, Ready, Waiting

FD = 7
SUPPORT = MpsSupport("/bin/mps")
GPU = Gpu("0", "GPU-0")


class Keeper:
    """Notes what it is asked, and answers what the test wants."""

    made: ClassVar[list[Keeper]] = []
    can_start = True

    def __init__(self, *_):
        if not Keeper.can_start:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.asked, self.watched, self.answers, self.lost = [], [], [], False
        Keeper.made.append(self)

    def fileno(self):
        return FD

    def prepare(self, number, groups, foreign):
        self.asked.append(number)
        self.foreign = foreign

    def watch(self, pids):
        self.watched.append(dict(pids))

    def hear(self):
        return self.answers

    def successor(self):
        return Keeper()

    def abandon(self):
        self.lost = True


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def sharing(monkeypatch, recorded):
    monkeypatch.setattr(Keeper, "made", [])
    monkeypatch.setattr(mps, "MpsKeeperClient", Keeper)
    monkeypatch.setattr(mps, "installed", lambda *_: (SUPPORT, ""))
    config = SimpleNamespace(
        mps=("auto", "auto", ""),
        selector=CUDA,
        gpus=(GPU,),
        handled=(),
        place=Place(0, 0, "n1"),
        allocation=SimpleNamespace(name="71.0"),
    )
    return GpuSharing(
        SimpleNamespace(
            config=config,
            environ={},
            host="n1",
            errands=None,
            logs=SimpleNamespace(is_replaced=lambda _: True),
            record=recorded.append,
            note=lambda *_: None,
        )
    )


def prepare(sharing, number=3):
    """Begin the round of this number, with two workers on the only GPU."""
    (shares,) = share_out([Task(2, (GPU.uuid,))], per_worker=1, isolate=False)
    part = SimpleNamespace(round=number, nproc=2, shares=shares)
    return sharing.performs()[effects.PrepareGpus](effects.PrepareGpus(part))


def hear(sharing, *answers, lost=False):
    keeper = Keeper.made[-1]
    keeper.answers, keeper.lost = answers, lost
    return sharing.ready({FD}, 0.0)


def test_the_keeper_starts_a_daemon_and_checks_the_workers(sharing, recorded):
    assert prepare(sharing) == []
    (keeper,) = Keeper.made
    assert keeper.asked == [3]
    assert hear(sharing, Ready(2, {})) == []  # an earlier round's
    assert hear(sharing, Ready(3, {GPU.uuid: "pipes"})) == [events.GpusReady(3)]
    assert sharing.directories == {GPU.uuid: "pipes"}
    assert isinstance(recorded[-1], MpsStarted)
    sharing.started(0, 100)
    assert keeper.watched == []
    sharing.started(1, 101)
    assert keeper.watched == [{0: 100, 1: 101}]
    assert hear(sharing, Outside([1])) == []
    assert recorded[-1] == MpsBypassed("n1", (1,))


def test_without_a_daemon_workers_take_turns(sharing):
    prepare(sharing)
    assert hear(sharing, Failed(3, "no room")) == [events.GpusReady(3)]
    assert sharing.directories == {}
    assert hear(sharing, Ready(3, {GPU.uuid: "pipes"})) == []  # it was answered


def test_a_daemon_of_somebody_else_is_awaited_and_may_stay_occupied(sharing, recorded):
    prepare(sharing)
    assert hear(sharing, Waiting(3, "busy")) == []
    assert recorded[-1] == ForeignMpsAwaited("n1", "busy")
    trouble, gone = hear(sharing, Occupied(3, "still busy"))
    assert trouble.trouble.origin is Origin.USAGE
    assert trouble.trouble.reason.startswith("on n1: still busy. ")
    assert gone == events.WorkersGone()


def test_a_keeper_that_ends_is_replaced_and_asked_again_once(sharing, recorded):
    prepare(sharing)
    assert hear(sharing, lost=True) == []
    first, second = Keeper.made
    assert second.asked == first.asked == [3]
    assert hear(sharing, lost=True) == [events.GpusReady(3)]  # without MPS
    assert Keeper.made[-1].asked == []
    assert "the process that keeps it has ended repeatedly" in words_of_node(recorded[-1])


def test_without_a_keeper_workers_take_turns_and_the_next_round_tries_again(
    sharing, recorded, monkeypatch
):
    monkeypatch.setattr(Keeper, "can_start", False)
    assert prepare(sharing) == [events.GpusReady(3)]
    assert "cannot be started: Resource temporarily unavailable" in words_of_node(recorded[-1])
    monkeypatch.setattr(Keeper, "can_start", True)
    assert prepare(sharing, 4) == []
    monkeypatch.setattr(Keeper, "can_start", False)
    assert hear(sharing, lost=True) == [events.GpusReady(4)]
    monkeypatch.setattr(Keeper, "can_start", True)
    assert prepare(sharing, 5) == []
    assert [keeper.asked for keeper in Keeper.made] == [[4], [5]]


def test_a_keeper_that_is_killed_during_a_round_only_has_a_successor(sharing):
    prepare(sharing)
    hear(sharing, Ready(3, {GPU.uuid: "pipes"}))
    assert hear(sharing, lost=True) == []
    assert [keeper.asked for keeper in Keeper.made] == [[3], []]


@pytest.fixture
def asked(sharing, monkeypatch):
    """Let a foreign daemon run. Return the errands, each with the function that answers it."""
    questions = []
    monkeypatch.setattr(mps, "installed", lambda *_: (SUPPORT, "/tmp/pipes"))
    sharing._errands = SimpleNamespace(
        run=lambda errand, done: questions.append((errand, done)),
    )
    return questions


def test_a_foreign_daemon_is_asked_outside_the_loop_and_then_used(sharing, asked):
    assert prepare(sharing) == []
    assert Keeper.made == []
    ((question, answer),) = asked
    assert question == AskMps("/bin/mps", "/tmp/pipes")
    assert answer(MpsAnswered(1, "/tmp/pipes", "")) == []
    assert Keeper.made[0].foreign == "/tmp/pipes"


def test_without_an_answer_of_a_foreign_daemon_our_own_is_started(sharing, asked, recorded):
    prepare(sharing)
    assert asked[0][1](None) == []
    assert (Keeper.made[0].asked, Keeper.made[0].foreign) == ([3], "")
    assert [words_of_node(fact) for fact in recorded] == [
        "on n1: the MPS daemon at /tmp/pipes is not used: it could not be asked"
    ]


def test_the_answer_of_a_foreign_daemon_for_an_earlier_round_is_ignored(sharing, asked):
    prepare(sharing)
    prepare(sharing, number=4)
    assert asked[0][1](None) == []
    assert Keeper.made == []
    asked[1][1](None)
    assert Keeper.made[0].asked == [4]


@pytest.mark.parametrize("answer", [None, MpsAnswered(1, "/tmp/pipes", "")])
def test_the_answer_of_a_foreign_daemon_for_a_round_that_is_over_is_ignored(sharing, asked, answer):
    prepare(sharing)
    sharing.cancel()
    assert asked[0][1](answer) == []
    assert Keeper.made == []


def test_a_keeper_that_answers_for_a_round_that_is_over_causes_no_trouble(sharing):
    prepare(sharing)
    sharing.cancel()
    assert hear(sharing, Occupied(3, "still busy"), lost=True) == []
    assert Keeper.made[-1].asked == []
