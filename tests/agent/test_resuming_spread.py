"""The search for checkpoints that are in the memory of several nodes."""

from __future__ import annotations

import os
import pickle
import zipfile
from types import SimpleNamespace

import pytest
from polling import receive

from hpclaunch.agent.config import Checkpoints
from hpclaunch.agent.resuming import SETTLED, Resuming
from hpclaunch.agent.stage_waits import Copies
from hpclaunch.agent.staged_paths import StagedPaths
from hpclaunch.core.protocol import events
from hpclaunch.core.protocol.crc import checksum
from hpclaunch.core.protocol.effects import ChooseCheckpoint
from hpclaunch.core.protocol.facts import CheckpointSaved
from hpclaunch.core.protocol.model import Assignment, Job, Look, Place
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.checkpoints.messages import FoundCheckpoint
from hpclaunch.system.staging.messages import Searched

pytestmark = pytest.mark.starts

PLACES = (Place(0, 0, "n0"), Place(1, 1, "n1"))
PART = Assignment(0, 0, 0, 1, 2, 0, 1, 0, 2, "1(x2)", "", "", 0, False, "", stages=True)


def write(path):
    """Save what torch.save writes for a dict with one number."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": 1}, protocol=2))
        archive.writestr("archive/version", "3\n")


class Staging:
    """An adapter of a stager. `asked` has the requests; a restore gets `restored` into memory."""

    def __init__(self, paths):
        self.paths, self.asked, self.skipped, self.copies = paths, [], (), Copies()
        self.restored, self.saves_directly = [], False
        self.is_late, self.waits = False, None  # a search that waits for the restore

    @property
    def spread(self):
        return None if self.paths is None else self

    def before_search(self, search, effect):
        self.asked.append(("restore", (), effect.agents))
        self.waits = search if self.is_late else None
        return [] if self.is_late else search()

    def forget_search(self):
        self.waits = None

    def restore(self, avoid, search):
        if not self.restored:
            return False
        self.asked.append(("restore", avoid))
        write(self.restored.pop())
        self.result = search()
        return True

    def search(self, number, on_searched):
        self.asked.append(("search", number))
        self.on_searched = on_searched

    def note_rounds(self, rounds, *, hurry):
        self.rounds = rounds

    def note_round(self, *, stages):
        if not stages:
            self.paths = None


@pytest.fixture
def staging(tmp_path):
    for name in ("storage", "stage"):
        (tmp_path / name).mkdir()
    return Staging(StagedPaths(str(tmp_path / "storage"), str(tmp_path / "stage")))


@pytest.fixture
def recorded():
    return []


@pytest.fixture
def resuming(tmp_path, staging, recorded):
    settings = Checkpoints(str(tmp_path / "storage"), (), "", "auto", str(tmp_path))
    config = SimpleNamespace(checkpoints=settings, command=(), job=Job(PLACES, stages=True))
    logs = SimpleNamespace(is_replaced=lambda _: True)
    context = SimpleNamespace(config=config, logs=logs, record=recorded.append, host="n0")
    resuming = Resuming(context, lambda _: None, staging)
    yield resuming
    resuming.close()


def choose(resuming, *avoid, agents=(0, 1)):
    resuming.choose(ChooseCheckpoint(avoid, number=7, agents=agents, stages=True))
    found = []
    while not found:
        found = receive(resuming)
    return found[0]


def found(path, step=2):
    """Return what the stager has found."""
    words = ("torch.save", step, "step-{}.pt", "by its name", f"{path} 1", 10**9, 5, 0.0)
    return FoundCheckpoint(str(path), path.name, *words, True, None, False)


def test_before_a_round_the_search_is_in_this_nodes_memory(resuming, staging, tmp_path):
    write(tmp_path / "stage" / "step-2.pt")
    chosen = choose(resuming)
    assert (chosen.path, chosen.staged) == (str(tmp_path / "storage" / "step-2.pt"), True)
    assert staging.asked == [("restore", (), (0, 1))]


def test_one_to_avoid_has_others_restored_although_there_is_an_older_one(
    resuming, staging, tmp_path
):
    """Only this node may have the older one."""
    for step in (1, 3):
        write(tmp_path / "stage" / f"step-{step}.pt")
    mark = checksum(choose(resuming).mark)
    staging.restored = [tmp_path / "stage" / "step-2.pt"]
    chosen = choose(resuming, (mark, "failed twice"))
    assert chosen.path == str(tmp_path / "storage" / "step-2.pt")
    assert staging.asked[-1] == ("restore", (str(tmp_path / "storage" / "step-3.pt"),))


def test_if_the_process_ends_during_a_restore_the_search_still_waits_for_it(
    resuming, staging, tmp_path
):
    """Else an older checkpoint would be chosen."""
    for step in (1, 3):
        write(tmp_path / "stage" / f"step-{step}.pt")
    mark = checksum(choose(resuming).mark)
    searches = []
    staging.restore = lambda _, search: not searches.append(search)
    resuming.choose(ChooseCheckpoint(((mark, "failed twice"),), number=8, agents=(0, 1)))
    while not searches:
        assert receive(resuming) == []
    resuming._service._process.kill()
    service = resuming._service
    while resuming._service is service:
        assert receive(resuming) == []
    assert resuming._search_number == 0


def test_between_two_rounds_the_stager_searches(resuming, staging, tmp_path):
    path = tmp_path / "storage" / "step-2.pt"
    resuming.began(PART)
    effect = ChooseCheckpoint(number=7, is_last=True, ended_well=True)
    assert resuming.choose(effect) == []
    ((_, number),) = staging.asked
    assert staging.rounds[-1][1] == SETTLED
    assert staging.on_searched(Searched(number - 1, ())) == []
    (chosen,) = staging.on_searched(Searched(number, (found(path),)))
    assert (chosen.path, chosen.number, chosen.step) == (str(path), 7, 2)
    assert staging.on_searched(Searched(number, ())) == []


def test_a_question_that_comes_during_a_restore_is_answered(resuming, staging, tmp_path):
    """A job that ends needs no checkpoint for another round, but the last one that was saved."""
    path = tmp_path / "storage" / "step-2.pt"
    staging.is_late = True
    resuming.choose(ChooseCheckpoint(number=4, agents=(0, 1), stages=True))
    resuming.choose(ChooseCheckpoint(number=5, is_last=True))
    (_, number) = staging.asked[-1]
    assert staging.waits is None
    (chosen,) = staging.on_searched(Searched(number, (found(path),)))
    assert chosen.number == 5


def test_an_agent_whose_search_still_waits_reads_no_saves_of_another_leaders_round(
    resuming, staging
):
    resuming._settings = replace(resuming._settings, verify="full")
    staging.is_late = True
    resuming.choose(ChooseCheckpoint(number=4, agents=(0, 1), stages=True))
    resuming.began(PART)
    assert not resuming._watches
    resuming.choose(ChooseCheckpoint(number=5, agents=(0, 1), stages=True))
    staging.waits()
    resuming.began(PART)
    assert resuming._watches


def test_the_newest_for_the_status_is_the_stagers(resuming, staging, recorded, tmp_path):
    path = tmp_path / "storage" / "step-2.pt"
    resuming.seek_newest()
    assert resuming.seeks_newest
    ((_, number),) = staging.asked
    assert staging.on_searched(Searched(number, (found(path),))) == []
    assert not resuming.seeks_newest
    assert staging.copies.given_up("", "").checkpoint == str(path)
    assert [type(fact) for fact in recorded] == [CheckpointSaved]


def test_the_newest_is_recorded_once_although_it_is_found_in_memory_and_by_the_stager(
    resuming, staging, recorded, tmp_path
):
    """Another record would mean that the script has saved under its name again."""
    path = tmp_path / "storage" / "step-2.pt"
    write(tmp_path / "stage" / "step-2.pt")
    os.utime(tmp_path / "stage" / "step-2.pt", ns=(10**9, 10**9))
    choose(resuming)
    again = found(path)
    for each in (again, again.replaced(lacks="cut short")):
        resuming._newest_at = 0.0
        resuming.seek_newest()
        staging.on_searched(Searched(resuming._number, (each,)))
    assert [type(fact) for fact in recorded] == [CheckpointSaved]


def test_a_look_at_the_status_does_not_replace_the_search_at_the_end_of_the_job(resuming, staging):
    resuming.choose(ChooseCheckpoint(number=7, is_last=True))
    resuming.seek_newest()
    assert len(staging.asked) == 1
    resuming.began(PART)
    resuming.seek_newest()
    assert len(staging.asked) == 2


def test_a_search_that_has_failed_is_no_sign_of_a_lost_checkpoint(
    resuming, staging, recorded, tmp_path
):
    resuming.seek_newest()
    staging.on_searched(Searched(1, (found(tmp_path / "storage" / "step-2.pt"),)))
    resuming._newest_at = 0.0
    resuming.seek_newest()
    assert staging.on_searched(Searched(2, (), "n1: no answer")) == []
    assert [type(fact) for fact in recorded] == [CheckpointSaved]
    resuming.choose(ChooseCheckpoint(number=7, is_last=True))
    (failed,) = staging.on_searched(Searched(3, (), "n1: no answer"))
    assert isinstance(failed, events.SearchFailed)
    assert failed.number == 7
    assert failed.trouble.reason.endswith(": n1: no answer")
    assert [type(fact) for fact in recorded] == [CheckpointSaved]


def test_each_agent_looks_at_its_own_copy(resuming, tmp_path):
    path = tmp_path / "stage" / "step-2.pt"
    write(path)
    stored, info = tmp_path / "storage" / "step-2.pt", path.stat()
    look = Look(1, str(stored), "mark", info.st_size, info.st_mtime_ns, staged=True)
    assert see(resuming, look).missing == ""
    assert "there is another one" in see(resuming, replace(look, number=2, size=1)).missing


@pytest.mark.parametrize("verify", ["auto", "full"])
def test_bytes_in_memory_are_only_read_on_request(resuming, tmp_path, verify):
    """A crash of the machine, which may damage them on storage, leaves nothing in memory."""
    resuming._settings = replace(resuming._settings, verify=verify)
    path = tmp_path / "stage" / "step-2.pt"
    write(path)
    path.write_bytes(path.read_bytes().replace(b"3\n", b"4\n"))
    info, stored = path.stat(), tmp_path / "storage" / "step-2.pt"
    look = Look(1, str(stored), "mark", info.st_size, info.st_mtime_ns, (0, 1), staged=True)
    assert bool(see(resuming, look).damage) == (verify == "full")


def test_and_leaves_memory_if_the_head_has_chosen_on_storage(resuming, staging, tmp_path):
    path = tmp_path / "storage" / "step-2.pt"
    write(path)
    info = path.stat()
    look = Look(1, str(path), "mark", info.st_size, info.st_mtime_ns)
    assert see(resuming, look).missing == ""
    assert staging.paths is None
    assert see(resuming, replace(look, number=2, staged=True)).missing


def see(resuming, look):
    seen = resuming.look(look)
    while not seen:
        seen = receive(resuming)
    (event,) = seen
    assert isinstance(event, events.CheckpointSeen)
    return event.seen
