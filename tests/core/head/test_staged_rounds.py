"""A job that saves in the memory of several nodes: its stagers, and where each round saves."""

from __future__ import annotations

from types import SimpleNamespace

from crew import Crew
from story import a_job

from hpclaunch.core.head.stagers import Stagers
from hpclaunch.core.head.stages import choosing
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.model import EXIT_LOST, StagerPlace

FULL = "no room"


def a_crew(hosts="n0 n1 n2", **settings):
    crew = Crew(hosts, saves=True, stages=True, fewest=1, **settings)
    crew.checkpoint = "/c/2.pt"
    crew.start(*range(len(hosts.split())))
    return crew


def stages(crew):
    """Return for each round whether each agent's workers save in memory."""
    return [{i: part.stages for i, part in parts.items()} for parts in crew.parts.values()]


def fail(crew, agent=1):
    rank = crew.parts[max(crew.parts)][agent].first_rank
    crew.feed(agent, events.WorkerExited(rank, 1, 0))
    crew.until(crew.now + 5.0)


def others(*numbers, head=0):
    """Return where the stagers of these agents are."""
    to_head = f"10.0.0.{head + 1}"
    return tuple(
        StagerPlace(i, f"n{i}", f"10.0.0.{i + 1}", 6000 + i, to_head) for i in sorted(numbers)
    )


def test_a_round_begins_once_all_stagers_listen():
    crew = Crew("n0 n1", saves=True, stages=True)
    crew.without_stager = {1}
    crew.start(0, 1)
    assert crew.searched == []
    crew.feed(1, events.StagerFound(6001))
    assert stages(crew) == [{0: True, 1: True}]


def test_the_heads_stager_leads_before_the_search():
    crew = a_crew()
    assert crew.led[-1][0] == 0
    assert crew.led[-1][1].others == others(1, 2)
    (search,) = crew.searched
    assert (search.agents, search.stages) == ((0, 1, 2), True)
    (look,) = set(crew.asked)
    assert look.staged


def test_a_stager_that_is_started_again_is_found_again():
    crew = a_crew()
    crew.feed(1, events.StagerFound())
    crew.feed(1, events.StagerFound(6500))
    crew.until(crew.now + 6.0)
    assert [place.port for place in crew.led[-1][1].others] == [6500, 6002]
    assert len(crew.parts) == 1


def test_a_lost_agent_is_left_out_and_another_head_leads_in_its_own_term():
    crew = a_crew()
    crew.kill(2)
    crew.until(crew.now + 10.0)
    agent, led = crew.led[-1]
    assert (agent, led.others) == (0, others(1))
    assert stages(crew)[-1] == {0: True, 1: True}


def test_a_head_that_is_cut_off_does_not_lead_its_own_stager_alone():
    """Storage would get what the next head does not know of."""
    crew = a_crew()
    crew.cut([0], [1, 2])
    crew.until(crew.now + 10.0)
    assert [led.others for agent, led in crew.led if agent == 0][-1] == others(1, 2)
    assert crew.led[-1][0] == 1


def test_another_head_leads_them_in_its_own_term():
    crew = a_crew()
    before = crew.led[-1][1].term
    crew.kill(0)
    crew.until(crew.now + 10.0)
    agent, led = crew.led[-1]
    assert agent == 1
    assert led.term > before
    assert led.others == others(2, head=1)
    assert crew.searched[-1].agents == (1, 2)
    assert stages(crew)[-1] == {1: True, 2: True}


def test_if_all_that_was_saved_was_in_the_memory_of_a_lost_node_that_is_said():
    """Here, it is the head's node."""
    crew = a_crew()
    crew.checkpoint = ""
    crew.kill(0)
    crew.until(crew.now + 10.0)
    (line,) = (line for line in crew.said if "training begins" in line)
    assert line.endswith("storage has none yet, and what only the memory of n0 had is lost")


def test_no_round_begins_while_a_stager_is_being_replaced():
    crew = a_crew()
    crew.feed(1, events.StagerFound())
    fail(crew, 2)
    assert len(crew.parts) == 1
    crew.feed(1, events.StagerFound(6500))
    crew.until(crew.now + 1.0)
    assert len(crew.parts) == 2


def test_one_node_that_cannot_stage_moves_all_to_storage_from_the_next_round_on():
    crew = a_crew()
    crew.feed(2, events.StagerFound(6002, FULL))
    crew.until(crew.now + 5.0)
    assert len(crew.parts) == 1
    fail(crew)
    assert stages(crew) == [{0: True, 1: True, 2: True}, {0: False, 1: False, 2: False}]
    assert crew.searched[-1].agents == (0, 1, 2)
    assert not crew.asked[-1].staged


def test_if_storage_cannot_be_written_the_next_round_stays_in_memory():
    crew = a_crew()
    crew.unflushed = True
    crew.feed(2, events.StagerFound(6002, FULL))
    fail(crew)
    assert stages(crew)[-1] == {0: True, 1: True, 2: True}


def test_unless_a_node_cannot_have_anything_there():
    crew = a_crew()
    crew.unflushed = True
    crew.feed(2, events.StagerFound(0, FULL))
    fail(crew)
    assert len(crew.parts) == 1
    crew.feed(0, events.StageFlushed(("/c/2.pt",), loses_checkpoint=True))
    assert crew.verdicts[0].reason == (
        "n2 cannot save in memory, where the others have checkpoints that are not on storage"
    )


def test_the_heads_node_gets_the_checkpoint_even_as_a_spare():
    """The head searches there."""
    job = a_job("n0 n1 n2", stages=True)
    peers = [SimpleNamespace(place=place) for place in job.places[1:]]
    state = SimpleNamespace(job=job, me=0, next_participants=lambda: peers)
    assert Stagers(state).agents == (0, 1, 2)


def test_a_head_that_is_a_spare_may_have_its_stager_replaced():
    """A round waits only for the stagers of its own agents."""

    def missing(**report):
        spare = SimpleNamespace(host="n0", report=SimpleNamespace(stager=0, **report))
        state = SimpleNamespace(
            job=a_job("n0 n1", stages=True), me=0, next_participants=list, roster={0: spare}
        )
        return Stagers(state).missing

    assert missing(stage_refused="") == ()
    assert missing(stage_refused=FULL) == ("n0",)


def test_a_node_that_takes_no_part_does_not_count():
    crew = a_crew(most=2)
    crew.feed(2, events.StagerFound(0, FULL))
    fail(crew)
    assert stages(crew)[-1] == {0: True, 1: True}


def test_a_refusal_while_the_agents_look_begins_another_search():
    crew = Crew("n0 n1", saves=True, stages=True)
    crew.checkpoint, crew.silent = "/c/2.pt", {1}
    crew.start(0, 1)
    assert crew.parts == {}
    crew.silent = set()
    crew.feed(1, events.StagerFound(6001, FULL))
    assert [search.stages for search in crew.searched] == [True, False]
    assert stages(crew) == [{0: False, 1: False}]


def test_an_agent_that_has_not_got_it_gets_it_again():
    crew = a_crew()
    crew.unseen = {2: "/c/2.pt"}
    searches = crew.searches
    fail(crew)
    assert crew.searches > searches
    again = crew.searched[searches : searches + 2]
    assert [search.avoid for search in again] == [(), ()]


def test_then_an_older_one_is_taken_at_once():
    crew = Crew("n0 n1", saves=True, stages=True)
    crew.checkpoint, crew.older, crew.unseen = "/c/2.pt", ["/c/1.pt"], {1: "/c/2.pt"}
    crew.start(0, 1)
    assert {part.checkpoint for part in crew.parts[0].values()} == {"/c/1.pt"}
    assert [len(search.avoid) for search in crew.searched] == [0, 0, 1]


def test_if_there_is_no_other_the_job_ends_and_does_not_begin_again():
    crew = Crew("n0 n1", saves=True, stages=True)
    crew.checkpoint, crew.unseen = "/c/2.pt", {1: "/c/2.pt"}
    crew.start(0, 1)
    crew.feed(0, events.StageFlushed())
    assert crew.verdicts[0].code == EXIT_LOST
    assert crew.verdicts[0].reason == (
        "n1 does not see /c/2.pt: there is no such file, and there is no other"
    )


def test_its_name_needs_no_step():
    crew = Crew("n0 n1", saves=True, stages=True)
    crew.checkpoint = "/c/last.pt"
    crew.start(0, 1)
    assert {part.checkpoint for part in crew.parts[0].values()} == {"/c/last.pt"}
    assert not [line for line in crew.said if choosing.NO_STEP_IN_NAME in line]


def test_nothing_of_it_happens_on_one_node():
    crew = Crew("n0", saves=True, stages=True)
    crew.start(0)
    assert (crew.led, crew.searched[0].agents) == ([], ())
