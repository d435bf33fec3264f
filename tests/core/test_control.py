"""The head's process as a whole: its own side and the head, who talk without a network."""

from __future__ import annotations

import math

import pytest
from crew import Crew
from story import a_job, deeds, end, feed, report, run, seen, wait

from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol.effects import (
    ChooseCheckpoint,
    Exit,
    KeepWorkers,
    OpenStore,
    Send,
    StartWorkers,
)
from hpclaunch.core.protocol.events import (
    CheckpointChosen,
    ForkServerReplaced,
    HeadReached,
    LeaseOver,
    Received,
    SearchFailed,
    Signalled,
    Started,
    StoreListening,
    Tick,
    TroubleFound,
    WorkerExited,
    WorkersGone,
)
from hpclaunch.core.protocol.model import EXIT_USAGE, Origin, Phase, Trouble
from hpclaunch.core.protocol.values import replace

IDLE, ENDED = Phase.IDLE, Phase.ENDED


def test_a_job_of_one_agent():
    control = Control(AgentStart(a_job("n0"), 0, 1, "127.0.0.1", "a0"))
    assert deeds(feed(control, 0.0, Started())) == [OpenStore()]
    assert deeds(feed(control, 0.1, StoreListening(4000))) == [ChooseCheckpoint()]
    (started,) = deeds(feed(control, 0.2, CheckpointChosen("")))
    assert isinstance(started, StartWorkers)
    assert control.next_deadline() == float("inf"), "alone, an agent sleeps until something happens"


def test_one_agent_with_many_workers_sleeps_while_they_make_no_steps():
    control = Control(AgentStart(a_job("n0"), 0, 4, "127.0.0.1", "a0"))
    feed(control, 0.0, Started(), StoreListening(4000), CheckpointChosen(""))
    assert control.next_deadline() == math.inf
    feed(control, 5.0, seen(steps=(1, 1)))
    assert control.next_deadline() < math.inf  # how they keep pace is asked


@pytest.mark.parametrize("loss", [3.0, 100.0, 300.0])
def test_every_renewal_of_the_worker_lease_reaches_the_fork_server(loss):
    control = Control(AgentStart(a_job(loss=loss), 1, 1, "10.0.0.2", "a1"))
    feed(control, 0.0, Started(), StoreListening(4001), HeadReached(0))

    def renewals(now, *before, keep):
        (sent,) = (e for e in feed(control, now, *before, Tick()) if isinstance(e, Send))
        heard = sent.message.serial
        effects = feed(control, now, run(0, serial=int(now), heard=heard, keep=keep))
        return [e.until for e in effects if isinstance(e, KeepWorkers)]

    assert renewals(1.0, keep=2.5) == [3.5]
    assert renewals(2.0, keep=1.75) == [3.75]
    assert renewals(3.0, keep=0.75) == []  # it is not longer
    assert renewals(4.0, ForkServerReplaced(), keep=2.5) == [6.5]


def test_exit_is_the_last_effect_even_if_the_worker_lease_ends_with_the_agent():
    control = Control(AgentStart(a_job(grace=1.0, unkillable=1.0), 1, 1, "10.0.0.2", "a1"))
    feed(control, 0.0, Started(), StoreListening(4001), HeadReached(0), Tick())
    feed(control, 1.0, run(0, serial=1, heard=1, keep=90.0))
    feed(control, 2.0, end(143, "ended by SIGTERM on n0", serial=2))
    feed(control, 3.0, Tick())
    effects = feed(control, 4.0, LeaseOver())
    assert isinstance(effects[-1], Exit)
    assert not any(isinstance(e, KeepWorkers) for e in effects)


def test_the_head_ends_although_its_own_fork_server_has_not_answered():
    control = Control(AgentStart(a_job(), 0, 1, "10.0.0.1", "a0"))
    feed(control, 0.0, Started())
    feed(control, 0.1, report(1, IDLE, stop_signal=15))
    effects = feed(control, 0.2, report(1, ENDED, stop_signal=15))
    effects += feed(control, 0.3, StoreListening(4000))
    effects += feed(control, 20.0, Tick())
    (left,) = [e for e in effects if isinstance(e, Exit)]
    assert left.verdict.code == 143


@pytest.mark.parametrize(
    ("event", "code"),
    [(Signalled(2), 130), (TroubleFound(Trouble(Origin.USAGE, "no script on n0")), EXIT_USAGE)],
)
def test_the_head_ends_a_job_that_it_alone_has_come_to(event, code):
    control = Control(AgentStart(a_job(), 0, 1, "10.0.0.1", "a0"))
    feed(control, 0.0, Started(), StoreListening(4000), event)
    effects = [e for beat in range(1, 21) for e in feed(control, 0.5 * beat, Tick())]
    (left,) = [e for e in effects if isinstance(e, Exit)]
    assert left.verdict.code == code
    assert feed(control, 11.0, Tick(), event) == []


def test_a_search_that_fails_ends_a_job_that_cannot_begin():
    failed = SearchFailed(Trouble(Origin.TROUBLE, "cannot look for checkpoints"))
    control = Control(AgentStart(a_job("n0"), 0, 1, "127.0.0.1", "a0"))
    feed(control, 0.0, Started(), StoreListening(4000))
    (left,) = [e for e in feed(control, 0.2, failed) if isinstance(e, Exit)]
    assert left.verdict.reason == "cannot look for checkpoints"


def test_a_search_that_fails_while_workers_run_is_nobodys_matter():
    """The search was to decide whether to continue with more nodes."""
    failed = SearchFailed(Trouble(Origin.TROUBLE, "cannot look for checkpoints"))
    control = Control(AgentStart(a_job("n0"), 0, 1, "127.0.0.1", "a0"))
    feed(control, 0.0, Started(), StoreListening(4000), CheckpointChosen(""))
    assert feed(control, 5.0, failed) == []


def test_the_head_loses_its_fork_server_between_two_rounds():
    """No round uses a store at the port of a dead fork server."""
    control = Control(AgentStart(a_job("n0"), 0, 1, "127.0.0.1", "a0"))
    feed(control, 0.0, Started(), StoreListening(4000))
    assert feed(control, 0.1, ForkServerReplaced()) == [OpenStore()]
    assert feed(control, 0.2, CheckpointChosen("")) == []
    (started,) = deeds(feed(control, 0.3, StoreListening(4001)))
    assert (started.assignment.round, started.assignment.store_port) == (0, 4001)


def test_nobody_reports_for_another():
    control = Control(AgentStart(a_job("n0 n1 n2"), 0, 1, "10.0.0.1", "a0"))
    feed(control, 0.0, Started())
    genuine = report(2, Phase.IDLE)
    feed(control, 0.1, Received(1, genuine.message))
    assert control.head.state.roster[2].report is None


def test_a_head_that_has_raised_its_term_is_deposed_by_one_of_a_lower_term():
    """The head raised its term to be obeyed by an agent that had followed another head."""
    crew = Crew("n0 n1 n2 n3", fewest=2, saves=True)
    crew.start(0, 1, 2, 3)
    crew.until(2.0)
    crew.checkpoint = None  # the search for the next round takes long
    crew.feed(0, WorkerExited(0, 1, 0, "no"))
    crew.feed(0, WorkersGone())
    crew.until(4.0)
    control = crew.agents[0]
    crew.cut([0], [1, 2, 3])
    crew.until(control.head.state.lease.until - 0.05)
    last = control.head.state.roster[1].report
    crew.feed(0, Received(1, replace(last, serial=last.serial + 1, term=5)))
    assert control.head.state.orders.term == 8
    crew.until(control.head.deposed_at + 0.05)
    assert control.member.follower.term == 0  # it has had no order since
    written = replace(control.head.state.lease.configuration, tenure=6)
    order = wait(0, sender=2, term=6, incarnation="a0", tenure=6, configuration=written)
    crew.feed(0, order)
    crew.until(crew.now + 1.0)
    assert not control.leads
    assert control.head_host == "n2"
