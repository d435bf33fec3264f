"""Stories of a rank that the others wait for: who is named, when, and what follows."""

from __future__ import annotations

from crew import Crew
from story import seen

from hpclaunch.core.protocol.model import Load, Sample
from hpclaunch.core.stragglers.arrivals import together

PACE = 0.5


def training(hosts="n0 n1 n2", **settings):
    """Two workers on each."""
    crew = Crew(hosts, **settings)
    crew.start(*range(len(hosts.split())))
    crew.until(2.0)
    keep_pace(crew)
    return crew


def keep_pace(crew, *late, seconds=0.15):
    """Let all agents make steps, in each of which these are late, by the next samples."""
    for agent in crew.agents:
        crew.samples[agent] = sample(agent, seconds if agent in late else 0.0)
    make_steps(crew)


def make_steps(crew, until=0.0):
    """Let the agents make some more steps, and report them every second."""
    while True:
        crew.made = getattr(crew, "made", 100) + 1
        for agent in sorted(crew.agents):
            if agent in crew.running:
                crew.feed(agent, seen(steps=(crew.made, crew.made)))
        if crew.now >= until:
            return
        crew.until(min(until, crew.now + 1.0))


def sample(agent, late=0.0, *, on_gpus=False, throttled=0.2, **fields):
    traces = {
        rank: {"0": {step: int(1e9 * (step * PACE + late)) for step in range(20)}}
        for rank in (2 * agent, 2 * agent + 1)
    }
    loads = tuple(Load(rank, 0.5, 0.0, throttled * bool(late), 0.0) for rank in traces)
    return Sample(PACE, arrivals=together(traces, on_gpus=on_gpus), loads=loads, **fields)


def stragglers(crew):
    return [text.splitlines()[0] for text in crew.said if "straggler" in text]


NAMED = "n1 is a straggler: the others wait for it, 0.15 s of each step of 0.5 s"


def test_a_straggler_is_named_once():
    crew = training()
    make_steps(crew, 15.0)
    assert not stragglers(crew)
    keep_pace(crew, 1)
    make_steps(crew, 24.0)
    assert not stragglers(crew)  # one sample is none
    make_steps(crew, 35.0)
    assert stragglers(crew) == [NAMED]
    assert crew.said[-1].splitlines()[1] == (
        "  the CPU quota of its cgroup stops it for 20% of the time"
    )
    make_steps(crew, 300.0)
    assert stragglers(crew) == [NAMED]
    keep_pace(crew)
    make_steps(crew, 400.0)
    assert stragglers(crew) == [NAMED, "n1 is no longer a straggler"]
    keep_pace(crew, 1)
    make_steps(crew, 500.0)
    assert stragglers(crew)[2:] == [NAMED]


def test_two_samples_that_name_others_name_nobody():
    crew = training()
    for number in range(10):
        keep_pace(crew, 1 + number % 2)
        make_steps(crew, crew.now + 10.0)
    assert not stragglers(crew)


def test_a_slow_node_is_named_whichever_of_its_agents_is_the_latest():
    crew = training("n0 n0 n1 n1")
    for number in range(10):
        keep_pace(crew, 2, 3)
        crew.samples[2 + number % 2] = sample(2 + number % 2, 0.14)
        make_steps(crew, crew.now + 10.0)
    assert stragglers(crew) == [NAMED]


def test_an_agent_that_does_not_answer_is_not_waited_for():
    crew = training()
    keep_pace(crew, 1)
    del crew.samples[2]
    make_steps(crew, 60.0)
    assert stragglers(crew) == [NAMED]


def test_a_node_that_is_far_away_is_not_late_by_itself():
    """The nodes that wait for its messages are late after them."""
    crew = training()
    ways = {0: ("10.0.0.2", 0.0002), 1: ("10.0.0.3", 0.08), 2: ("10.0.0.1", 0.08)}
    for agent, way in ways.items():
        crew.samples[agent] = sample(agent, 0.15 * (agent == 1), ways=(way,))
    make_steps(crew, 60.0)
    (account,) = (text for text in crew.said if "straggler" in text)
    assert account.splitlines() == [
        "n2 is a straggler: the others wait for it, 0.08 s of each step of 0.5 s",
        "  the network: its messages take 80.0 ms to other nodes and back (usual: 0.2 ms)",
    ]


def test_workers_that_make_no_steps_are_not_asked():
    """Such workers may hang, and must not be disturbed."""
    crew = training()
    make_steps(crew, 15.0)
    before = crew.sampled
    assert before
    for _ in range(50):
        crew.until(crew.now + 1.0)
        for agent in sorted(crew.agents):
            crew.feed(agent, seen(steps=(crew.made, crew.made)))
    assert crew.sampled <= before + len(crew.agents)  # once more, for those before


def test_another_straggler_is_named_after_the_first():
    crew = training()
    keep_pace(crew, 1)
    make_steps(crew, 40.0)
    keep_pace(crew, 2)
    make_steps(crew, 120.0)
    assert stragglers(crew) == [NAMED, "n1 is no longer a straggler", NAMED.replace("n1", "n2")]


def test_hosts_of_gpus_may_be_behind_others_and_hold_up_nobody():
    crew = training()
    for agent in crew.agents:
        late = 0.15 * (agent == 1)
        crew.samples[agent] = sample(agent, late, on_gpus=True, throttled=0.0)
    make_steps(crew, 60.0)
    assert not stragglers(crew)
    crew.samples[1] = sample(1, 0.15, on_gpus=True)
    make_steps(crew, 120.0)
    assert stragglers(crew) == [NAMED]


def test_a_spare_takes_its_place_at_the_next_checkpoint():
    crew = training("n0 n1 n2 n3", most=3, fewest=3, saves=True, replaces_stragglers=True, loss=3.0)
    crew.checkpoint = "/cp/1.pt"
    make_steps(crew, 20.0)
    keep_pace(crew, 1)
    make_steps(crew, 80.0)
    assert stragglers(crew) == [NAMED]
    assert sorted(crew.parts) == [0]  # there is no checkpoint since
    crew.checkpoint = "/cp/2.pt"
    make_steps(crew, 100.0)
    assert [sorted(parts) for parts in crew.parts.values()] == [[0, 1, 2], [0, 2, 3]]
    assert (
        "ending the round: a spare takes the place of n1, for whose workers the others wait"
        in crew.said
    )
    keep_pace(crew)
    make_steps(crew, 200.0)
    assert sorted(crew.parts) == [0, 1]


def test_a_straggler_stays_if_slurm_drains_the_only_spare():
    crew = training("n0 n1 n2 n3", most=3, fewest=3, saves=True, replaces_stragglers=True)
    crew.agents[0].head.state.draining = ("n3",)
    keep_pace(crew, 1)
    for number in range(1, 9):
        crew.checkpoint = f"/cp/{number}.pt"
        make_steps(crew, number * 20.0)
    assert sorted(crew.parts) == [0]


def test_a_straggler_stays_without_a_spare_or_the_option():
    for settings in (
        {"hosts": "n0 n1 n2", "replaces_stragglers": True},
        {"hosts": "n0 n1 n2 n3", "most": 3, "fewest": 3},
    ):
        crew = training(saves=True, **settings)
        keep_pace(crew, 1)
        for number in range(1, 9):
            crew.checkpoint = f"/cp/{number}.pt"
            make_steps(crew, number * 20.0)
        assert sorted(crew.parts) == [0]
