"""The checkpoint of a round: all agents see it, and one that brings the job down is avoided."""

import pytest
from crew import Crew

from hpclaunch.core.head.restarts import FAILED_TWICE, Budget, _was_loading
from hpclaunch.core.head.stages import choosing
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.model import EXIT_LOST, Failure, Tally
from hpclaunch.core.protocol.timing import DEFAULTS

LOADS = """Traceback (most recent call last):
  File "train.py", line 30, in main
    resume(model)
  File ".../torch/serialization.py", line 1500, in load
    raise RuntimeError(_get_wo_message(str(e)))
RuntimeError: unexpected EOF"""


def a_crew(hosts="n0 n1 n2", **settings):
    crew = Crew(hosts, saves=True, **settings)
    crew.checkpoint = "/c/2.pt"
    return crew


def checkpoints(crew):
    """Return the checkpoints that the workers of each round were given."""
    return [{part.checkpoint for part in parts.values()} for parts in crew.parts.values()]


def fail(crew, agent=1, tail=LOADS, signum=0):
    rank = crew.parts[max(crew.parts)][agent].first_rank
    crew.feed(agent, events.WorkerExited(rank, 1 if not signum else 128 + signum, signum, tail))
    crew.until(crew.now + 5.0)  # a host that fails again and again is given time


def test_all_see_it():
    crew = a_crew()
    crew.start(0, 1, 2)
    assert checkpoints(crew) == [{"/c/2.pt"}]


def test_one_sees_it_later():
    crew = a_crew()
    crew.unseen = {2: "/c/2.pt"}
    crew.start(0, 1, 2)
    crew.until(5.0)
    assert crew.parts == {}
    crew.unseen = {}
    (look,) = {agent.member._looking._look for agent in crew.agents.values()}
    crew.feed(2, events.CheckpointSeen(crew._sees(2, look)))
    assert checkpoints(crew) == [{"/c/2.pt"}]


def test_one_does_not_see_it_at_all():
    crew = a_crew()
    crew.unseen, crew.older = {2: "/c/2.pt"}, ["/c/1.pt"]
    crew.start(0, 1, 2)
    crew.until(DEFAULTS.visible - 1.0)
    assert crew.parts == {}
    crew.until(DEFAULTS.visible + 1.0)
    assert checkpoints(crew) == [{"/c/1.pt"}]
    assert "skipping checkpoint it: n2 does not see it: there is no such file" in crew.said


def test_one_sees_none():
    """A checkpoint that one node does not see is no reason to begin again: it is a mistake."""
    crew = a_crew()
    crew.unseen = {1: "/c/2.pt"}
    crew.start(0, 1, 2)
    crew.until(DEFAULTS.visible + 5.0)
    assert crew.parts == {}
    verdict = crew.verdicts[0]
    assert verdict.code == EXIT_LOST
    assert "n1 does not see /c/2.pt: there is no such file" in verdict.reason
    assert "--checkpoint-local" in verdict.reason


def test_where_each_node_has_its_own_the_newest_that_all_have():
    crew = a_crew(local=True)
    crew.unseen, crew.older = {2: "/c/2.pt"}, ["/c/1.pt"]
    crew.start(0, 1, 2)
    assert checkpoints(crew) == [{"/c/1.pt"}]


def test_where_each_node_has_its_own_and_one_has_none():
    crew = a_crew(local=True)
    crew.unseen = {2: "/c/2.pt"}
    crew.start(0, 1, 2)
    assert checkpoints(crew) == [{""}]
    start = "training begins at the start, unless the script finds a checkpoint itself: none can be"
    assert any(line.startswith(start) for line in crew.said)


def test_after_a_loss_before_the_first_save_it_is_said_that_training_begins_again():
    crew = a_crew(fewest=1)
    crew.checkpoint = ""
    crew.start(0, 1, 2)
    crew.until(1.0)
    assert not any("training begins" in line for line in crew.said)
    crew.kill(2)
    crew.until(5.0)
    said = "training begins again from the start, without a checkpoint: nothing has been saved"
    assert any(line.startswith(said) for line in crew.said), crew.said


def test_one_that_is_lost_is_not_waited_for():
    crew = a_crew("n0 n1 n2 n3", fewest=1, wait=0.0)
    crew.unseen, crew.older = {3: "/c/2.pt"}, ["/c/1.pt"]
    crew.start(0, 1, 2, 3)
    crew.until(2.0)
    crew.kill(3)
    crew.until(DEFAULTS.visible - 5.0)
    assert checkpoints(crew) == [{"/c/2.pt"}]


def test_one_whose_bytes_are_wrong():
    crew = a_crew()
    crew.damaged, crew.older = "/c/2.pt", ["/c/1.pt"]
    crew.start(0, 1, 2)
    assert checkpoints(crew) == [{"/c/1.pt"}]
    assert "skipping checkpoint it: bad bytes" in crew.said


def test_a_job_that_fails_twice_as_it_resumes_takes_an_older_checkpoint():
    crew = a_crew()
    crew.older = ["/c/1.pt"]
    crew.start(0, 1, 2)
    fail(crew)
    fail(crew)
    fail(crew, tail="")
    paths = ["/c/2.pt", "/c/2.pt", "/c/1.pt", "/c/1.pt"]
    assert checkpoints(crew) == [{path} for path in paths]
    assert f"skipping checkpoint it: {FAILED_TWICE}" in crew.said


def test_without_an_older_one_it_is_tried_again():
    crew = a_crew()
    crew.start(0, 1, 2)
    fail(crew)
    fail(crew, tail=LOADS + " again")
    assert checkpoints(crew) == [{"/c/2.pt"}] * 3


def test_the_same_error_without_an_older_one_is_the_end():
    crew = a_crew()
    crew.start(0, 1, 2)
    fail(crew)
    fail(crew)
    assert "the round before failed in the same way" in crew.verdicts[0].reason


def test_what_was_rejected_is_forgiven_where_there_is_nothing_else_any_more():
    """Whoever decides that: a new head, or one whose round was given up meanwhile."""
    crew = a_crew()
    crew.older = ["/c/1.pt"]
    crew.start(0, 1, 2)
    fail(crew)
    fail(crew)
    crew.older = []
    fail(crew, tail="ValueError: something else")
    assert checkpoints(crew)[-2:] == [{"/c/1.pt"}, {"/c/2.pt"}]


def test_a_head_that_is_cut_off_while_agents_look_does_not_spin():
    """`Crew.until` would say so."""
    crew = a_crew()
    crew.unseen, crew.older = {2: "/c/2.pt"}, ["/c/1.pt"]
    crew.start(0, 1, 2)
    crew.until(DEFAULTS.visible - 1.5)
    crew.cut([0], [1, 2])
    crew.until(DEFAULTS.visible + 60.0)


def test_who_was_to_read_a_share_and_is_lost():
    crew = a_crew("n0 n1 n2 n3", fewest=1, wait=0.0)
    crew.reads, crew.silent = True, {3}
    crew.start(0, 1, 2, 3)
    shares = {i: a.member._looking._look.share for i, a in crew.agents.items()}
    assert shares == {k: (k, 4) for k in range(4)}
    crew.until(1.0)
    crew.kill(3)
    crew.until(8.0)
    assert checkpoints(crew) == [{"/c/2.pt"}]
    asked = crew.asked[-3:]
    assert [look.share for look in asked] == [(0, 3), (1, 3), (2, 3)]


def test_on_disks_of_their_own_a_name_without_a_step_says_too_little():
    crew = a_crew(local=True)
    crew.checkpoint = "/c/snapshot.pt"
    crew.start(0, 1, 2)
    assert checkpoints(crew) == [{""}]
    assert f"skipping checkpoint it: {choosing.NO_STEP_IN_NAME}" in crew.said


def test_what_fails_later_is_no_matter_of_the_checkpoint():
    crew = a_crew()
    crew.older = ["/c/1.pt"]
    crew.start(0, 1, 2)
    fail(crew, tail="ValueError: step 35")
    fail(crew, tail="ValueError: step 36")
    assert checkpoints(crew) == [{"/c/2.pt"}] * 3


def test_a_new_head_knows_what_is_avoided():
    crew = a_crew(fewest=1, wait=0.0)
    crew.older = ["/c/1.pt"]
    crew.start(0, 1, 2)
    fail(crew)
    fail(crew)
    crew.kill(0)
    crew.until(crew.now + 10.0)
    assert checkpoints(crew)[-2:] == [{"/c/1.pt"}] * 2


@pytest.mark.parametrize(
    ("frame", "loads"),
    [
        ('/x/torch/serialization.py", line 1, in load', True),
        ('train.py", line 1, in load_checkpoint', True),
        ('train.py", line 1, in _load_snapshot', True),
        ('torch/nn/modules/module.py", line 1, in load_state_dict', True),
        ('transformers/modeling_utils.py", line 1, in from_pretrained', True),
        ('train.py", line 1, in load_batch', False),
        ('<frozen importlib._bootstrap>", line 1, in _find_and_load', False),
        ('train.py", line 1, in train_step', False),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank12]: "])
def test_what_a_worker_was_at(frame, loads, prefix):
    lines = (f'  File "{frame}', "    x", "ValueError: y")
    failure = Failure(0, 0, "n0", 1, 0, 0.0, "\n".join(prefix + line for line in lines))
    assert _was_loading(failure, "/c/2.pt") == loads


def resume(budget, path, *, at, signum=0, tail="", **when):
    """A round that begins with it and fails so many seconds later."""
    assert budget.begin(events.CheckpointChosen(path, **when)) is None
    failure = Failure(0, 0, "n0", 128 + signum if signum else 1, signum, at, tail)
    assert budget.spend([failure], saves=True, resumed=path) is None
    return budget.rejects(events.CheckpointChosen(path))


def test_a_death_by_a_signal_says_nothing_of_the_checkpoint():
    budget = Budget(9)
    for _ in range(3):
        assert not resume(budget, "/c/2.pt", at=30.0, signum=11)


def test_what_was_avoided_has_to_be_passed_to_give_restarts_back():
    budget = Budget(5)
    for _ in range(2):
        resume(budget, "/c/30.pt", at=1.0, tail=LOADS + "!" * budget.used)
    budget.avoid(events.CheckpointChosen("/c/30.pt", step=30))
    spent = budget.used
    for path, step in (("/c/20.pt", 20), ("/d/30.pt", 30)):
        assert budget.begin(events.CheckpointChosen(path, step=step)) is None
        assert budget.used == spent
    assert budget.begin(events.CheckpointChosen("/c/40.pt", step=40)) is None
    assert budget.used < spent
    assert budget.tally.avoided != Tally().avoided


def test_an_older_one_is_no_progress():
    budget = Budget(5)
    resume(budget, "/c/2.pt", at=1.0, time=200)
    spent = budget.used
    assert budget.begin(events.CheckpointChosen("/c/1.pt", time=100)) is None
    assert budget.used == spent
    assert budget.begin(events.CheckpointChosen("/c/3.pt", time=300)) is None
    assert budget.used < spent


def test_a_script_that_saves_whenever_it_fails_is_not_restarted_for_ever():
    """The same step, under the same name or another."""
    budget = Budget(3)
    for n in range(1, 9):
        choice = events.CheckpointChosen("/c/last.pt", identity=str(n), time=n, step=30, scale="s")
        if budget.begin(choice) is not None:
            break
        budget.spend([Failure(0, 0, "n0", 1, 0, 1.0, f"ValueError: {n}")], saves=True)
    assert budget.total == 3


def test_the_steps_of_two_directories_say_nothing_of_each_other():
    budget = Budget(3)
    for _ in range(2):
        resume(budget, "/a/9000.pt", at=1.0, step=9000, scale="a", time=100)
    spent = budget.used
    budget.begin(events.CheckpointChosen("/b/1.pt", step=1, scale="b", time=200))
    assert budget.used < spent
