"""The adapter of the stager on several nodes: which agent restores, and where its workers save."""

from __future__ import annotations

import math
import os
import signal
from types import SimpleNamespace

import pytest
import test_staging
from test_staging import FD, home, wait_until_gone

from hpclaunch.agent.spread_staging import OTHERS, SpreadStaging
from hpclaunch.agent.staging import AGAIN, ENDS
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.model import Origin, Place, StagerPlace, Trouble
from hpclaunch.system.staging import messages

OTHER = StagerPlace(1, "n1", "10.0.0.2", 6001, "10.0.0.1")
LEAD = effects.LeadStagers(3, (OTHER,))
PEERS = (messages.PeerPlace(1, "n1", "10.0.0.2", 6001, "10.0.0.1"),)


class Story(test_staging.Story):
    """The adapter of one agent, whose stager listens. `asked` has the requests to its stagers."""

    def __init__(self, base, monkeypatch, *, leads=True, listens=True, trouble=None):
        self.control = SimpleNamespace(leads=leads, index=0)
        others = (Place(1, 1, "n1"),)
        super().__init__(base, monkeypatch, slurm_id="7", others=others, trouble=trouble)
        listens = listens and self.adapter.paths is not None
        self.events = self.reply(messages.Listening(6000)) if listens else []
        if leads:
            self.adapter.lead(LEAD)

    def new_adapter(self, context, settings):
        self.control.job = self.job
        return SpreadStaging(context, settings, b"key", "identity", self.control)

    def requests(self, *names):
        return [request for request in self.asked if request[0] in names]

    def reply(self, *replies):
        """Return the events that follow from replies of the stager in one turn of the loop."""
        self.adapter._client.given += replies
        return self.turn(self.adapter.ready({FD}, self.now))

    def turn(self, found=()):
        return [*found, *self.adapter.update(self.now)]

    def die(self):
        self.adapter._client.lost = True
        return self.turn(self.adapter.ready({FD}, self.now))

    def search(self, *, stages=True, agents=(0, 1), is_first=False):
        effect = effects.ChooseCheckpoint(agents=agents, stages=stages, is_first=is_first)
        return self.adapter.before_search(lambda: ["searched"], effect)

    def restored(self, **more):
        return self.reply(messages.Restored(self.adapter._number, "", 0, 0.5, **more))

    def flushed(self, *missing, why="", unusable=()):
        number = self.adapter._number
        return self.reply(messages.Flushed(number, missing, why, unusable=unusable))


@pytest.fixture
def head(tmp_path, monkeypatch):
    return Story(tmp_path, monkeypatch)


@pytest.fixture
def member(tmp_path, monkeypatch):
    return Story(tmp_path, monkeypatch, leads=False)


def test_a_stager_is_introduced_and_its_port_reported(member):
    assert member.requests("secret", "lead") == [("secret", b"key".hex())]
    assert member.events == [events.StagerFound(6000)]
    assert member.turn() == []
    assert member.requests("restore") == []


def test_the_directory_has_the_same_path_on_all_nodes(tmp_path, monkeypatch):
    paths = []
    for node in ("one", "two"):
        (tmp_path / node).mkdir()
        story = Story(tmp_path / node, monkeypatch)
        paths.append(os.path.relpath(story.adapter.paths.stage, tmp_path / node))
    assert paths[0] == paths[1]


def test_before_each_round_the_leading_agent_restores(head):
    timing = head.control.job.timing
    lease = timing.vote_lease + timing.election
    assert head.requests("lead") == [("lead", 3, 0, "n0", lease, PEERS)]
    for number in (1, 2):
        assert head.search() == []
        assert head.requests("restore")[-1] == ("restore", number, (), (0, 1))
        assert head.restored() == ["searched"]
    assert [line for line in head.said if "each checkpoint is copied to ckpt" in line] == head.said


def test_what_nodes_have_fetched_is_recorded(head):
    head.search()
    head.restored(fetched=1 << 30)
    assert head.said[-1] == "--stage: nodes have fetched 1.0 GiB from the memory of others in 0.5 s"


def test_an_earlier_restore_does_not_answer_a_later_search(head):
    head.search(agents=(0, 1, 2))
    late = messages.Restored(head.adapter._number, "", 0, 0.0)
    head.search()
    assert head.reply(late) == []
    assert head.restored() == ["searched"]


def test_an_earlier_refusal_does_not_answer_a_later_search(head):
    head.search(agents=(0, 1, 2))
    late = messages.Refused(head.adapter._number, "no room", "n2")
    head.search()
    assert head.reply(late) == []
    assert head.requests("flush") == []
    assert head.restored() == ["searched"]


def test_a_lack_of_room_during_a_restore_does_not_end_that(head):
    head.search()
    assert head.reply(messages.NoRoom("no room", "n1")) == [events.StagerFound(6000, "n1: no room")]
    assert head.requests("flush") == []
    assert head.restored() == ["searched"]


def test_one_with_other_checkpoints_to_avoid_is_restored_as_well(head):
    head.search()
    head.restored()
    assert head.adapter.restore(("ckpt/2.pt",), lambda: ["again"])
    assert head.requests("restore")[-1] == ("restore", 2, ("ckpt/2.pt",), (0, 1))
    assert not head.adapter.restore(("ckpt/2.pt",), lambda: ["again"])


def test_between_two_restores_the_stager_searches(head):
    found = []
    assert head.adapter.spread
    head.adapter.search(8, lambda reply: found.append(reply) or ["found"])
    head.die()
    assert head.requests("search") == [("search", 8), ("search", 8)]
    assert head.reply(messages.Searched(7, ())) == []
    assert head.reply(messages.Searched(8, ())) == ["found"]
    assert [reply.id for reply in found] == [8]


def test_a_search_that_waits_is_forgotten_once_there_is_a_later_one(head):
    head.search()
    head.adapter.forget_search()
    assert head.restored() == []
    assert head.adapter.deadline() == math.inf


def test_a_stager_that_is_slow_to_start_is_waited_for_with_a_message(tmp_path, monkeypatch):
    """An earlier launch may still be copying on this node."""
    story = Story(tmp_path, monkeypatch, leads=False, listens=False)
    story.adapter.update(story.adapter.deadline())
    process = "the process that copies checkpoints of ckpt into memory"
    assert story.said == [f"waiting for {process} (5 s so far)"]
    story.reply(messages.Listening(6000))
    assert story.adapter.deadline() == math.inf


def test_where_the_task_is_in_trouble_only_that_is_said(tmp_path, monkeypatch):
    missing = tmp_path / "missing"
    trouble = Trouble(Origin.USAGE, f"on n0: --stage={missing}: there is no such directory")
    assert Story(missing, monkeypatch, trouble=trouble).said == []
    assert len(Story(missing, monkeypatch).said) == 1


# Another stager, and another head


def test_a_stager_that_is_started_again_leads_and_restores(head):
    head.search()
    assert head.die() == [events.StagerFound()]
    after = [request[0] for request in head.asked[head.asked.index(("close",)) + 1 :]]
    assert after == ["start", "secret", "lead", "rounds", "restore"]
    assert head.reply(messages.Listening(6500)) == [events.StagerFound(6500)]


def test_one_that_ends_again_and_again_makes_the_node_save_on_storage(member):
    member.is_replaced = False
    assert member.die() == [events.StagerFound(0, f"n0: {ENDS}")]
    assert member.adapter.paths is not None


def test_the_next_round_does_not_wait_for_one_that_ends_again_and_again(head):
    head.search()
    head.restored()
    head.search(stages=False)
    head.is_replaced = False
    for _ in range(2):
        assert "searched" not in head.die()
        head.now += AGAIN
        head.turn()
    assert head.die()[0] == "searched"
    assert head.adapter.paths is None


def test_an_agent_that_no_longer_leads_waits_for_nothing(head):
    head.search()
    head.control.leads = False
    assert head.turn() == []
    assert head.requests("follow") == [("follow",)]
    assert head.restored() == []
    stage = head.adapter.paths.stage
    head.adapter.close()
    wait_until_gone(stage)


# Where the workers save


def test_if_memory_is_short_on_a_node_the_head_reports_it_for_all(head):
    head.search()
    head.restored()
    no_room = messages.NoRoom("no room", "n1")
    assert head.reply(no_room) == [events.StagerFound(6000, "n1: no room")]
    assert head.facts[-1].host == "n1"
    assert head.said[-1] == (
        "--stage: from the next round on, the script saves to ckpt itself: n1: no room"
    )
    assert head.adapter.paths is not None


def test_before_a_round_on_storage_all_is_copied_there(head):
    head.search()
    head.restored()
    stage = head.adapter.paths.stage
    assert head.search(stages=False) == []
    assert head.flushed() == ["searched", events.StagerFound(0, OTHERS)]
    wait_until_gone(stage)
    assert head.search() == ["searched"]


def test_the_next_round_names_what_could_not_be_copied_there(head):
    head.search()
    head.restored()
    head.search(stages=False)
    changed = "2.pt in the memory of n1: its bytes have changed"
    assert head.flushed(why=changed, unusable=("/s/ckpt/2.pt",))[0] == "searched"
    assert head.adapter.skipped == (f"/s/ckpt/2.pt: {changed}",)
    assert head.adapter.paths is None


def test_before_the_first_round_there_is_nothing_to_copy(head):
    stage = head.adapter.paths.stage
    assert head.search(stages=False, is_first=True) == ["searched"]
    assert head.requests("flush", "restore") == []
    wait_until_gone(stage)


def test_a_stager_that_never_works_does_not_keep_the_job_from_its_first_round(head):
    assert head.search(is_first=True) == []
    head.is_replaced = False
    assert head.die() == ["searched", events.StagerFound(0, f"n0: {ENDS}")]
    assert head.adapter.paths is None


def test_what_cannot_be_copied_there_is_restored_in_memory(head):
    head.search()
    head.restored()
    head.search(stages=False)
    assert head.flushed("ckpt/2.pt") == []
    assert head.requests("restore")[-1][2:] == ((), (0, 1))
    assert head.restored() == ["searched"]
    assert head.adapter.paths is not None


def test_a_checkpoint_without_room_is_used_on_storage(head):
    head.search()
    assert head.reply(messages.Refused(head.adapter._number, "no room")) == [
        events.StagerFound(6000, "n0: no room")
    ]
    assert head.flushed()[0] == "searched"
    assert head.adapter.paths is None


def test_a_member_leaves_memory_with_the_first_round_on_storage(member):
    stage = member.adapter.paths.stage
    member.adapter.note_round(stages=True)
    assert member.adapter.paths is not None
    member.adapter.note_round(stages=False)
    assert member.turn() == [events.StagerFound(0, OTHERS)]
    assert member.adapter.paths is None
    wait_until_gone(stage)


def test_a_node_without_such_a_directory_says_so(tmp_path, monkeypatch):
    story = Story(tmp_path / "missing", monkeypatch, leads=False)
    why = f"n0: No such file or directory: {home(tmp_path / 'missing')}"
    assert story.turn() == [events.StagerFound(0, why)]
    assert story.said == [f"--stage: the script saves to ckpt itself: {why}"]


# The end of the job


def test_the_leading_agent_flushes_even_if_it_has_begun_no_round(head):
    assert head.adapter.flush(effects.FlushStage(head.now + 9.0, number=5)) == []
    assert head.flushed()[0] == events.StageFlushed(number=5)


def test_one_that_leads_again_flushes_what_rounds_of_others_have_saved(head):
    head.search(is_first=True)
    head.control.leads = False
    head.turn()
    head.control.leads = True
    head.adapter.lead(LEAD)
    assert head.adapter.flush(effects.FlushStage(head.now + 9.0, number=5)) == []
    assert head.flushed()[0] == events.StageFlushed(number=5)


def test_a_search_during_the_flush_does_not_end_the_wait_for_it(head):
    """Slurm may explain its SIGTERM so late that the last save is looked for only then."""
    assert head.adapter.flush(effects.FlushStage(head.now + 9.0, number=5)) == []
    head.adapter.forget_search()
    head.adapter.search(8, lambda _: ["found"])
    assert head.reply(messages.Searched(8, ())) == ["found"]
    assert head.flushed()[0] == events.StageFlushed(number=5)


def test_the_directory_of_a_member_goes_with_its_agent(member):
    stage = member.adapter.paths.stage
    member.adapter.signalled(signal.SIGTERM)
    member.adapter.close()
    assert member.asked[-1] == ("close",)
    wait_until_gone(stage)
