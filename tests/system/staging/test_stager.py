"""The stager in this process, on real files: when it copies what, and what it deletes."""

import contextlib
import errno
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import saving_scripts
from kill_points import Channel, KilledError, Node, close
from looking import cut_short, damage, date, newest
from saving_scripts import ROOT, SCRIPTS, picture, write
from test_golden import TREES, tree

from hpclaunch.system.checkpoints import finding
from hpclaunch.system.staging import (
    copying,
    draining,
    memory,
    messages,
    other_files,
    publishing,
    room,
    service,
)
from hpclaunch.system.staging import looking as looking_module
from hpclaunch.system.staging import restoring as restoring_module
from hpclaunch.system.staging.record import Record
from hpclaunch.system.staging.requests import Requests
from hpclaunch.system.staging.stage_directory import RECORD, rmtree
from surroundings import entered

SECOND = 10**9
NOBODY = 65534


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def stager(node):
    """Yield a stager of this node, which makes no pauses."""
    made = node.stager()
    yield made
    node.close(made)


def sent(node, kind):
    return [message for message in node.channel.sent if isinstance(message, kind)]


def names(root):
    return sorted(picture(root))


@pytest.mark.parametrize("script", SCRIPTS)
def test_storage_follows_a_script(script, tmp_path):
    """Every step is saved while the one before is on storage; nothing is left of the others."""
    node = Node(tmp_path, ROOT.get(script, "ckpt"))
    stager = node.stager()
    for step in (1, 2, 3):
        SCRIPTS[script](node.stage, step)
        stager.work()
        assert newest(node.storage)[0], "nothing complete on storage"
    (node.stage / "log.txt").write_text("done\n")
    assert stager.flush(7) == messages.Flushed(7, (), "")
    node.close(stager)
    assert picture(node.storage) == picture(node.stage)
    assert names(node.storage) == [name for name in names(node.storage) if "hpclaunch" not in name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_next_launch_continues_from_what_is_on_storage(script, tmp_path):
    node = Node(tmp_path, ROOT.get(script, "ckpt"))
    SCRIPTS[script](node.storage, 1)
    before = picture(node.storage)
    stager = node.stager()
    restored = stager.restore(messages.Restore(1))
    assert restored.path.startswith(str(node.storage))
    assert restored.skipped == ()
    assert picture(node.stage) == before
    stager.work()
    assert not sent(node, messages.Drained)  # it is there already
    SCRIPTS[script](node.stage, 2)
    stager.work()
    stager.flush(2)
    node.close(stager)
    assert picture(node.storage) == picture(node.stage)


def test_nothing_is_copied_while_workers_load_what_was_restored(node, stager, monkeypatch):
    monkeypatch.setattr(service, "AFTER_RESTORE", 3600.0)
    for step in (1, 3):  # storage has nothing to restore at first
        stager.requests.take(messages.Restore(1))
        stager._answer()
        write(node.stage / f"step-{step}.pt", step)
        stager.work()
        assert names(node.storage)[-1] == f"step-{min(step, 2)}.pt"
        write(node.storage / "step-2.pt", 2)
    stager.memory.copies_at = 0.0
    stager.work()
    assert names(node.storage) == [f"step-{step}.pt" for step in (1, 2, 3)]


@pytest.mark.parametrize("name", TREES)
def test_checkpoints_by_frameworks_pass_through_storage(name, tmp_path):
    """The search finds the same in memory, on storage, and in the next launch."""
    saved, *_ = TREES[name]
    one, other = Node(tmp_path / "one"), Node(tmp_path / "other")
    one.stage.rmdir()
    tree(name, one.stage)
    stager = one.stager()
    stager.work()
    assert [m.path for m in sent(one, messages.Drained)] == [str(one.storage / saved)]
    assert newest(one.storage) == (str(one.storage / saved), [])
    assert stager.flush(1).missing == ()
    one.close(stager)
    other.storage = one.storage
    stager = other.stager()
    assert stager.restore(messages.Restore(1)).path == str(one.storage / saved)
    other.close(stager)
    assert newest(other.stage) == (str(other.stage / saved), [])
    assert picture(one.stage) == picture(one.storage) == picture(other.stage)


def test_a_script_that_saves_on_storage_itself_is_reported_once(node, stager, monkeypatch):
    monkeypatch.setattr(service, "STORAGE_PERIOD", 0.0)
    write(node.storage / "step-1.pt", 1)
    stager.restore(messages.Restore(1))
    stager.requests.rounds = ((time.time_ns() - SECOND, None, 1),)  # times of files are coarse
    stager.work()
    assert not sent(node, messages.DirectSave)
    for step in (2, 3):
        write(node.storage / f"step-{step}.pt", step)
        stager.work()
    assert sent(node, messages.DirectSave) == [messages.DirectSave("step-2.pt")]


def strange(root, step, ranks=2):
    """Save as verl does, and its tracker at the end."""
    for rank in range(ranks):
        write(root / f"global_step_{step}" / f"model_world_size_2_rank_{rank}.pt", step)
    if ranks == 2:
        (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def test_a_script_that_saves_in_no_known_format_is_reported_once(node, stager, monkeypatch):
    monkeypatch.setattr(service, "STORAGE_PERIOD", 0.0)
    strange(node.stage, 1, ranks=1)  # cut short by a kill
    begun = time.time_ns()
    stager.requests.rounds = ((begun - 9 * SECOND, begun, 2), (begun, None, 2))
    for path in (node.stage / "global_step_1").iterdir():
        os.utime(path, ns=(begun - SECOND, begun - SECOND))
    for step, ranks, reports in ((2, 1, 0), (2, 2, 0), (3, 1, 0), (3, 2, 1), (4, 2, 1)):
        strange(node.stage, step, ranks)
        for path in (node.stage / f"global_step_{step}").iterdir():
            os.utime(path, ns=(begun + step * SECOND, begun + step * SECOND))
        stager.work()
        assert len(sent(node, messages.UnknownSave)) == reports
    assert sent(node, messages.UnknownSave) == [messages.UnknownSave("global_step_3")]


def test_a_script_that_keeps_only_its_newest_save_in_no_known_format_is_reported(
    node, stager, monkeypatch
):
    monkeypatch.setattr(service, "STORAGE_PERIOD", 0.0)
    stager.requests.rounds = ((time.time_ns() - SECOND, None, 2),)
    strange(node.stage, 1)
    stager.work()
    assert not sent(node, messages.UnknownSave)
    strange(node.stage, 2)
    shutil.rmtree(node.stage / "global_step_1")
    stager.work()
    assert sent(node, messages.UnknownSave) == [messages.UnknownSave("global_step_2")]


def test_one_without_its_seal_may_just_be_saved(node, stager, monkeypatch):
    monkeypatch.setattr(service, "STORAGE_PERIOD", 0.0)
    stager.requests.rounds = ((time.time_ns() - SECOND, None, 2),)
    for step in (1, 2):
        strange(node.stage, step)
        stager.work()
        (node.stage / f"global_step_{step}" / ".complete").touch()
        stager.work()
    assert not sent(node, messages.UnknownSave)


def test_a_script_that_has_saved_in_memory_may_save_on_storage_too(node, stager):
    stager.requests.rounds = ((time.time_ns() - SECOND, None, 1),)
    write(node.stage / "step-1.pt", 1)
    stager.work()
    write(node.storage / "step-2.pt", 2)
    stager.work()
    assert not sent(node, messages.DirectSave)


def test_the_newest_is_first_and_the_others_follow(node, stager):
    for step in (1, 2, 3):
        write(node.stage / f"step-{step}.pt", step)
    for _ in range(3):
        stager.work()
    assert [message.step for message in sent(node, messages.Drained)] == [3, 2, 1]


def test_modes_and_times_are_kept(node, stager):
    write(node.stage / "step-1" / "rank.pt", 1)
    (node.stage / "step-1" / ".complete").touch()
    os.chmod(node.stage / "step-1" / "rank.pt", 0o640)
    os.utime(node.stage / "step-1", ns=(5, 12345678901))
    stager.work()
    for name in ("step-1", "step-1/rank.pt"):
        there, here = (os.stat(root / name) for root in (node.storage, node.stage))
        assert (there.st_mode, there.st_mtime_ns) == (here.st_mode, here.st_mtime_ns)


def test_directories_keep_their_modes(node, stager):
    for folder in ("run/a", "logs/b"):
        (node.stage / folder).mkdir(parents=True)
        os.chmod(node.stage / folder, 0o750)
        os.chmod((node.stage / folder).parent, 0o700)
    write(node.stage / "run" / "a" / "step-1.pt", 1)
    (node.stage / "logs" / "b" / "log").write_text("a log")
    assert stager.flush(1).missing == ()
    for name in ("run", "run/a", "logs", "logs/b"):
        assert os.stat(node.storage / name).st_mode == os.stat(node.stage / name).st_mode


def test_pauses_take_as_long_as_copying(node, monkeypatch, clock):
    pauses = []
    stager = node.stager()
    stager.requests.is_hurried = False
    monkeypatch.setattr(copying, "SPAN", 100_000)
    copied = copying._copy_span

    def copy_span(*args):
        clock.ahead += 2.0
        return copied(*args)

    def serve(seconds):
        clock.ahead += 20 * seconds
        pauses.append(seconds)

    monkeypatch.setattr(copying, "_copy_span", copy_span)
    monkeypatch.setattr(stager.requests, "serve", serve)
    write(node.stage / "step-1.pt", 1)
    stager.work()
    pieces = [pause for pause in pauses if pause]
    assert len(pieces) >= 1
    assert min(pieces) >= 2.0
    assert sent(node, messages.Drained)[0].seconds < 20 * sum(pieces)
    node.close(stager)


def interrupt(monkeypatch, action):
    """Do something while the first piece of a copy is read."""
    copied, todo = copying._copy_span, [action]

    def copy_span(*args):
        if todo:
            todo.pop()()
        return copied(*args)

    monkeypatch.setattr(copying, "_copy_span", copy_span)


def test_what_the_script_deletes_during_the_drain_still_reaches_storage(node, stager, monkeypatch):
    write(node.stage / "step-1.pt", 1)
    expected = picture(node.stage)
    interrupt(monkeypatch, (node.stage / "step-1.pt").unlink)
    stager.work()
    assert picture(node.storage) == expected


def test_one_that_is_replaced_during_the_drain_is_drained_again(node, stager, monkeypatch):
    write(node.stage / "snapshot.pt", 1)
    first = picture(node.stage)
    interrupt(monkeypatch, lambda: write(node.stage / "snapshot.pt", 2))
    stager.work()
    assert picture(node.storage) == first
    stager.work()
    assert picture(node.storage) == picture(node.stage) != first


def test_one_that_is_rewritten_in_place_during_the_drain_does_not_appear(
    node, stager, monkeypatch, tmp_path
):
    write(node.stage / "snapshot.pt", 1)
    write(tmp_path / "next.pt", 2)

    def rewrite():
        shutil.copyfile(tmp_path / "next.pt", node.stage / "snapshot.pt")

    interrupt(monkeypatch, rewrite)
    stager.work()
    assert names(node.storage) == []
    assert not stager.draining.has_pauses
    expected = picture(node.stage)
    copied, seen = copying._copy_span, []

    def copy_span(source, *more):  # once more while it is copied from memory to storage
        if source != str(node.stage) and not seen:
            seen.append(source)
            write(tmp_path / "next.pt", 3)
            rewrite()
        return copied(source, *more)

    monkeypatch.setattr(copying, "_copy_span", copy_span)
    stager.work()
    assert seen
    assert picture(node.storage) == expected != picture(node.stage)
    stager.work()
    assert picture(node.storage) == picture(node.stage)


def test_one_that_is_overtaken_is_given_up_only_once(node, stager, monkeypatch):
    """However often the script saves, at least every other drain is finished."""
    monkeypatch.setattr(copying, "SPAN", 20_000)
    monkeypatch.setattr(copying, "THREADS", 1)
    monkeypatch.setattr(draining, "THREADS", 1)
    for step in (1, 2, 3, 4):
        write(node.stage / f"step-{step}.pt", step)
        stager.looking.due = float("inf")

        def save_next(step=step):
            write(node.stage / f"step-{step + 1}.pt", step + 1)
            stager.looking.due = 0.0

        interrupt(monkeypatch, save_next)
        stager.work()
    assert [message.step for message in sent(node, messages.Drained)] == [2, 4]


def test_nothing_half_is_flushed(node, stager):
    write(node.stage / "step-1.pt", 1)
    write(node.stage / "step-2.pt", 2)
    damage(node.stage / "step-2.pt", cut_short)
    (node.stage / "step-3.pt").touch()
    (node.stage / "step-4.tmp").write_text("half")
    write(node.stage / "tmp.pt", 4)
    (node.stage / "tmp-checkpoint-5").mkdir()
    write(node.stage / "tmp-checkpoint-5" / "model.pt", 5)
    stager.flush(1)
    assert names(node.storage) == ["step-1.pt"]


@pytest.mark.parametrize("seal", [".complete", "done.txt"])
def test_a_seal_does_not_reach_storage_before_what_it_seals(node, seal):
    """The script completes a save soon after a look that has found one file of it."""
    stager = node.stager(complete="done.txt")
    write(node.stage / "rank-0.pt", 1)
    found = stager.looking.look()
    (one,) = stager.looking.complete(found)
    write(node.stage / "inner" / "rank-1.pt", 1)
    (node.stage / "log.txt").touch()
    (node.stage / seal).touch()
    assert not stager.draining.drain(one, found)
    assert names(node.storage) == ["log.txt", "rank-0.pt"]
    (node.stage / "more.txt").touch()
    stager.others.drain(found, copying.at_once, set())
    assert names(node.storage) == ["log.txt", "more.txt", "rank-0.pt"]
    stager.work()
    assert picture(node.storage) == picture(node.stage)
    node.close(stager)


def test_no_file_of_a_half_save_reaches_storage_beside_a_sealed_one(node, stager):
    SCRIPTS["sealed-root"](node.stage, 1)
    stager.work()
    expected = picture(node.storage)
    found = stager.looking.look()
    (node.stage / ".complete").unlink()
    (node.stage / "config.json").write_text("of the next save")
    for each in (found, stager.looking.look()):
        stager.others.drain(each, copying.at_once, set())
        assert picture(node.storage) == expected


def half_sealed(root):
    (root / ".complete").unlink()
    write(root / "rank-0.pt", 2)
    write(root / "inner" / "rank-1.pt", 2)


def half_directory(root):
    half_sealed(root / "last")
    (root / "last" / "more.npz").write_text("half")


def half_dcp(root):
    shard = next(root.glob("*.distcp"))
    os.utime(root / ".metadata", (1, 1))
    shard.write_bytes(shard.read_bytes()[::-1])
    (root / "__1_0.distcp").write_bytes(b"of another rank")


@pytest.mark.parametrize(
    ("script", "kill"),
    [("sealed-root", half_sealed), ("dcp-root", half_dcp), ("sealed-one-name", half_directory)],
)
def test_a_half_save_in_place_does_not_touch_the_one_on_storage(node, stager, script, kill):
    SCRIPTS[script](node.stage, 1)
    stager.work()
    before = picture(node.storage)
    kill(node.stage)
    stager.work()
    assert stager.flush(1).missing == ()
    assert picture(node.storage) == before
    assert newest(node.storage)[0]


def test_a_file_of_a_half_save_is_no_checkpoint_of_its_own(node):
    """With `**`, the search takes it for one."""
    stager = node.stager(pattern="**")
    SCRIPTS["sealed-one-name"](node.stage, 1)
    stager.work()
    before = picture(node.storage)
    half_sealed(node.stage / "last")
    stager.work()
    assert picture(node.storage) == before
    node.close(stager)


@pytest.mark.parametrize("below", [".", "checkpoints"])
def test_a_final_model_beside_checkpoints_is_flushed(node, stager, below):
    """The model makes the root a checkpoint, too, but nothing that a job resumes from."""
    import numpy
    from safetensors.numpy import save_file

    (node.stage / below).mkdir(exist_ok=True)
    SCRIPTS["files"](node.stage / below, 1)
    stager.work()
    for value in (1, 2):
        save_file({"weight": numpy.full(5, value)}, node.stage / "model.safetensors")
        (node.stage / "config.json").write_text(str(value))
        assert stager.flush(value).missing == ()
        assert picture(node.storage) == picture(node.stage)


def test_a_half_save_that_is_deleted_while_the_flush_looks_at_it(node, stager, monkeypatch):
    write(node.stage / "step-1.pt", 1)
    damage(half := node.stage / "step-1.pt", cut_short)
    (node.stage / "log.txt").write_text("a log")
    is_archive = other_files.is_archive

    def late(*which):
        half.unlink()
        return is_archive(*which)

    monkeypatch.setattr(other_files, "is_archive", late)
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert names(node.storage) == ["log.txt"]


def test_everything_else_is_flushed(node, stager):
    for name in ("logs/run/events", ".hydra/config.yaml", "data.tar", "vocab.bin", "step-7.json"):
        (node.stage / name).parent.mkdir(parents=True, exist_ok=True)
        (node.stage / name).write_text(f"this is {name}")
    write(node.stage / "final" / "weights.pt", 9)  # of no known format
    write(node.stage / "step-1.pt", 1)
    (node.stage / "latest").symlink_to("step-1.pt")
    (node.stage / "data").symlink_to("/usr")
    assert stager.flush(1).missing == ()
    assert picture(node.storage) == picture(node.stage)
    assert os.readlink(node.storage / "data") == "/usr"


def test_logs_reach_storage_with_each_checkpoint_but_no_unfinished_model_does(node, stager):
    (node.stage / "logs").mkdir()
    (node.stage / "logs" / "train.log").write_text("step 1\n")
    (node.stage / "best").mkdir()
    (node.stage / "best" / "weights.safetensors").write_text("half")
    write(node.stage / "step-1.pt", 1)
    stager.work()
    assert names(node.storage) == ["logs/train.log", "step-1.pt"]


def test_bytes_that_are_written_without_another_time_reach_storage_at_the_end(node, stager):
    """A mapping sets the time of its file at the first write only."""
    path = node.stage / "results"
    path.write_text("first")
    write(node.stage / "step-1.pt", 1)
    stager.work()
    damage(path, lambda _: b"later")
    assert stager.flush(1).missing == ()
    assert (node.storage / "results").read_text() == "later"
    copied = (node.storage / "results").stat().st_ino
    write(node.stage / "step-2.pt", 2)
    stager.work()
    assert (node.storage / "results").stat().st_ino == copied  # not once more


def test_a_directory_that_is_just_being_saved_leaves_nothing_on_storage(node, stager):
    (node.stage / "logs").mkdir()
    (node.stage / "logs" / "train.log").write_text("step 1\n")
    date(node.stage / "logs", time.time() - 9)
    write(node.stage / "step-1.pt", 1)
    date(node.stage / "step-1.pt", time.time() - 5)
    (node.stage / "logs" / "train.log").write_text("step 2\n")
    (node.stage / "step-2").mkdir()
    (node.stage / "step-2" / "config.json").write_text("{}")  # not known yet as a checkpoint
    stager.work()
    assert names(node.storage) == ["logs/train.log", "step-1.pt"]
    shutil.rmtree(node.stage / "step-2")
    stager.flush(1)
    assert picture(node.storage) == picture(node.stage)


def test_a_first_save_by_accelerate_at_the_very_end_is_not_lost(tmp_path):
    """While the round runs, it is not certain that it is complete; once it has ended, it is."""
    node = Node(tmp_path)
    stager = node.stager()
    stager.requests.rounds = ((time.time_ns() - 60 * SECOND, None, 1),)
    SCRIPTS["accelerate"](node.stage, 1)
    stager.work()
    assert names(node.storage) == []
    stager.requests.rounds = ((stager.requests.rounds[0][0], time.time_ns(), 1),)
    assert stager.flush(1).missing == ()
    node.close(stager)
    assert picture(node.storage) == picture(node.stage)


def test_a_tracker_never_names_what_is_not_on_storage(node, stager):
    SCRIPTS["deepspeed"](node.stage, 1)
    tag = node.stage / "global_step2"
    write(tag / "mp_rank_00_model_states.pt", 2, dp_world_size=2, mp_world_size=1)
    (node.stage / "latest").write_text("global_step2")  # before the other rank has saved
    stager.work()
    assert "latest" not in names(node.storage)
    stager.flush(1)
    assert "latest" not in names(node.storage)


def test_a_tracker_names_what_the_flush_has_copied_file_by_file(node, stager):
    strange(node.stage, 1)
    assert stager.flush(1).missing == ()
    assert picture(node.storage) == picture(node.stage)


def test_a_tracker_waits_for_every_file_of_a_directory(node, stager, monkeypatch):
    strange(node.stage, 1)
    refused = str(Path("global_step_1", "model_world_size_2_rank_1.pt"))
    copied = copying._copy_span

    def copy_span(source, draft, name, *more):
        if name == refused:
            raise OSError(errno.EDQUOT, "quota")
        return copied(source, draft, name, *more)

    with monkeypatch.context() as full:
        full.setattr(copying, "_copy_span", copy_span)
        assert stager.flush(1).missing == (str(node.storage / refused),)
    assert names(node.storage) == [str(Path("global_step_1", "model_world_size_2_rank_0.pt"))]
    assert stager.flush(2).missing == ()
    assert picture(node.storage) == picture(node.stage)


def test_a_file_in_a_directory_that_has_only_its_step_is_no_tracker(node, stager):
    strange(node.stage, 1)
    (node.stage / "global_step_1" / "step.txt").write_text("1")
    assert stager.flush(1).missing == ()
    assert picture(node.storage) == picture(node.stage)


def test_a_tracker_of_a_directory_that_the_script_has_just_deleted_waits(node, stager):
    strange(node.stage, 1)
    found, between = stager.looking.look(), stager.draining.between(None)
    shutil.rmtree(node.stage / "global_step_1")
    assert stager.others.drain(found, between, stager.draining.absent(found)) == []
    assert names(node.storage) == []


def test_a_tracker_is_reported_if_storage_fails_before_its_turn(node, stager, monkeypatch):
    strange(node.stage, 1)
    directory = str(node.storage / "global_step_1")

    def fail(root, name, file_at=other_files.file_at):
        if os.path.join(root, name).startswith(directory) and os.path.isdir(directory):
            raise OSError(errno.ESTALE, "stale")
        return file_at(root, name)

    monkeypatch.setattr(other_files, "file_at", fail)
    tracker = node.storage / "latest_checkpointed_iteration.txt"
    assert stager.flush(1).missing == (str(tracker),)


def test_a_tracker_that_is_rewritten_while_it_is_copied_waits(node, stager, monkeypatch):
    SCRIPTS["deepspeed"](node.stage, 1)
    copied = copying._copy_span

    def copy_span(source, draft, name, *more):
        if name == "latest" and (node.stage / name).read_text() == "global_step1":
            write(node.stage / "global_step2" / "mp_rank_00_model_states.pt", 2)
            (node.stage / name).write_text("global_step2")
        return copied(source, draft, name, *more)

    with monkeypatch.context() as rewriting:
        rewriting.setattr(copying, "_copy_span", copy_span)
        rewriting.setattr(stager.others, "drain", lambda *_: None)
        stager.work()
    assert "latest" not in names(node.storage)
    SCRIPTS["deepspeed"](node.stage, 2)
    stager.work()
    assert (node.storage / "latest").read_text() == "global_step2"
    assert picture(node.storage) == picture(node.stage)


def test_a_link_to_another_directory_reaches_storage(node, stager, tmp_path):
    write(tmp_path / "elsewhere" / "step-9.pt", 9)
    (node.stage / "best.pt").symlink_to(tmp_path / "elsewhere" / "step-9.pt")
    stager.work()
    assert stager.flush(1).missing == ()
    assert os.readlink(node.storage / "best.pt") == str(tmp_path / "elsewhere" / "step-9.pt")


def test_directories_behind_links(tmp_path):
    """The paths of /scratch are often links."""
    real, node = Node(tmp_path / "real"), Node(tmp_path / "links")
    for name in ("storage", "stage"):
        getattr(node, name).rmdir()
        getattr(node, name).symlink_to(getattr(real, name))
    SCRIPTS["files"](node.storage, 1)
    before = picture(node.storage)
    stager = node.stager()
    stager.restore(messages.Restore(1))
    assert picture(real.stage) == before
    for step in (2, 3):
        SCRIPTS["files"](node.stage if step == 2 else real.stage, step)
        stager.work()
        assert picture(real.storage) == picture(real.stage)
        assert os.readlink(real.storage / "last.pt") == f"step-{step}.pt"
    node.close(stager)


# Deletion


def test_what_others_have_saved_is_never_deleted(node, stager):
    write(node.storage / "step-1.pt", 1)  # by an earlier launch, and not restored
    for step in (2, 3, 4):
        SCRIPTS["files"](node.stage, step)
        stager.work()
    assert names(node.storage) == ["last.pt", "step-1.pt", "step-4.pt"]
    assert [message.step for message in sent(node, messages.Drained)] == [2, 3, 4]


def test_checkpoints_of_an_earlier_launch_are_kept_under_another_name(node, stager, monkeypatch):
    """Only the newest one is restored, so the script takes the names of the others for free."""
    for step in (1, 2):
        write(node.storage / f"step-{step}.pt", step)
    stager.restore(messages.Restore(1))
    before = picture(node.storage)
    for value in (3, 4):  # the second time, this launch has written both
        for step in (1, 2):
            write(node.stage / f"step-{step}.pt", value)
            stager.work()
        limit(monkeypatch, 2 * SIZE)
        stager.work()
        assert names(node.stage) == ["step-2.pt"]
    assert names(node.storage) == ["step-1.pt", "step-1.pt.~1~", "step-2.pt"]
    assert picture(node.storage)["step-1.pt.~1~"] == before["step-1.pt"]
    assert newest(node.storage) == (str(node.storage / "step-2.pt"), [])


def test_an_older_one_that_reaches_storage_later_is_new_enough_too(node, stager):
    """The script has deleted the newest one as well, which was not its best."""
    write(node.stage / "step-1.pt", 1)
    stager.work()
    write(node.stage / "step-2.pt", 2)
    write(node.stage / "step-3.pt", 3)
    drain = stager.draining.drain

    def drain_and_delete(contents, found):
        why = drain(contents, found)
        for name in ("step-1.pt", "step-3.pt"):
            (node.stage / name).unlink(missing_ok=True)
        return why

    stager.draining.drain = drain_and_delete
    stager.work()
    assert names(node.storage) == ["step-1.pt", "step-3.pt"]
    stager.work()
    assert names(node.storage) == ["step-2.pt", "step-3.pt"]


def test_a_higher_step_of_an_earlier_launch_is_no_reason_to_delete(node, stager, monkeypatch):
    write(node.storage / "step-1000.pt", 1000)
    date(node.storage / "step-1000.pt", 1000)
    stager.restore(messages.Restore(1))
    write(node.stage / "step-1.pt", 1)
    stager.work()
    (node.stage / "step-1.pt").unlink()
    write(node.stage / "step-2.pt", 2)
    with monkeypatch.context() as failing:
        failing.setattr(copying, "_copy_span", fail(errno.ENOSPC))
        stager.work()
    assert names(node.storage) == ["step-1.pt", "step-1000.pt"]
    stager.flush(1)
    assert names(node.storage) == ["step-1000.pt", "step-2.pt"]


def test_the_last_complete_one_stays(node, stager):
    write(node.stage / "step-1.pt", 1)
    stager.work()
    (node.stage / "step-1.pt").unlink()
    write(node.stage / "step-2.pt", 2)
    damage(node.stage / "step-2.pt", cut_short)
    stager.work()
    stager.flush(1)
    assert names(node.storage) == ["step-1.pt"]


def test_the_files_of_ranks_count_as_one_checkpoint(node, stager):
    SCRIPTS["ranks"](node.stage, 1)
    stager.work()
    (drained,) = sent(node, messages.Drained)
    assert drained.path == str(node.storage / "ep0-ba1-rank0.pt")
    for path in node.stage.iterdir():
        path.unlink()
    stager.work()
    stager.flush(1)
    assert names(node.storage) == ["ep0-ba1-rank0.pt", "ep0-ba1-rank1.pt"]


def test_while_the_file_of_a_rank_is_cut_short_nothing_is_copied(node, stager):
    for rank in range(2):
        write(node.stage / f"step_1_rank{rank}.pt", 1)
    damage(node.stage / "step_1_rank1.pt", cut_short)
    stager.work()
    assert names(node.storage) == []
    write(node.stage / "step_1_rank1.pt", 1)
    stager.work()
    assert names(node.storage) == ["step_1_rank0.pt", "step_1_rank1.pt"]


def save_with_metrics(stage, step):
    """Save a checkpoint, and a file and a link beside it in place of those of the step before."""
    for name in (f"step-{step - 1}.pt", f"metrics/{step - 1}/all.json", f"link-{step - 1}"):
        (stage / name).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        (stage / f"metrics/{step - 1}").rmdir()
    (stage / f"metrics/{step}").mkdir(parents=True)
    (stage / f"metrics/{step}/all.json").write_text(str(step))
    (stage / f"link-{step}").symlink_to("log.txt")
    (stage / "log.txt").write_text("a log")
    write(stage / f"step-{step}.pt", step)


def test_other_files_that_the_script_deletes_are_deleted_on_storage_at_the_end(node, stager):
    (node.storage / "metrics").mkdir()
    (node.storage / "metrics/of-another-run.json").write_text("0")
    for step in (1, 2, 3):
        save_with_metrics(node.stage, step)
        for _ in range(2):
            stager.work()
    assert "link-1" in names(node.storage)
    stager.flush(1)
    expected = picture(node.stage)
    assert names(node.storage) == sorted([*expected, "metrics/of-another-run.json"])
    assert sorted(os.listdir(node.storage / "metrics")) == ["3", "of-another-run.json"]
    assert len(Record(str(node.stage.parent)).others) == len(expected) - 1  # all but checkpoints


def test_files_by_somebody_else_stay_on_storage(node, monkeypatch):
    """Also files by earlier launches that the script deletes, and those that cannot be deleted."""
    write(node.storage / "step-1.pt", 1)
    (node.storage / "earlier.json").write_text("by an earlier launch")
    stager = node.stager()
    stager.restore(messages.Restore(1))
    for name in ("kept.json", "gone.json", "busy.json"):
        (node.stage / name).write_text("by the script")
    stager.flush(1)
    assert names(node.storage) == names(node.stage)
    (node.storage / "kept.json").write_text("by somebody else")
    (node.storage / "gone.json").unlink()
    for name in ("kept.json", "gone.json", "busy.json", "earlier.json"):
        (node.stage / name).unlink()
    with monkeypatch.context() as failing:
        failing.setattr(os, "unlink", fail(errno.EIO))
        stager.flush(2)
    assert names(node.storage) == ["busy.json", "earlier.json", "kept.json", "step-1.pt"]
    stager.flush(3)
    assert names(node.storage) == ["earlier.json", "kept.json", "step-1.pt"]
    assert (node.storage / "kept.json").read_text() == "by somebody else"
    node.close(stager)


def rename(stage):
    (stage / "scores.json").rename(stage / "scores.json.tmp")


def merge(stage):
    """Put the file into a checkpoint whose save is cut short."""
    (stage / "scores.json").unlink()
    write(stage / "all.pt", 9)
    os.truncate(stage / "all.pt", SIZE // 2)


def replace_all(stage):
    """Make another staging directory, as a script does after the end of a login session."""
    stage.rename(stage.parent / "old")
    stage.mkdir()


@pytest.mark.parametrize("change", [rename, merge, replace_all])
def test_nothing_is_deleted_on_storage_that_may_be_in_memory_only(node, stager, change):
    (node.stage / "scores.json").write_text("[]" * 4096)
    write(node.stage / "step-1.pt", 1)
    stager.work()
    change(node.stage)
    write(node.stage / "step-2.pt", 2)
    for _ in range(2):
        stager.work()
    stager.flush(1)
    assert "step-2.pt" in names(node.storage)
    assert (node.storage / "scores.json").read_text() == "[]" * 4096


def test_a_file_that_is_being_replaced_stays_on_storage(node, stager):
    """The script deletes a file before it writes the new one."""
    write(node.stage / "step-1.pt", 1)
    (node.stage / "latest").symlink_to("step-1.pt")
    stager.work()
    (node.stage / "latest").unlink()
    write(node.stage / "step-2.pt", 2)
    stager.work()
    assert os.readlink(node.storage / "latest") == "step-1.pt"
    (node.stage / "latest").symlink_to("step-2.pt")
    stager.work()
    stager.flush(1)
    assert os.readlink(node.storage / "latest") == "step-2.pt"


def test_making_room_in_memory_deletes_no_part_of_a_checkpoint_on_storage(
    node, stager, monkeypatch
):
    """A part of it was copied before the directory looked like a checkpoint."""
    write(node.stage / "step-1.pt", 1)
    (node.stage / "best").mkdir()
    (node.stage / "best/config.json").write_text("{}")
    date(node.stage / "best", 1000)
    stager.work()
    assert names(node.storage) == ["best/config.json", "step-1.pt"]
    write(node.stage / "best/model.pt", 2)
    (node.stage / "best/.complete").touch()
    stager.work()
    write(node.stage / "step-3.pt", 3)
    limit(monkeypatch, 2 * SIZE)
    stager.work()
    write(node.stage / "step-4.pt", 4)
    stager.work()
    assert not (node.stage / "best").exists()
    assert {"best/.complete", "best/config.json", "best/model.pt"} < set(names(node.storage))


def test_files_that_somebody_has_deleted_on_storage_are_there_at_the_end(node, stager):
    write(node.stage / "step-1.pt", 1)
    (node.stage / "config.json").write_text("{}")
    stager.work()
    shutil.rmtree(node.storage)
    assert stager.flush(1) == messages.Flushed(1, (), "")
    assert picture(node.storage) == picture(node.stage)


def test_a_renamed_checkpoint_stays_on_storage_under_either_name(node, stager, monkeypatch):
    """The script renames it while the next one is copied."""
    write(node.stage / "step-1.pt", 1)
    stager.work()
    write(node.stage / "step-2.pt", 2)
    drain = stager.draining.drain

    def renaming(*args):
        (node.stage / "step-1.pt").rename(node.stage / "best.pt")
        return drain(*args)

    with monkeypatch.context() as renamed:
        renamed.setattr(stager.draining, "drain", renaming)
        stager.work()
    assert names(node.storage) == ["step-1.pt", "step-2.pt"]
    stager.work()
    assert names(node.storage) == ["best.pt", "step-2.pt"]


def test_a_staging_directory_that_somebody_has_deleted_deletes_nothing(node, stager):
    for step in (1, 2):
        write(node.stage / f"step-{step}.pt", step)
        stager.work()
    shutil.rmtree(node.stage)
    stager.work()
    flushed = stager.flush(1)
    assert flushed.unusable == (str(node.storage),)  # so the next round looks on storage
    assert "has deleted the staging directory" in flushed.why
    assert names(node.storage) == ["step-1.pt", "step-2.pt"]


@pytest.mark.parametrize("request_", [messages.Restore(1), messages.Flush(1)])
def test_what_is_found_while_another_program_deletes_all_is_not_sent(
    node, stager, monkeypatch, request_
):
    """The job would save on storage from then on, or report checkpoints as lost."""

    def exit_now(_):
        raise KilledError

    monkeypatch.setattr(os, "_exit", exit_now)
    write(node.storage / "step-1.pt", 1)
    name = type(request_).__name__.lower()
    answer = getattr(stager, name)

    def delete_first(asked):
        shutil.rmtree(node.stage.parent)
        return answer(asked)

    monkeypatch.setattr(stager, name, delete_first)
    stager.requests.pending.append(request_)
    with pytest.raises(KilledError):
        stager._answer()
    assert node.channel.sent == [messages.DirectoryDeleted()]


def test_the_next_stager_knows_what_this_launch_has_saved(node, stager):
    write(node.stage / "step-1.pt", 1)
    stager.work()
    SCRIPTS["files"](node.stage, 2)
    other = node.stager()
    other.work()
    assert "step-1.pt" not in names(node.storage)
    close(other)


def test_a_record_that_another_launch_has_just_removed(tmp_path):
    """The agent was killed before its stager held the directory: this is no error of the stager."""
    assert Record(str(tmp_path)).moved == {}


def test_the_next_stager_replaces_a_file_that_was_copied_with_a_checkpoint(node, stager):
    SCRIPTS["sealed-root"](node.stage, 1)
    stager.work()
    (node.stage / "config.json").write_text("changed")
    os.utime(node.stage / "config.json", (5, 5))  # else it would be newer than .complete
    other = node.stager()
    assert other.flush(1).missing == ()
    close(other)
    assert picture(node.storage) == picture(node.stage)


def test_a_checkpoint_that_is_deleted_while_it_is_looked_at(node, stager, monkeypatch):
    contents_of = looking_module.contents_of
    SCRIPTS["sealed-root"](node.stage, 1)

    def late(root, found):
        for path in node.stage.iterdir():
            rmtree(str(path)) if path.is_dir() else path.unlink()
        return contents_of(root, found)

    monkeypatch.setattr(looking_module, "contents_of", late)
    stager.work()
    assert os.listdir(node.storage) == []


def test_the_next_stager_deletes_what_was_half_published(node, stager, monkeypatch):
    """The first stager is killed when one of two ranks' files has its final name."""
    SCRIPTS["ranks"](node.stage, 1)
    placed = publishing.place
    monkeypatch.setattr(
        publishing, "place", lambda *a: fail(errno.EIO)() if "rank0" in a[1] else placed(*a)
    )
    stager.work()
    monkeypatch.setattr(publishing, "place", placed)
    assert names(node.storage) == ["ep0-ba1-rank1.pt"]
    SCRIPTS["ranks"](node.stage, 2)
    other = node.stager()
    other.work()
    close(other)
    assert picture(node.storage) == picture(node.stage)


# Several launches


@pytest.fixture
def other(node, tmp_path):
    """Return another node, with the same storage."""
    made = Node(tmp_path / "other")
    made.storage, made.stage = node.storage, tmp_path / "other" / "its-memory" / "ckpt"
    made.stage.mkdir(parents=True)
    return made


def test_another_launch_leaves_a_draft_that_is_in_use(node, other, stager, monkeypatch):
    """The draft looks abandoned after the first pieces, but others follow."""
    write(node.stage / "step-1.pt", 1)
    monkeypatch.setattr(copying, "SPAN", 10_000)
    second, copied = other.stager(), copying._copy_span

    def copy_span(source, drafted, name, start, length):
        done = copied(source, drafted, name, start, length)
        if start == 0:
            os.utime(drafted, (5, 5))
        elif start == copying.THREADS * copying.SPAN:
            second.draining.sweep()
        return done

    monkeypatch.setattr(copying, "_copy_span", copy_span)
    stager.work()
    assert not sent(node, messages.DrainFailed)
    assert names(node.storage) == ["step-1.pt"]
    other.close(second)


def test_an_abandoned_draft_is_removed_once_it_is_old(node, stager):
    left = node.storage / f"{publishing.DRAFT}5f3a9c1e-x"
    left.mkdir()
    stager.draining.sweep()
    assert left.exists()
    now = left.stat().st_mtime
    os.utime(left, (now, now - publishing.ABANDONED - 1))
    write(node.stage / "step-1.pt", 1)
    stager.work()
    assert os.listdir(node.storage) == ["step-1.pt"]


# Failures


def fail(code):
    def failing(*_):
        raise OSError(code, os.strerror(code))

    return failing


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ESTALE, errno.EACCES])
def test_storage_that_fails_leaves_no_draft_and_is_tried_again(node, stager, monkeypatch, code):
    write(node.stage / "step-1.pt", 1)
    with monkeypatch.context() as failing:
        failing.setattr(copying, "_copy_span", fail(code))
        stager.work()
        assert [m.why for m in sent(node, messages.DrainFailed)] == [os.strerror(code)]
        assert os.listdir(node.storage) == []
        stager.work()  # 10 s have not passed
        assert len(sent(node, messages.DrainFailed)) == 1
        flushed = stager.flush(5)
        path = str(node.storage / "step-1.pt")
        assert flushed == messages.Flushed(5, (path,), os.strerror(code), path)
    write(node.stage / "step-2.pt", 2)
    stager.work()
    assert names(node.storage) == ["step-2.pt"]
    stager.draining.failed = stager.draining.failed[0], 0.0
    stager.work()
    assert names(node.storage) == ["step-1.pt", "step-2.pt"]


@pytest.mark.parametrize(("module", "name"), [(copying, "_copy_span"), (draining, "publish")])
def test_storage_that_is_silent_is_reported_once(node, stager, monkeypatch, clock, module, name):
    answer = getattr(module, name)

    def hang(*args):
        clock.ahead += 2 * draining.SILENT
        until = time.monotonic() + 60
        while not sent(node, messages.DrainFailed) and time.monotonic() < until:
            time.sleep(0.01)
        clock.ahead += 2 * draining.SILENT
        time.sleep(0.5)  # for several looks
        return answer(*args)

    monkeypatch.setattr(module, name, hang)
    write(node.stage / "step-1.pt", 1)
    stager.work()
    failed = messages.DrainFailed(
        str(node.storage / "step-1.pt"), "storage has not answered for 60 s"
    )
    assert [m for m in node.channel.sent if not isinstance(m, messages.DrainProgress)][-2:] == [
        failed,
        *sent(node, messages.Drained),
    ]
    assert names(node.storage) == ["step-1.pt"]


def test_silence_while_nothing_is_drained_is_reported_too(node, stager, monkeypatch, clock):
    examine = stager._launch.there.examine

    def hang(*args):
        clock.ahead += 2 * draining.SILENT
        until = time.monotonic() + 60
        while not sent(node, messages.OtherFailed) and time.monotonic() < until:
            time.sleep(0.01)
        return examine(*args)

    monkeypatch.setattr(stager._launch.there, "examine", hang)
    write(node.stage / "step-1.pt", 1)
    stager.work()
    assert [m.path for m in sent(node, messages.OtherFailed)] == [str(node.storage)]
    assert not sent(node, messages.DrainFailed)  # no checkpoint is lost if the job ends now
    assert len(sent(node, messages.Drained)) == 1


def test_an_idle_time_is_no_silence_of_storage(node, stager):
    """The copy before was that of an empty file, so the next one begins with as many bytes."""
    (node.stage / "logs").mkdir()
    (node.stage / "logs" / "empty").touch()
    date(node.stage / "logs", time.time() - 9)  # all may be written in one tick of the clock
    write(node.stage / "step-1.pt", 1)
    stager.work()
    assert "logs/empty" in names(node.storage)
    stager.draining._progress_at -= 2 * draining.SILENT
    (node.stage / "logs" / "log").write_text("a line")
    assert stager.flush(1).missing == ()
    assert not sent(node, messages.DrainFailed) + sent(node, messages.OtherFailed)
    assert "logs/log" in names(node.storage)


def test_full_storage_takes_what_it_has_room_for(node, stager, monkeypatch):
    copied, room = copying._copy_span, 1_000_000

    def copy_span(source, draft, *more):
        done = copied(source, draft, *more)
        if sum(path.stat().st_size for path in node.storage.rglob("*")) > room:
            fail(errno.ENOSPC)()
        return done

    monkeypatch.setattr(copying, "_copy_span", copy_span)
    (node.stage / "large.log").write_bytes(bytes(room))
    (node.stage / "log.txt").write_bytes(bytes(10_000))
    path, why = str(node.storage / "large.log"), os.strerror(errno.ENOSPC)
    for step in (1, 2):
        write(node.stage / f"step-{step}.pt", step)
        stager.work()
    assert names(node.storage) == ["log.txt", "step-1.pt", "step-2.pt"]
    assert sent(node, messages.OtherFailed) == [messages.OtherFailed(path, why)]
    assert stager.flush(1) == messages.Flushed(1, (path,), why)
    room *= 10
    write(node.stage / "step-3.pt", 3)
    stager.work()
    assert picture(node.storage) == picture(node.stage)
    assert not sent(node, messages.DrainFailed)


def test_a_disk_with_hard_links_in_one_directory_only_is_refused(node, stager, monkeypatch):
    """BeeGFS is one."""
    link = os.link

    def within_one(source, target, **options):
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", within_one)
    assert isinstance(stager.restore(messages.Restore(1)), messages.Refused)


@pytest.mark.skipif("descriptors" in entered, reason="no process can have as many files")
def test_requests_are_read_from_descriptors_of_any_number():
    """select() takes none beyond 1023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]
    try:
        channel = Channel()
        requests = Requests(channel)
        requests.wake()
        requests.serve(60.0)
        channel.close()
        os.close(requests._waking)
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_disk_without_hard_links_is_refused(node, stager, monkeypatch):
    monkeypatch.setattr(os, "link", fail(errno.EPERM))
    refused = stager.restore(messages.Restore(1))
    assert refused == messages.Refused(
        1, f"no hard links can be made in {node.stage.parent}: Operation not permitted"
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_storage_to_which_the_user_may_not_write_is_refused(user, is_there):
    """The first checkpoint would be there only at the end, if at all."""
    node = Node(user)
    stager = node.stager()
    if not is_there:
        node.storage.rmdir()
    place = node.storage if is_there else node.storage.parent
    place.chmod(0o555)
    refused = stager.restore(messages.Restore(1))
    place.chmod(0o755)
    why = f"{place} is read-only, or this user may not write to it"
    assert refused == messages.Refused(1, why)
    node.close(stager)


def test_a_checkpoint_that_cannot_be_read_is_no_deleted_one(node, stager, monkeypatch):
    write(node.stage / "step-1.pt", 1)

    def unreadable(*_, **__):
        raise PermissionError(errno.EPERM, "not permitted", str(node.stage / "step-1.pt"))

    monkeypatch.setattr(os, "link", unreadable)
    stager.work()
    assert [m.why for m in sent(node, messages.DrainFailed)] == ["not permitted"]


def test_a_draft_that_could_not_be_removed_is_removed_later(node, stager, monkeypatch):
    write(node.stage / "step-1.pt", 1)
    with monkeypatch.context() as away:
        away.setattr(copying, "_copy_span", fail(errno.ESTALE))
        away.setattr(publishing.shutil, "rmtree", lambda *_, **__: None)
        stager.work()
    assert len(os.listdir(node.storage)) == 1
    stager.flush(1)
    assert os.listdir(node.storage) == ["step-1.pt"]


def test_a_draft_that_another_node_still_writes_to_is_removed_whole(tmp_path, monkeypatch):
    """The other node has not given up its copy yet."""
    rmdir = os.rmdir

    def late(*args, **options):
        with contextlib.suppress(FileNotFoundError):
            (Path(drafted) / "late").touch()
        rmdir(*args, **options)

    with publishing.draft(str(tmp_path), "job") as drafted:
        monkeypatch.setattr(os, "rmdir", late)
    assert os.listdir(tmp_path) == []


def test_a_draft_for_whose_other_name_is_no_room_is_removed(tmp_path, monkeypatch):
    with publishing.draft(str(tmp_path), "job"):
        monkeypatch.setattr(os, "rename", fail(errno.ENOSPC))
    assert os.listdir(tmp_path) == []


@pytest.fixture
def user():
    """Give root's tests the rights of a user, who cannot write to read-only directories, and yield
    a directory where they can.
    """
    import torch  # noqa: F401 - only root may be able to read it

    with tempfile.TemporaryDirectory() as scratch:
        is_root = not os.geteuid()
        if is_root:
            os.chown(scratch, NOBODY, -1)
            os.setresuid(NOBODY, NOBODY, 0)
        yield Path(scratch)
        if is_root:
            os.setresuid(0, 0, 0)


def read_only(directory):
    for path in (*directory.rglob("*"), directory):
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_read_only_directories(user):
    """A stager moves them to storage, replaces one (`last`), and deletes others."""
    node = Node(user)
    stager = node.stager()
    for step in (1, 2, 3):
        for path in node.stage.iterdir():
            rmtree(str(path))
        for script in ("sealed", "sealed-one-name"):
            SCRIPTS[script](node.stage, step)
        for path in node.stage.iterdir():
            read_only(path)
        for _ in range(2):
            stager.work()
        assert picture(node.storage) == picture(node.stage)
    assert not sent(node, messages.DrainFailed)
    assert sorted(os.listdir(node.storage)) == ["last", "step-3"]
    assert (node.storage / "last").stat().st_mode & 0o777 == 0o555
    node.close(stager)
    rmtree(str(user / "memory"))
    rmtree(str(user / "storage"))


@pytest.mark.parametrize("script", ["sealed", "sealed-one-name"])
def test_read_only_directories_of_an_earlier_launch(user, script):
    """An earlier launch has saved on storage. What is restored is replaced there, or deleted."""
    node = Node(user)
    SCRIPTS[script](node.storage, 1)
    (path,) = node.storage.iterdir()
    read_only(path)
    stager = node.stager()
    assert stager.restore(messages.Restore(1)).path == str(path)
    rmtree(str(node.stage / path.name))
    SCRIPTS[script](node.stage, 2)
    for _ in range(2):
        stager.work()
    assert not sent(node, messages.DrainFailed)
    assert picture(node.storage) == picture(node.stage)
    node.close(stager)
    rmtree(str(user / "storage"))


def test_read_only_directories_make_room_in_memory(user, monkeypatch):
    monkeypatch.setattr(saving_scripts, "rotate", lambda *_: None)  # the script keeps all
    node = Node(user)
    stager = node.stager()
    for step in (1, 2):
        SCRIPTS["sealed"](node.stage, step)
        read_only(node.stage / f"step-{step}")
        stager.work()
    monkeypatch.setattr(stager.memory, "lack", lambda *_: ("no room", ""))
    stager.work()
    assert os.listdir(node.stage) == ["step-2"]
    assert sorted(os.listdir(node.storage)) == ["step-1", "step-2"]
    node.close(stager)
    rmtree(str(user / "memory"))
    rmtree(str(user / "storage"))


def test_an_unreadable_file_beside_a_checkpoint(user):
    """Another user may have made it, or somebody has made it unreadable by mistake."""
    node = Node(user)
    write(node.storage / "step-1.pt", 1)
    for name, root in (("theirs", node.storage), ("own", node.stage)):
        (root / name).write_text("a line")
        (root / name).chmod(0)
    stager = node.stager()
    assert stager.restore(messages.Restore(1)).path == str(node.storage / "step-1.pt")
    write(node.stage / "step-2.pt", 2)
    stager.work()
    assert len(sent(node, messages.Drained)) == 1
    assert not sent(node, messages.DrainFailed)
    flushed = stager.flush(1)
    assert (flushed.missing, flushed.checkpoint) == ((str(node.storage / "own"),), "")
    node.close(stager)


def test_one_in_the_root_stays_until_the_next_is_on_the_disk(node, stager, monkeypatch):
    SCRIPTS["sealed-root"](node.stage, 1)
    stager.work()
    SCRIPTS["sealed-root"](node.stage, 2)
    operations, unlinked, synced = [], os.unlink, publishing.sync
    monkeypatch.setattr(publishing, "sync", lambda p: operations.append(p) or synced(p))
    monkeypatch.setattr(os, "unlink", lambda p, **k: operations.append(p) or unlinked(p, **k))
    stager.work()
    before = operations[: operations.index(str(node.storage / ".complete"))]
    assert before[-2:] == [str(node.storage / f"{publishing.NEWEST}ckpt"), str(node.storage)]


def test_a_damaged_copy_for_the_root_is_replaced(node, stager):
    """A user has deleted a file in what a killed stager has left."""
    left = node.storage / f"{publishing.NEWEST}ckpt"
    left.mkdir()
    (left / "half").touch()
    SCRIPTS["sealed-root"](node.stage, 1)
    stager.work()
    assert not sent(node, messages.DrainFailed)
    assert picture(node.storage) == picture(node.stage)


def test_at_the_end_older_checkpoints_are_last(node, stager, monkeypatch):
    for step in (1, 2):
        write(node.stage / f"step-{step}.pt", step)
    (node.stage / "step-1").symlink_to("step-1.pt")
    (node.stage / "log").write_text("a log")
    placed, order = publishing.place, []
    for module in (publishing, other_files):
        monkeypatch.setattr(
            module, "place", lambda *a: order.append(os.path.basename(a[1])) or placed(*a)
        )
    assert stager.flush(1).missing == ()
    assert list(dict.fromkeys(order)) == ["step-2.pt", "log", "step-1.pt", "step-1"]


def test_a_file_that_cannot_be_written_at_the_end_is_named(node, stager):
    write(node.stage / "step-1.pt", 1)
    (node.stage / "logs").mkdir()
    (node.stage / "logs" / "log").write_text("a log")
    (node.storage / "logs").touch()
    flushed = stager.flush(1)
    assert flushed.missing == (str(node.storage / "logs" / "log"),)
    assert flushed.why == os.strerror(errno.EEXIST)
    assert flushed.checkpoint == ""
    assert "step-1.pt" in names(node.storage)


def test_a_full_memory_does_not_end_it(node, stager, monkeypatch):
    """The record cannot be written, but the checkpoint reaches storage."""
    write(node.stage / "step-1.pt", 1)
    full = fail(errno.ENOSPC)
    monkeypatch.setattr(
        "hpclaunch.system.staging.record.open", lambda *_, **__: full(), raising=False
    )
    stager.work()
    assert names(node.storage) == ["step-1.pt"]
    assert not (node.stage.parent / RECORD).exists()


# Restoring


def flip_a_bit(data):
    data[20_000] ^= 1
    return data


def test_a_damaged_checkpoint_is_skipped_with_the_reason(node, stager):
    write(node.storage / "step-1.pt", 1)
    write(node.storage / "step-2.pt", 2)
    damage(node.storage / "step-2.pt", flip_a_bit)
    write(node.storage / "step-3.pt", 3)
    damage(node.storage / "step-3.pt", cut_short)
    restored = stager.restore(messages.Restore(4))
    assert (restored.id, restored.path) == (4, str(node.storage / "step-1.pt"))
    half, damaged = restored.skipped
    assert half.startswith("step-3.pt: cut short")
    assert "wrong checksum" in damaged
    assert names(node.stage) == ["step-1.pt"]


def test_one_that_somebody_deletes_meanwhile_is_skipped(node, stager, monkeypatch):
    for step in (1, 2):
        write(node.storage / f"step-{step}.pt", step)
    contents_of = restoring_module.contents_of

    def late(root, found):
        (node.storage / "step-2.pt").unlink(missing_ok=True)
        return contents_of(root, found)

    monkeypatch.setattr(restoring_module, "contents_of", late)
    restored = stager.restore(messages.Restore(4))
    assert (restored.path, restored.skipped) == (str(node.storage / "step-1.pt"), ())


def test_where_only_damaged_ones_are_the_script_keeps_to_storage(node, stager):
    write(node.storage / "step-3.pt", 3)
    damage(node.storage / "step-3.pt", cut_short)
    refused = stager.restore(messages.Restore(1))
    assert isinstance(refused, messages.Refused)
    assert refused.why.startswith(f"nothing in {node.storage} can be used: step-3.pt: cut short")
    write(node.stage / "step-4.pt", 4)
    stager.work()
    assert stager.restore(messages.Restore(2, (str(node.storage / "step-4.pt"),))).path == ""


def test_those_to_avoid_are_left_out(node, stager):
    for step in (1, 2, 3):
        write(node.storage / f"step-{step}.pt", step)
    avoid = [str(node.storage / "step-4.pt")]  # only in memory
    for step in (3, 2, 1):
        path = stager.restore(messages.Restore(step, tuple(avoid))).path
        assert path == str(node.storage / f"step-{step}.pt")
        avoid.append(path)
    assert stager.restore(messages.Restore(4, tuple(avoid))).path == ""
    assert names(node.stage) == ["step-1.pt", "step-2.pt", "step-3.pt"]


def save_with_best(root, epoch, best="model_best.pt"):
    """Save to a fixed name, and then a copy with another name; the script resumes from the first
    only.
    """
    write(root / "checkpoint.pt", epoch, epoch=epoch)
    write(root / best, epoch)
    date(root / "checkpoint.pt", 1000 + epoch)
    date(root / best, 1000.5 + epoch)


@pytest.mark.parametrize("best", ["model_best.pt", "checkpoint0020.pt"])
def test_a_script_finds_a_checkpoint_by_its_fixed_name(node, stager, best):
    save_with_best(node.storage, 20, best)
    for epoch in (9, 10):
        write(node.storage / f"checkpoint00{epoch:02}.pt", epoch)  # with steps in their names
        write(node.storage / f"model_{epoch}.pt", epoch)  # a step, but no word says so
        date(node.storage / f"checkpoint00{epoch:02}.pt", epoch)
        date(node.storage / f"model_{epoch}.pt", epoch)
    expected = picture(node.storage)
    restored = stager.restore(messages.Restore(1))
    assert restored.path == str(node.storage / best)
    by_name = {str(node.storage / name) for name in ("checkpoint.pt", "model_10.pt")}
    assert set(restored.by_name) == by_name
    assert names(node.stage) == sorted((best, "checkpoint.pt", "model_10.pt"))
    assert picture(node.stage).items() <= expected.items()
    stager.work()
    assert not sent(node, messages.Drained)  # they are there already
    save_with_best(node.stage, 21, best)
    (node.stage / "model_10.pt").unlink()
    stager.work()
    stager.work()
    stager.flush(2)
    assert picture(node.stage).items() <= picture(node.storage).items()
    assert names(node.storage) == sorted(expected.keys() - {"model_10.pt"})


def test_checkpoints_with_steps_are_not_opened_for_that(node, stager, monkeypatch):
    for step in range(5):
        write(node.storage / f"step-{step}.pt", step)
    write(node.storage / "last.pt", 3)
    date(node.storage / "last.pt", 1000)
    opened, judged = [], finding._judged
    monkeypatch.setattr(
        finding, "_judged", lambda c, *more, **kw: opened.append(c.path) or judged(c, *more, **kw)
    )
    assert stager.restore(messages.Restore(1)).by_name == (str(node.storage / "last.pt"),)
    there = {path for path in opened if path.startswith(str(node.storage))}
    assert there == {str(node.storage / name) for name in ("step-4.pt", "last.pt")}


def test_those_without_room_are_left_out(node, stager, monkeypatch):
    save_with_best(node.storage, 1)
    limit(monkeypatch, 2.5 * SIZE)  # less than the next save needs beside both
    restored = stager.restore(messages.Restore(1))
    assert (restored.path, restored.by_name) == (str(node.storage / "model_best.pt"), ())
    assert names(node.stage) == ["model_best.pt"]


def test_a_damaged_one_is_left_out(node, stager):
    save_with_best(node.storage, 1)
    damage(node.storage / "checkpoint.pt", flip_a_bit)
    date(node.storage / "checkpoint.pt", 1000)
    restored = stager.restore(messages.Restore(1))
    assert (restored.path, restored.by_name) == (str(node.storage / "model_best.pt"), ())
    assert names(node.stage) == ["model_best.pt"]


def test_one_that_a_kill_has_cut_short_is_restored_although_another_is_complete(node, stager):
    save_with_best(node.stage, 1)
    stager.work()
    stager.work()
    assert names(node.storage) == ["checkpoint.pt", "model_best.pt"]
    damage(node.stage / "checkpoint.pt", cut_short)
    restored = stager.restore(messages.Restore(2))
    assert restored.path == str(node.storage / "model_best.pt")
    assert restored.by_name == (str(node.storage / "checkpoint.pt"),)
    assert picture(node.stage) == picture(node.storage)


@pytest.mark.parametrize("is_there", [True, False])
def test_storage_without_a_checkpoint(node, stager, is_there):
    if not is_there:
        node.storage.rmdir()
    assert stager.restore(messages.Restore(1)).path == ""
    write(node.stage / "step-1.pt", 1)
    stager.work()
    assert names(node.storage) == ["step-1.pt"]


def test_a_log_is_continued_and_one_that_is_too_large_is_kept(node, stager, monkeypatch):
    monkeypatch.setattr(other_files, "RESTORED", 100)
    (node.storage / "large.log").write_text("a long log\n" * 500)
    (node.storage / "log").write_text("step 1\n")
    write(node.storage / "step-1.pt", 1)
    stager.restore(messages.Restore(1))
    assert names(node.stage) == ["log", "step-1.pt"]
    for name in ("log", "large.log"):
        with (node.stage / name).open("a") as file:
            file.write("step 2\n")
    stager.restore(messages.Restore(2))  # as after a failure
    for number in (1, 2):
        assert stager.flush(number).missing == ()
    assert (node.storage / "log").read_text() == "step 1\nstep 2\n"
    assert (node.storage / "large.log").read_text() == "step 2\n"
    assert (node.storage / "large.log.~1~").read_text().startswith("a long log")
    assert names(node.storage) == ["large.log", "large.log.~1~", "log", "step-1.pt"]


def test_a_new_log_does_not_replace_one_that_was_not_restored(node, stager, monkeypatch):
    monkeypatch.setattr(other_files, "RESTORED", 100)
    (node.storage / "large.log").write_text("a long log\n" * 500)
    stager.restore(messages.Restore(1))
    (node.stage / "large.log").write_text("step 1\n")
    write(node.stage / "step-1.pt", 1)
    stager.work()
    assert (node.storage / "large.log").read_text() == "step 1\n"
    assert (node.storage / "large.log.~1~").read_text().startswith("a long log")


@pytest.mark.parametrize("size", [1, 10_000])  # bytes; restored beside the checkpoint, or alone
def test_what_others_change_on_storage_stays_as_long_as_the_script_does_not(node, stager, size):
    write(node.storage / "step-1.pt", 1)
    (node.storage / "runs.csv").write_text("1" * size)
    stager.restore(messages.Restore(1))
    others = []
    for text, number in (("2", 2), ("3", 3)):
        with (node.storage / "runs.csv").open("a") as file:
            file.write(text)
        changed = (node.storage / "runs.csv").read_text()
        write(node.stage / f"step-{number}.pt", number)
        stager.work()
        assert (node.storage / "runs.csv").read_text() == changed
        others.append(stager := node.stager())  # the one before was killed
    assert stager.flush(1).missing == ()
    assert (node.storage / "runs.csv").read_text() == changed
    with (node.stage / "runs.csv").open("a") as file:
        file.write("by the script")
    assert stager.flush(2).missing == ()
    assert (node.storage / "runs.csv").read_text().endswith("by the script")
    for each in others:
        close(each)


def test_what_others_have_written_later_is_not_replaced(node, stager):
    """A head that is cut off flushes its old files after the job has continued without it."""
    write(node.stage / "step-1.pt", 1)
    (node.stage / "log").write_text("step 1")
    stager.work()
    assert (node.storage / "log").read_text() == "step 1"
    with (node.stage / "log").open("a") as file:
        file.write(", cut off")
    (node.storage / "log").write_text("step 1, step 2")
    later = time.time_ns() + SECOND
    os.utime(node.storage / "log", ns=(later, later))
    assert stager.flush(1).missing == ()
    assert (node.storage / "log").read_text() == "step 1, step 2"


def test_the_next_stager_may_restore_the_same_in_little_memory(node, stager, monkeypatch):
    """The first one was killed before it could answer."""
    write(node.storage / "step-1.pt", 1)
    limit(monkeypatch, 3 * SIZE)
    for _ in range(2):
        assert isinstance(stager.restore(messages.Restore(1)), messages.Restored)


def test_what_a_kill_has_torn_is_restored_from_storage(node, stager, monkeypatch):
    write(node.stage / "snapshot.pt", 1)
    stager.work()
    damage(node.stage / "snapshot.pt", cut_short)
    stager.work()
    limit(monkeypatch, 2 * SIZE)
    assert stager.restore(messages.Restore(2)).path == str(node.storage / "snapshot.pt")
    assert picture(node.stage) == picture(node.storage)


def test_restoring_never_replaces_or_deletes_what_the_script_has_saved(node, stager, monkeypatch):
    write(node.storage / "snapshot.pt", 1)
    date(node.storage / "snapshot.pt", 1000)  # both may be written in one tick of the clock
    write(node.stage / "snapshot.pt", 2)
    expected = picture(node.stage)
    stager.restore(messages.Restore(1))
    assert picture(node.stage) == expected
    stager.work()
    assert picture(node.storage) == expected
    damage(node.stage / "snapshot.pt", cut_short)
    expected = picture(node.stage)
    monkeypatch.setattr(copying, "_copy_span", fail(errno.EIO))
    restored = stager.restore(messages.Restore(2))
    assert (restored.path, len(restored.skipped)) == ("", 1)
    assert picture(node.stage) == expected


# Room


def limit(monkeypatch, free):
    """Have a file system in memory with so many bytes for the script."""
    left = room.Room(free, 1 << 40, "the memory of this node")

    def used(directory):
        size = sum(p.lstat().st_size for p in node_files(directory))
        return left._replace(free=free - size)

    for module in (memory, restoring_module):
        monkeypatch.setattr(module, "room", used)


def node_files(directory):
    for base, _, found in os.walk(directory):
        for name in found:
            yield Path(base) / name


SIZE = 161_500  # about that of a file by `write`


def test_too_large_a_checkpoint_is_refused_with_figures(node, stager, monkeypatch):
    write(node.storage / "step-1.pt", 1)
    limit(monkeypatch, 2 * SIZE)
    refused = stager.restore(messages.Restore(1))
    assert isinstance(refused, messages.Refused)
    assert "2 checkpoints of 158 KiB and a reserve need" in refused.why
    assert names(node.stage) == []


def test_a_first_save_that_leaves_no_room_for_the_next(node, stager, monkeypatch):
    limit(monkeypatch, 2 * SIZE)
    assert isinstance(stager.restore(messages.Restore(1)), messages.Refused | messages.Restored)
    write(node.stage / "step-1.pt", 1)
    stager.work()
    (no_room,) = sent(node, messages.NoRoom)
    assert "another checkpoint of 158 KiB" in no_room.why
    assert names(node.storage) == ["step-1.pt"]  # it is there before the launcher hears of it
    stager.work()
    assert len(sent(node, messages.NoRoom)) == 1


def test_a_script_that_keeps_everything_does_not_fill_the_memory(node, stager, monkeypatch):
    limit(monkeypatch, 4 * SIZE)
    for step in range(1, 9):
        before = os.stat(node.stage).st_mtime_ns
        write(node.stage / f"step-{step}.pt", step)
        for _ in range(2):
            stager.work()
        assert os.stat(node.stage).st_mtime_ns >= before
    assert names(node.stage) == ["step-7.pt", "step-8.pt"]
    assert len(names(node.storage)) == 8
    assert not sent(node, messages.NoRoom)


def test_checkpoints_that_storage_has_not_got_make_no_room(node, stager, monkeypatch):
    stager.requests.is_hurried = False
    limit(monkeypatch, 3 * SIZE)
    with monkeypatch.context() as failing:
        failing.setattr(copying, "_copy_span", fail(errno.EIO))
        write(node.stage / "step-1.pt", 1)
        stager.work()
        assert stager.draining.has_pauses
        write(node.stage / "step-2.pt", 2)
        stager.work()
    assert not stager.draining.has_pauses
    assert names(node.stage) == ["step-1.pt", "step-2.pt"]
    stager.draining.failed = stager.draining.failed[0], 0.0
    stager.work()
    (no_room,) = sent(node, messages.NoRoom)
    assert "another checkpoint of 158 KiB" in no_room.why
    assert names(node.storage) == ["step-2.pt"]  # the newest is there before the launcher hears


def test_a_deleted_checkpoint_whose_memory_is_needed_is_given_up(node, stager, monkeypatch):
    write(node.stage / "step-1.pt", 1)
    limit(monkeypatch, 4 * SIZE)

    def delete():
        (node.stage / "step-1.pt").unlink()
        stager.looking.due = 0.0
        limit(monkeypatch, SIZE // 2)

    monkeypatch.setattr(copying, "SPAN", 50_000)
    monkeypatch.setattr(draining, "THREADS", 1)
    stager.looking.due = float("inf")
    interrupt(monkeypatch, delete)
    stager.work()
    assert os.listdir(node.storage) == []
    assert not stager.draining.has_pauses


def test_one_that_is_deleted_once_all_of_it_is_copied_reaches_storage(node, stager, monkeypatch):
    """Only its last file has to be written to the disk, which may take long."""
    write(node.stage / "step-1.pt", 1)
    finish, todo = copying._finish, [True]

    def finish_late(path, each):
        if todo:
            todo.clear()
            (node.stage / "step-1.pt").unlink()
            stager.looking.due = 0.0
            while not stager.looking.due:
                time.sleep(0.01)
            time.sleep(0.2)  # until that look has ended
        finish(path, each)

    monkeypatch.setattr(copying, "_finish", finish_late)
    monkeypatch.setattr(stager.memory, "lack", lambda *_: ("no room", ""))
    stager.work()
    assert os.listdir(node.storage) == ["step-1.pt"]


def test_a_flush_makes_a_running_drain_urgent(node):
    stager = node.stager()
    stager.requests.is_hurried = False
    assert stager.draining.has_pauses
    stager.requests.take(messages.Flush(1))
    assert not stager.draining.has_pauses
    node.close(stager)


def test_without_an_exchange_the_older_one_stays_visible(node, stager, monkeypatch):
    SCRIPTS["sealed-one-name"](node.stage, 1)
    stager.work()
    SCRIPTS["sealed-one-name"](node.stage, 2)
    seen, renamed = [], os.rename

    def rename(*args):
        renamed(*args)
        seen.append(newest(node.storage)[0])

    monkeypatch.setattr(publishing, "_rename_exchange", fail(errno.EINVAL))
    monkeypatch.setattr(os, "rename", rename)
    stager.work()
    assert all(seen)
    assert picture(node.storage) == picture(node.stage)


def test_making_room_spares_what_was_saved_again_during_the_drain(node, stager, monkeypatch):
    write(node.stage / "best.pt", 1)
    stager.work()
    publish = draining.publish

    def save_again(*args, **more):
        publish(*args, **more)
        write(node.stage / "best.pt", 3)

    monkeypatch.setattr(draining, "publish", save_again)
    monkeypatch.setattr(stager.memory, "lack", lambda *_: ("no room", ""))
    write(node.stage / "last.pt", 2)
    stager.work()
    assert names(node.stage) == ["best.pt", "last.pt"]
