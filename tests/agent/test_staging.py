"""The adapter of the stager: what waits for the stager, and what happens if it fails or hangs."""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from hpclaunch.agent import stage_waits
from hpclaunch.agent import staging as module
from hpclaunch.agent.config import Checkpoints
from hpclaunch.agent.stage_waits import FIRST_NOTICE
from hpclaunch.agent.staging import AGAIN, ENDS, Staging
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.effects import ChooseCheckpoint, FlushStage
from hpclaunch.core.protocol.model import Job, Place
from hpclaunch.observe.console import messages as lines
from hpclaunch.system.staging import messages
from hpclaunch.system.staging.room import Room

FD = 7
RESTORED = messages.Restored(1, "", 0, 0.0)
FULL = "No space left on device"
MIXED = "a file of it is of another save"


def home(base):
    return os.path.join(base, f"hpclaunch-stage-{os.geteuid()}")


class Client:
    """A stager that does nothing. `asked` has the requests to all of them."""

    def __init__(self, asked, settings):
        self._asked, self.given, self.lost = asked, [], False
        asked.append(("start", settings.stage))

    def send(self, request):
        values = (getattr(request, name) for name in request.__match_args__)
        self._asked.append((request.op, *values))

    def fileno(self):
        return FD

    def replies(self):
        given, self.given = self.given, []
        return given

    def close(self):
        self._asked.append(("close",))


class Story:
    """An adapter with its stager, for which the time is `now`. `said` has the lines that the user
    reads."""

    def __init__(self, base, monkeypatch, *, slurm_id="", others=(), trouble=None):
        self.asked, self.facts, self.is_replaced = [], [], True
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for each in (module, stage_waits):
            monkeypatch.setattr(each, "time", clock)
        monkeypatch.setattr(module, "StagingClient", lambda settings: Client(self.asked, settings))
        settings = Checkpoints("ckpt", (), "", "auto", str(base))
        self.job = Job((Place(0, 0, "n0"), *others), slurm_id=slurm_id)
        config = SimpleNamespace(arguments=("--dir", "ckpt"), job=self.job, trouble=trouble)
        logs = SimpleNamespace(is_replaced=lambda _: self.is_replaced)
        context = SimpleNamespace(config=config, logs=logs, record=self.facts.append, host="n0")
        self.adapter = self.new_adapter(context, settings)
        self.adapter.begin()

    def new_adapter(self, context, settings):
        return Staging(context, settings)

    @property
    def said(self):
        return [line for fact in self.facts for line in lines(fact)]

    @property
    def requests(self):
        """The names of the requests so far, without those on rounds."""
        return [name for name, *_ in self.asked if name != "rounds"]

    def reply(self, *replies):
        self.adapter._client.given += replies
        return self.adapter.ready({FD}, self.now)

    def die(self):
        self.adapter._client.lost = True
        return self.adapter.ready({FD}, self.now)

    def flush(self, until=math.inf):
        return self.adapter.flush(FlushStage(until, number=5))

    def flushed(self, *missing, why="", **more):
        return self.reply(messages.Flushed(self.adapter._number, missing, why, **more))

    def search(self, *, is_last=False, **more):
        return self.adapter.before_search(
            lambda: ["searched"], ChooseCheckpoint(is_last=is_last, **more)
        )


def wait_until_gone(path):
    until = time.monotonic() + 120.0
    while os.path.exists(path):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def story(tmp_path, monkeypatch):
    return Story(tmp_path, monkeypatch)


@pytest.fixture
def staging(story):
    """A story in which the script saves in memory."""
    story.reply(RESTORED)
    return story


def test_the_first_search_waits_for_the_restore(story):
    assert story.search() == []
    assert story.reply(RESTORED) == ["searched"]
    assert story.search() == ["searched"]
    assert story.requests == ["start", "restore"]


def test_the_words_that_name_the_directory_are_recorded(staging):
    (began,) = staging.facts
    assert began.words == ("ckpt",)
    stage = staging.adapter.paths.stage
    assert staging.said == [
        f"--stage: the script saves in {stage}; each checkpoint is copied to ckpt; "
        "arguments changed: ckpt"
    ]


def test_without_room_nothing_is_staged(story):
    story.search()
    assert story.reply(messages.Refused(1, "no room")) == ["searched"]
    assert story.adapter.paths is None
    assert story.said == ["--stage: the script saves to ckpt itself: no room"]
    assert story.flush() == [events.StageFlushed(number=5)]


def test_without_a_directory_in_memory_nothing_is_staged(tmp_path, monkeypatch):
    story = Story(tmp_path / "missing", monkeypatch)
    assert story.search() == ["searched"]
    why = f"No such file or directory: {home(tmp_path / 'missing')}"
    assert story.said == [f"--stage: the script saves to ckpt itself: {why}"]


def test_a_directory_in_memory_that_is_refused_is_named(tmp_path, monkeypatch):
    os.mkdir(home(tmp_path), 0o777)
    os.chmod(home(tmp_path), 0o777)
    story = Story(tmp_path, monkeypatch)
    why = f"it is not a private directory of this user: {home(tmp_path)}"
    assert story.said == [f"--stage: the script saves to ckpt itself: {why}"]


def test_if_room_is_short_later_the_next_round_waits_until_all_is_on_storage(staging):
    staging.reply(messages.NoRoom("no room"), messages.NoRoom("no room"))
    assert staging.adapter.paths is not None
    assert staging.said[1:] == [
        "--stage: from the next round on, the script saves to ckpt itself: no room"
    ]
    assert staging.search(is_last=True) == ["searched"]
    assert staging.search() == []
    assert staging.flushed() == ["searched"]
    assert (staging.adapter.paths, staging.search()) == (None, ["searched"])


def test_if_nothing_shows_that_a_save_is_complete_the_next_round_saves_on_storage(staging):
    staging.reply(messages.UnknownSave("global_step_3"))
    assert staging.said[1:] == [
        "--stage: from the next round on, the script saves to ckpt itself: nothing says that "
        "global_step_3 is complete, so it is copied only at the end of the round (if the script "
        "writes some file last, --checkpoint-complete names it)"
    ]
    assert not staging.adapter.saves_directly
    assert staging.search() == []
    assert staging.flushed() == ["searched"]
    assert staging.adapter.paths is None


def test_if_room_is_short_during_a_restore_that_round_waits_for_storage_too(staging):
    staging.adapter.restore(("ckpt/step-2.pt",), lambda: ["searched"])
    number = staging.adapter._number
    assert staging.reply(messages.NoRoom("no room")) == []
    assert staging.reply(messages.Restored(number, "ckpt/step-1.pt", 1, 0.1)) == []
    assert staging.requests[-1] == "flush"
    assert staging.flushed() == ["searched"]
    assert staging.adapter.paths is None


@pytest.mark.parametrize(
    ("is_killed", "free", "why"),
    [
        (True, 90, "the memory was used up, and the kernel killed a process of this job"),
        (False, 0, "the memory was full when a worker failed"),
        (False, 90, ""),
    ],
    ids=["killed", "full", "neither"],
)
def test_after_a_failure_for_lack_of_memory_the_next_round_saves_on_storage(
    staging, monkeypatch, is_killed, free, why
):
    monkeypatch.setattr(module, "room", lambda _: Room(free, 1000, "the memory"))
    monkeypatch.setattr(staging.adapter._kills, "happened", lambda: is_killed)
    staging.adapter.note_failure()
    line = "--stage: from the next round on, the script saves to ckpt itself: "
    assert staging.said[1:] == ([line + why] if why else [])
    assert staging.search() == ([] if why else ["searched"])


def test_after_a_failure_of_a_round_on_storage_there_is_nothing_to_report(story, monkeypatch):
    story.search()
    story.reply(messages.Refused(1, "no room"))
    story.adapter.note_failure()
    assert len(story.said) == 1


def test_and_what_cannot_be_written_stays_in_memory(staging):
    staging.reply(messages.NoRoom("no room"))
    staging.search()
    assert staging.flushed("ckpt/1.pt", why=FULL) == ["searched"]
    assert staging.adapter.paths is not None


def test_one_is_copied_into_memory_if_none_there_can_be_used(story):
    story.reply(messages.Restored(1, "ckpt/2.pt", 1, 0.1, ("3.pt: cut short",)))
    assert story.adapter.skipped == ("3.pt: cut short",)
    assert not story.adapter.restore((), lambda: ["again"])  # it was the first request
    assert story.adapter.restore(("ckpt/2.pt",), lambda: ["again"])
    assert story.asked[-1] == ("restore", 2, ("ckpt/2.pt",), ())
    assert story.reply(messages.Restored(2, "", 0, 0.0)) == ["again"]
    assert not story.adapter.restore(("ckpt/2.pt",), lambda: ["again"])
    story.adapter.note_rounds((), hurry=False)
    assert story.adapter.restore((), lambda: ["again"])


def test_one_that_does_not_fit_in_memory_is_used_on_storage(staging):
    staging.adapter.note_rounds((), hurry=False)
    assert staging.adapter.restore((), lambda: ["again"])
    assert staging.reply(messages.Refused(2, "no room")) == []
    assert "from the next round on, the script saves to ckpt itself" in staging.said[-1]
    assert staging.flushed() == ["again"]
    assert staging.adapter.paths is None


def test_one_is_used_on_storage_if_the_stager_ends_again_and_again(staging):
    staging.adapter.note_rounds((), hurry=False)
    staging.is_replaced = False
    staging.die()
    assert staging.adapter.restore((), lambda: ["again"])
    staging.adapter.update(staging.now + AGAIN)
    assert staging.requests[-2:] == ["start", "restore"]
    assert staging.die() == []
    staging.adapter.update(staging.now)
    assert staging.requests[-2:] == ["start", "flush"]
    assert staging.flushed() == ["again"]


# The stager fails


def test_a_stager_that_is_killed_is_started_again_and_asked_again(story):
    story.search()
    story.die()
    assert story.requests == ["start", "restore", "close", "start", "restore"]
    assert story.reply(RESTORED) == ["searched"]
    story.die()
    assert story.requests[-2:] == ["close", "start"]
    assert story.adapter.paths is not None


def test_one_that_is_killed_while_it_restores_an_older_checkpoint_is_asked_for_the_same(staging):
    staging.adapter.restore(("ckpt/step-2.pt",), list)
    staging.die()
    restores = [request for request in staging.asked if request[0] == "restore"]
    assert restores[-1] == restores[-2] == ("restore", 2, ("ckpt/step-2.pt",), ())


def test_one_that_ends_again_and_again_is_tried_later(staging):
    staging.is_replaced = False
    staging.die()
    assert staging.adapter.deadline() == staging.now + AGAIN
    staging.adapter.update(staging.now + AGAIN)
    assert staging.requests[-2:] == ["close", "start"]


def test_one_that_cannot_restore_is_not_waited_for(story):
    story.is_replaced = False
    story.search()
    assert story.die() == ["searched"]
    assert story.adapter.paths is None


@pytest.fixture
def flushing(staging):
    """A story in which the stager ends again and again while the next round waits for its flush."""
    staging.adapter.copies.note_saved("/s/ckpt/2.pt")
    staging.reply(messages.NoRoom("no room"))
    assert staging.search() == []
    staging.is_replaced = False
    assert staging.die() == []
    staging.now += AGAIN
    return staging


def test_the_next_round_begins_without_what_two_more_stagers_cannot_copy(flushing):
    assert flushing.adapter.update(flushing.now) == []
    assert flushing.die() == []
    flushing.now += AGAIN
    assert flushing.adapter.update(flushing.now) == []
    assert flushing.requests[-2:] == ["start", "flush"]
    assert flushing.die() == ["searched"]
    assert flushing.adapter.skipped == (f"/s/ckpt/2.pt: {ENDS}",)
    assert flushing.adapter.paths is None
    assert flushing.adapter.deadline() == math.inf


def test_the_next_round_does_not_wait_for_stagers_that_cannot_be_started(flushing, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(module, "StagingClient", fail)
    assert flushing.adapter.update(flushing.now) == []
    flushing.now += AGAIN
    assert flushing.adapter.update(flushing.now) == ["searched"]
    why = f"{ENDS}: {os.strerror(errno.ENOMEM)}"
    assert flushing.adapter.skipped == (f"/s/ckpt/2.pt: {why}",)


def test_a_stager_that_ends_after_the_flush_is_started_again(staging):
    staging.reply(messages.NoRoom("no room"))
    staging.search()
    staging.is_replaced = False
    for _ in range(2):
        staging.die()
        staging.adapter.update(staging.now + AGAIN)
    assert staging.flushed("ckpt/1.pt", why=FULL) == ["searched"]
    assert staging.die() == []
    assert staging.adapter.paths is not None


def test_one_that_is_gone_is_started_for_the_end_of_the_job(staging):
    staging.is_replaced = False
    staging.die()
    staging.flush()
    staging.adapter.update(staging.now)
    assert staging.requests[-2:] == ["start", "flush"]
    (flushed,) = staging.die()
    assert flushed.lost == ("ckpt",)


def test_storage_that_fails_is_named_once_per_reason(staging):
    failed = messages.DrainFailed("/s/ckpt/1.pt", FULL)
    staging.reply(failed, failed)
    assert staging.said[1:] == [
        f"/s/ckpt/1.pt was not copied to storage: {FULL}; it is tried again"
    ]
    drained = messages.Drained("/s/ckpt/1.pt", 1, 10, 2.5)
    assert staging.reply(drained) == [events.CheckpointDrained(2.5)]
    staging.reply(failed)
    assert len(staging.said) == 3


def test_a_log_that_could_not_be_copied_is_named_and_is_no_lost_checkpoint(staging):
    staging.adapter.copies.note_saved("/s/ckpt/1.pt")
    staging.reply(messages.Drained("/s/ckpt/1.pt", 1, 10, 2.5))
    staging.reply(messages.OtherFailed("/s/ckpt/log", FULL))
    assert staging.said[-1] == f"/s/ckpt/log was not copied to storage: {FULL}; it is tried again"
    staging.flush()
    (flushed,) = staging.adapter._give_up("interrupted")
    assert (flushed.lost, flushed.loses_checkpoint) == (("other files in ckpt",), False)


# The end of the job


def test_the_end_waits_for_the_copies_and_removes_the_directory(staging):
    stage = staging.adapter.paths.stage
    assert staging.flush() == []
    assert os.path.isdir(stage)
    assert staging.flushed() == [events.StageFlushed(number=5)]
    assert os.path.isdir(stage)  # to remove much takes a while
    staging.adapter.close()
    wait_until_gone(stage)
    assert staging.adapter.deadline() == math.inf


def test_a_long_wait_is_shown_and_what_is_lost_is_named(staging):
    staging.reply(messages.DrainProgress("/s/ckpt/1.pt", 1 << 30, 3 << 30))
    staging.flush()
    staging.adapter.update(staging.adapter._wait.since + FIRST_NOTICE)
    staging.adapter.update(staging.adapter._wait.since + FIRST_NOTICE + 1.0)
    lost = events.StageFlushed(("/s/ckpt/1.pt",), loses_checkpoint=True, number=5)
    assert staging.flushed("/s/ckpt/1.pt", why=FULL, checkpoint="/s/ckpt/1.pt") == [lost]
    assert staging.said[1:] == [
        "waiting until everything is copied to ckpt (5 s so far; Ctrl-C ends the wait, and what is "
        "not copied is lost): "
        "1.0 GiB of 3.0 GiB of /s/ckpt/1.pt",
        f"lost with the end of the job, not copied to storage: /s/ckpt/1.pt: {FULL}",
    ]


def test_a_checkpoint_with_files_of_several_saves_is_lost_with_the_job(staging):
    staging.flush()
    assert staging.flushed(why=MIXED, unusable=("/s/ckpt/2.pt",)) == [
        events.StageFlushed(("/s/ckpt/2.pt",), number=5)
    ]
    assert staging.said[-1].endswith(f"/s/ckpt/2.pt: {MIXED}")


def test_storage_that_hangs_is_waited_for_until_slurm_ends_the_job(staging):
    until = staging.now + 100.0
    staging.adapter.copies.note_saved("/s/ckpt/2.pt")
    staging.flush(until)
    assert staging.adapter.deadline() < until
    assert staging.adapter.update(until) == [events.StageFlushed(("/s/ckpt/2.pt",), True, 5)]
    assert staging.said[-1].endswith("not copied to storage: /s/ckpt/2.pt: no time was left")


def test_a_checkpoint_that_is_on_storage_is_not_called_lost(staging):
    staging.adapter.copies.note_saved("/s/ckpt/2.pt")
    staging.reply(messages.DrainProgress("/s/ckpt/2.pt", 5, 10))
    staging.reply(messages.Drained("/s/ckpt/2.pt", 2, 10, 2.5))
    until = staging.now + 100.0
    staging.flush(until)
    (flushed,) = staging.adapter.update(until)
    assert flushed == events.StageFlushed(("other files in ckpt",), False, 5)


def test_one_that_was_saved_again_under_its_name_is_lost(staging):
    staging.adapter.copies.note_saved("/s/ckpt/last.pt")
    staging.reply(messages.Drained("/s/ckpt/last.pt", 2, 10, 2.5))
    staging.adapter.copies.note_saved("/s/ckpt/last.pt")
    until = staging.now + 100.0
    staging.flush(until)
    assert staging.adapter.update(until) == [events.StageFlushed(("/s/ckpt/last.pt",), True, 5)]


def test_names_of_which_storage_has_had_a_checkpoint_are_known(staging):
    staging.reply(messages.Drained("/s/ckpt/1.pt", 1, 10, 2.5))
    staging.reply(messages.Drained("/s/ckpt/2.pt", 2, 10, 2.5))
    names = ("/s/ckpt/1.pt", "/s/ckpt/2.pt", "/s/ckpt/3.pt")
    assert [staging.adapter.copies.has_stored(name) for name in names] == [True, True, False]


def test_names_of_all_that_was_restored_are_known(story):
    story.reply(RESTORED.replaced(path="/s/ckpt/best.pt", by_name=("/s/ckpt/last.pt",)))
    names = ("/s/ckpt/best.pt", "/s/ckpt/last.pt")
    assert all(map(story.adapter.copies.has_stored, names))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_wait_that_was_shown(staging, signum):
    assert staging.adapter.signalled(signum) == []  # the workers still run
    staging.flush()
    assert staging.adapter.signalled(signum) == []  # a second one for the workers
    staging.adapter._wait.since -= FIRST_NOTICE
    (flushed,) = staging.adapter.signalled(signum)
    assert flushed.lost == ("ckpt",)


def test_before_the_first_round_the_end_waits_for_nothing(story):
    story.search()
    assert story.flush() == [events.StageFlushed(number=5)]
    assert story.adapter.paths is None


def test_a_refusal_during_the_wait_changes_nothing(staging):
    staging.flush()
    assert staging.reply(messages.Refused(1, "no room")) == []
    assert staging.flushed() == [events.StageFlushed(number=5)]


@pytest.mark.starts
def test_without_the_option_nothing_of_it_is_imported():
    program = "import sys, hpclaunch.agent.assembly; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert not [name for name in loaded if "staging" in name or "staged" in name]


def test_slurms_sigterm_limits_the_wait(tmp_path, monkeypatch):
    for slurm_id, limit in (("", math.inf), ("7", 27.0)):
        story = Story(tmp_path, monkeypatch, slurm_id=slurm_id)
        story.reply(RESTORED)
        story.flush()
        assert story.adapter.signalled(signal.SIGTERM) == []
        assert story.adapter._wait.until - story.now == limit
