"""A process that did not run for a while: its silence, and that of others, means nothing."""

from crew import Crew
from story import feed

from hpclaunch.core.consensus.awake_clock import AwakeClock
from hpclaunch.core.control import Control
from hpclaunch.core.member.member import AgentStart
from hpclaunch.core.protocol import effects, events

ELASTIC = {"fewest": 2, "wait": 60.0, "loss": 3.0, "beat": 0.5}


def test_time_that_was_missed_is_left_out():
    clock = AwakeClock()
    assert clock.miss(10.9, due=10.0, since=9.5) == 0.0  # as late as on any busy machine
    assert clock.miss(71.0, due=10.5, since=10.5) == 60.5
    assert (clock.awake(71.0), clock.real(10.5)) == (10.5, 71.0)
    assert clock.miss(71.5, due=11.0, since=11.0) == 0.0
    assert clock.miss(171.5, due=11.5, since=11.0) == 100.0
    assert clock.missed == 160.5


def trained(hosts="n0 n1 n2", **settings):
    crew = Crew(hosts, **(ELASTIC | settings))
    crew.start(*range(len(hosts.split())))
    crew.until(5.0)
    assert set(crew.parts) == {0}
    return crew


def suspended(crew, until):
    """Suspend all agents; their fork servers notice first that the leases are over."""
    crew.now = until
    for agent in crew.agents:
        crew.feed(agent, events.LeaseOver())


def test_a_job_that_was_suspended_continues_in_the_same_round():
    crew = trained()
    for until in (65.0, 3665.0):
        suspended(crew, until)
        assert crew.running == {}
        crew.until(until + 2.0)
        assert crew.running == {0: 0, 1: 0, 2: 0}
    assert set(crew.parts) == {0}
    assert not [said for said in crew.said if "lost" in said]
    assert crew.heads == [0]


def test_a_job_that_was_suspended_between_two_rounds_begins_the_next():
    crew = trained(wait=0.0)
    crew.checkpoint = None  # the search for it takes long
    crew.feed(1, events.WorkerExited(2, 1, 0))
    crew.until(15.0)
    crew.now = 200.0
    crew.until(203.0)
    assert crew.verdicts == {}
    assert crew.heads == [0]
    crew.feed(0, events.CheckpointChosen("/c/1.pt"))
    crew.until(205.0)
    assert crew.running == {0: 1, 1: 1, 2: 1}


def test_the_loss_timeout_begins_anew_after_a_suspension():
    crew = trained()
    suspended(crew, 65.0)
    crew.cut([2], [0, 1])
    crew.until(67.0)
    assert not [said for said in crew.said if "lost" in said]
    crew.until(70.0)
    assert "the agent on n2 was lost: it has been silent for 3 s" in crew.said
    assert crew.running == {0: 1, 1: 1}
    assert crew.held == {2: 0}  # it has not heard that it is to stop them
    assert crew.clashes == set()


def test_a_head_that_slept_while_the_others_continued_steps_down():
    crew = trained("n0 n1 n2 n3")
    head = crew.agents.pop(0)  # it is stopped, with its fork server
    crew.held[0] = crew.running.pop(0)
    crew.until(15.0)
    assert crew.heads == [1]
    assert crew.running == {1: 2, 2: 2, 3: 2}
    crew.agents[0] = head
    crew.until(16.0)
    assert crew.clashes == set()
    assert crew.heads == [1]


def test_a_time_of_grace_is_not_over_for_a_pause():
    """A job with a single agent, which has no beat, notices a pause as well."""
    crew = Crew("n0", grace=20.0)
    control = Control(AgentStart(crew.job, 0, 1, "127.0.0.1", "a0"))
    feed(control, 0.0, events.Started(), events.StoreListening(4000))
    feed(control, 0.1, events.CheckpointChosen(""))
    feed(control, 1.0, events.Signalled(15))
    assert effects.KillWorkers() not in feed(control, 600.0, events.Tick())  # due at 21.0
    assert control.next_deadline() == 620.0
    assert effects.KillWorkers() in feed(control, 620.0, events.Tick())
