"""The process that looks for checkpoints: asked, interrupted, killed, and reading ahead."""

import errno
import gc
import math
import os
import resource
import select
import signal
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
from looking import cut_short, damage, date, zero_the_middle
from test_damage import PICKLES, legacy
from test_format_dcp import dcp_save
from test_format_torch_save import save

from clocks import AheadClock
from helper_programs import program_after
from hpclaunch.core.protocol.crc import checksum
from hpclaunch.core.protocol.model import Look
from hpclaunch.system.checkpoints import finding, reading
from hpclaunch.system.checkpoints import service as service_module
from hpclaunch.system.checkpoints.client import CheckpointServiceClient
from hpclaunch.system.checkpoints.messages import Begun, Failed, Looked, Search, Searched, Watch
from hpclaunch.system.checkpoints.reading import CheckpointReading, ResultCache
from hpclaunch.system.checkpoints.service import CheckpointService
from hpclaunch.system.shared import helper

PATIENT = "from hpclaunch.system.checkpoints import service; service.AHEAD = 1000.0"


@pytest.fixture(autouse=True)
def _there_is_time(monkeypatch):
    """Let there be time to read every checkpoint, however busy the machine is."""
    monkeypatch.setattr(service_module, "AHEAD", 1000.0)
    monkeypatch.setattr(helper, "_PROGRAM", program_after(PATIENT))


@pytest.fixture
def service(starts, tmp_path):
    made = CheckpointServiceClient(str(tmp_path), (), "", "auto")
    yield made
    made.close()


def reply(service):
    """Return the next message other than `Begun`."""
    while True:
        for answer in service.replies():
            if not isinstance(answer, Begun):
                return answer
        assert not service.lost


def test_a_search(service, tmp_path):
    new = save(tmp_path / "epoch-2.pt", at=200)
    save(tmp_path / "epoch-1.pt", at=100)
    damage(save(tmp_path / "epoch-3.pt", at=300), cut_short)
    service.search(7, [], {})
    answer = reply(service)
    assert isinstance(answer, Searched)
    assert answer.id == 7
    torn, chosen = answer.found
    assert (chosen.path, chosen.lacks, chosen.step) == (str(new), None, 2)
    assert torn.lacks == "cut short or still being written"
    assert answer.disk.writable


def test_two_saves_under_one_name_differ(service, tmp_path):
    identities = []
    for at in (100, 200):
        save(tmp_path / "snapshot.pt", at=at)
        service.search(at, [], {})
        identities.append(reply(service).found[0].identity)
    service.search(300, [], {})
    identities.append(reply(service).found[0].identity)
    first, second, again = identities
    assert first != second == again


def test_what_is_verified_is_found_damaged_from_then_on(service, tmp_path):
    good = save(tmp_path / "epoch-1.pt", at=100)
    bad = damage_in_the_middle(save(tmp_path / "epoch-2.pt", at=200))
    service.search(1, [], {})
    found = reply(service).found[-1]
    assert (found.path, found.is_read) == (str(bad), False)  # by its structure
    answer = seen(service, a_look(found, share=(0, 1)))
    assert "wrong checksum" in answer.damage
    service.search(2, [], {})
    passed, chosen = reply(service).found
    assert chosen.path == str(good)
    assert "wrong checksum" in passed.lacks


def test_what_is_written_again_while_it_is_read_is_not_damaged_for_good(tmp_path):
    """A slow rank may have a part in the place already that it now writes."""
    directory = dcp_save(tmp_path / "step-1", at=100)
    server = CheckpointService(str(tmp_path), (), "", "full")
    (found,) = server.search([])
    assert found.lacks is None
    os.utime(directory / "__0_0.distcp", (101, 101))
    assert "being written again" in server.read(found).wrong
    (found,) = server.search([])
    assert found.lacks is None
    assert server.read(found).wrong == ""


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_an_error_of_the_file_system_is_not_remembered_as_damage(tmp_path, monkeypatch, error):
    save(tmp_path / "epoch-1.pt", at=100)
    server = CheckpointService(str(tmp_path), (), "", "full")
    (found,) = server.search([])

    def fail(*_):
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", fail)
        assert os.strerror(error) in server.read(found).wrong
    (found,) = server.search([])
    assert found.lacks is None
    assert server.read(found) == ("", True, True)


def test_a_checkpoint_that_could_not_be_read_is_not_accepted_the_next_time(tmp_path, monkeypatch):
    """The time of the failed reading does not count: there is as much for the next one."""
    save(tmp_path / "epoch-1.pt", at=100)
    server = CheckpointService(str(tmp_path), (), "", "auto")
    (found,) = server.search([])
    clock = AheadClock()

    def fail(*_):
        clock.ahead += 2 * service_module.AHEAD
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for module in (service_module, reading):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(os, "pread", fail)
    for _ in range(2):
        assert os.strerror(errno.EIO) in server.read(found).wrong


def a_look(found, **changes):
    of = {"path": found.path, "mark": found.identity, "size": found.size, "time": found.time}
    return Look(0, **of | changes)


def seen(service, look, **more):
    service.look(5, look, **more)
    answer = reply(service)
    assert isinstance(answer, Looked)
    return answer


def test_what_another_node_has_found(service, tmp_path):
    """The same, or why not."""
    path = save(tmp_path / "epoch-1.pt", at=100)
    service.search(1, [], {})
    (found,) = reply(service).found
    assert seen(service, a_look(found)) == Looked(5, "", "")
    assert seen(service, a_look(found, share=(0, 2))) == Looked(5, "", "")
    for changes in ({"size": found.size + 1}, {"time": found.time + 2 * 10**9}):
        assert "another one of that name" in seen(service, a_look(found, **changes)).missing
        assert seen(service, a_look(found, **changes), local=True).missing == ""
    damage(path, cut_short)
    assert "cut short" in seen(service, a_look(found)).missing
    path.unlink()
    assert seen(service, a_look(found)).missing == "there is no such file"
    assert seen(service, a_look(found), local=True).missing == "there is no such file"


def test_what_is_to_be_avoided(service, tmp_path):
    older = save(tmp_path / "epoch-1.pt", at=100)
    save(tmp_path / "epoch-2.pt", at=200)
    service.search(1, [], {})
    mark = reply(service).found[-1].identity
    service.search(2, [], {checksum(mark): "it is the user's wish"})
    passed, chosen = reply(service).found
    assert (passed.lacks, chosen.path) == ("it is the user's wish", str(older))


def test_what_lies_there_and_is_no_checkpoint(service, tmp_path):
    (tmp_path / "weights.npz").write_bytes(b"?")
    service.search(1, [], {})
    assert reply(service).others == ("weights.npz",)
    save(tmp_path / "epoch-1.pt", at=100)
    service.search(2, [], {})
    assert reply(service).others == ()


def test_what_was_read_is_not_to_be_read_again(service, tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    service.search(1, [], {})
    (found,) = reply(service).found
    assert not found.is_read
    seen(service, a_look(found, share=(0, 1)))
    service.search(2, [], {})
    (found,) = reply(service).found
    assert found.is_read


def damage_in_the_middle(path: Path) -> Path:
    damage(path, zero_the_middle)
    return path


@pytest.mark.starts
def test_a_search_that_fails_says_so(tmp_path):
    (tmp_path / "file").touch()
    service = CheckpointServiceClient(str(tmp_path / "file"), (), "", "auto")
    service.search(1, [], {})
    answer = reply(service)
    assert isinstance(answer, Failed)
    assert "it is not a directory" in answer.why
    service.close()


def replies_to_a_search(where) -> list:
    server = CheckpointService(str(where), (), "", "auto")
    return list(service_module._replies(server, Search(1, (), {}), lambda: False))


def test_a_directory_that_vanishes_after_the_search_does_not_end_the_service(tmp_path, monkeypatch):
    def roots(where):
        raise NotADirectoryError(20, "it is not a directory", where)

    monkeypatch.setattr(service_module, "roots", roots)
    _, failed = replies_to_a_search(tmp_path)
    assert isinstance(failed, Failed)
    assert "it is not a directory" in failed.why


@pytest.mark.parametrize("lasts", [2, 10**9], ids=["for a while", "for good"])
def test_a_search_is_tried_again_while_the_file_system_has_trouble(tmp_path, monkeypatch, lasts):
    save(tmp_path / "epoch-1.pt", at=100)
    clock, tries = AheadClock(), []

    def search_or_fail(*args, **more):
        tries.append(clock.ahead)
        if len(tries) <= lasts:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return finding.search(*args, **more)

    monkeypatch.setattr(service_module, "search", search_or_fail)
    monkeypatch.setattr(service_module, "time", clock)
    _, answer = replies_to_a_search(tmp_path)
    if lasts == 2:
        assert [f.name for f in answer.found] == ["epoch-1.pt"]
    else:
        assert answer == Failed(1, f"[Errno {errno.ESTALE}] {os.strerror(errno.ESTALE)}")
        assert tries[-1] == pytest.approx(service_module.TROUBLED, abs=service_module.AGAIN)


def test_a_pattern_is_matched_once_if_there_is_a_checkpoint(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    save(tmp_path / "b" / "epoch-1.pt", at=100)
    matched, roots = [], finding.roots
    for module in (finding, service_module):
        monkeypatch.setattr(module, "roots", lambda where: matched.append(where) or roots(where))
    _, searched = replies_to_a_search(tmp_path / "*")
    assert matched == [str(tmp_path / "*")]
    assert searched.disk.path == str(tmp_path / "b")


def test_it_ends_with_the_agent(service, tmp_path):
    service.search(1, [], {})
    reply(service)
    pid = service._process.pid
    service._lines.close()
    assert os.waitpid(pid, 0) == (pid, 0)


def test_a_killed_one_is_noticed(service, tmp_path):
    service.search(1, [], {})
    reply(service)
    os.kill(service._process.pid, signal.SIGKILL)
    while not service.lost:
        service.replies()


def test_a_damaged_pickle_that_claims_all_memory_is_passed_over(service, tmp_path):
    (tmp_path / "step-5.pt").write_bytes(legacy(PICKLES["a memo of any size"]))
    service.search(1, [], {})
    (found,) = reply(service).found
    assert found.lacks == "cut short or still being written"


@pytest.fixture
def large_stacks():
    """Let processes that start now give each thread a stack larger than a search may take."""
    before = resource.getrlimit(resource.RLIMIT_STACK)
    if before[1] != resource.RLIM_INFINITY:
        pytest.skip("the limit of stacks cannot be raised so far")
    resource.setrlimit(resource.RLIMIT_STACK, (service_module.MOST_MEMORY + 1, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_STACK, before)


@pytest.mark.usefixtures("large_stacks")
@pytest.mark.starts
def test_threads_start_whatever_the_limit_of_stacks_is(request, tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    service = request.getfixturevalue("service")
    service.search(1, [], {})
    (found,) = reply(service).found
    service.look(2, Look(0, found.path, found.identity, found.size, found.time, (0, 1)))
    assert reply(service) == Looked(2, "", "")


@pytest.fixture
def limits(monkeypatch):
    """Keep this process's limits, and return those that are set, by their numbers."""
    found = {}
    monkeypatch.setattr(resource, "setrlimit", found.__setitem__)
    monkeypatch.setattr(service_module.threading, "stack_size", lambda size: None)
    return found


@pytest.mark.parametrize(
    ("soft", "hard", "most"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, service_module.MOST_MEMORY),
        (1 << 30, resource.RLIM_INFINITY, 1 << 30),
        (1 << 30, 2 << 30, 1 << 30),
        (16 << 30, 32 << 30, service_module.MOST_MEMORY),
    ],
)
def test_a_users_limit_of_memory_is_not_raised(limits, monkeypatch, soft, hard, most):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    service_module._limit_memory()
    assert limits == {resource.RLIMIT_AS: (most, hard)}


A_LOOK = Look(0, path="epoch-1.pt", mark="", size=1, time=1, share=(0, 1))


def test_one_that_does_not_begin_hangs(service):
    os.kill(service._process.pid, signal.SIGSTOP)
    service.search(1, [], {})
    assert time.monotonic() < service.deadline < time.monotonic() + 60
    os.kill(service._process.pid, signal.SIGCONT)
    reply(service)
    assert service.deadline == math.inf


@pytest.fixture
def looking(starts, tmp_path, monkeypatch):
    """Return a function that returns a client whose process has begun a look, and hangs."""
    made = []

    def begin(verify):
        service = CheckpointServiceClient(str(tmp_path), (), "", verify)
        made.append(service)
        os.kill(service._process.pid, signal.SIGSTOP)
        service.look(1, A_LOOK)
        monkeypatch.setattr(service, "receive", lambda: [Begun(1).encoded()])
        service.replies()
        assert service.deadline == math.inf
        return service

    yield begin
    for service in made:
        service.close()


@pytest.mark.parametrize("ask", ["search", "look"])
def test_a_request_that_waits_for_the_end_of_a_look_has_no_deadline(looking, monkeypatch, ask):
    service = looking("full")
    if ask == "look":
        service.look(2, A_LOOK)
    else:
        service.search(2, [], {})
    assert service.deadline == math.inf
    monkeypatch.setattr(service, "receive", lambda: [Looked(1, "", "").encoded()])
    service.replies()
    service.look(3, A_LOOK)
    assert (service.deadline == math.inf) is (ask == "look")  # one is still pending


def test_a_request_that_interrupts_a_look_has_a_deadline(looking):
    service = looking("auto")
    service.look(2, A_LOOK)
    assert service.deadline < math.inf


def test_a_request_after_a_look_that_hangs_has_a_deadline(looking, monkeypatch):
    service = looking("full")
    service.give_time()
    service.search(2, [], {})
    assert service.deadline < math.inf
    monkeypatch.setattr(service, "receive", lambda: [Looked(1, "", "").encoded()])
    service.replies()
    service.search(3, [], {})
    assert service.deadline < math.inf


class CountingCache(ResultCache):
    """A cache that counts the files that are examined."""

    def __init__(self) -> None:
        super().__init__()
        self.built = 0

    def build(self, part) -> None:
        self.built += 1
        super().build(part)


def test_nothing_is_looked_at_twice(tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    server = CheckpointService(str(tmp_path), (), "", "full")
    server.cache = CountingCache()
    (found,) = server.search([])
    assert server.read(found)[0] == ""
    assert server.cache.built == 1
    (found,) = server.search([])
    assert server.cache.built == 1
    seen = []
    reading = CheckpointReading(found.parts, server.cache)
    reading._verify = lambda part, batch: seen.append(part) or True
    outcome = reading.run()
    assert not seen
    assert outcome.is_complete


def test_what_is_saved_again_is_looked_at_again(tmp_path):
    path = save(tmp_path / "snapshot.pt", at=100)
    server = CheckpointService(str(tmp_path), (), "", "full")
    (found,) = server.search([])
    assert server.read(found)[0] == ""
    damage_in_the_middle(path)  # and its time is set back
    (found,) = server.search([])
    assert "wrong checksum" in server.read(found)[0]


def spans_read(server: CheckpointService) -> set[int]:
    """Return where the spans begin that were read of a checkpoint of one file."""
    return {begin for spans in server.cache._read.values() for begin in spans}


def test_reading_stops_for_a_request_and_continues_from_there(tmp_path, monkeypatch):
    save(tmp_path / "epoch-1.pt", at=100)
    monkeypatch.setattr("hpclaunch.system.checkpoints.reading.BATCH", 1000)
    monkeypatch.setattr("hpclaunch.system.checkpoints.reading.READERS", 1)
    server = CheckpointService(str(tmp_path), (), "", "full")
    (found,) = server.search([])
    outcome = server.read(found, lambda: bool(spans_read(server)))
    assert (outcome.wrong, outcome.is_complete) == ("", False)
    before = spans_read(server)
    assert len(before) == 1
    outcome = server.read(found)
    assert (outcome.wrong, outcome.is_complete) == ("", True)
    assert before < spans_read(server)


def test_several_nodes_may_share_the_reading(tmp_path, monkeypatch):
    save(tmp_path / "epoch-1.pt", at=100)
    monkeypatch.setattr("hpclaunch.system.checkpoints.reading.BATCH", 1000)
    read = []
    for k in range(3):
        server = CheckpointService(str(tmp_path), (), "", "full")
        (found,) = server.search([])
        outcome = server.read(found, share=(k, 3))
        assert (outcome.wrong, outcome.is_complete) == ("", True)
        read += sorted(spans_read(server))
    server = CheckpointService(str(tmp_path), (), "", "full")
    (found,) = server.search([])
    server.read(found)
    assert sorted(read) == sorted(spans_read(server))  # each of them by one node
    assert len(read) == 3


def test_there_is_no_time_to_read_it_all(tmp_path, monkeypatch):
    save(tmp_path / "epoch-1.pt", at=100)
    monkeypatch.setattr(service_module, "AHEAD", 0.0)
    for verify, is_complete in (("auto", False), ("full", True)):
        server = CheckpointService(str(tmp_path), (), "", verify)
        (found,) = server.search([])
        assert server.read(found).is_complete is is_complete


def test_with_nothing_opened_a_name_is_enough(tmp_path):
    damage(save(tmp_path / "epoch-1.pt", at=100), cut_short)
    (found,) = CheckpointService(str(tmp_path), (), "", "off").search([])
    assert found.lacks is None


def test_a_checkpoint_that_was_read_is_not_kept_in_memory(tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    server = CheckpointService(str(tmp_path), (), "", "auto")
    (found,) = server.search([])
    server.read(found)
    candidate = weakref.ref(found.candidate)
    del found
    gc.collect()
    assert candidate() is None


def test_it_reads_ahead_while_nobody_asks(tmp_path):
    server = CheckpointService(str(tmp_path), (), "", "auto")
    server.read_ahead(lambda: False)
    path = damage_in_the_middle(save(tmp_path / "epoch-1.pt", at=100))
    server.read_ahead(lambda: False)
    (found,) = server.search([])
    assert found.candidate.path == str(path)
    assert "wrong checksum" in found.lacks


@pytest.mark.starts
def test_it_looks_unasked_until_that_is_turned_off(tmp_path, monkeypatch):
    """The process of its own, whose look shows in what is known when it is asked."""
    service = CheckpointServiceClient(str(tmp_path), (), "", "auto")
    service.send(Watch(True, ()))
    save(tmp_path / "epoch-1.pt", at=100)
    service.search(1, [], {})
    assert reply(service).found
    service.send(Watch(False, ()))
    assert not select.select([service], [], [], 0.1)[0]
    service.close()


def test_a_look_that_takes_long_is_taken_less_often(tmp_path, monkeypatch):
    server = CheckpointService(str(tmp_path), (), "", "auto")
    times = iter([0.0, 5.0])
    clock = SimpleNamespace(monotonic=lambda: next(times), time_ns=time.time_ns)
    monkeypatch.setattr(service_module, "time", clock)
    server.read_ahead(lambda: False)
    assert server.period == 500.0


def test_the_times_of_links_and_the_like_do_not_confuse_it(tmp_path):
    new = save(tmp_path / "epoch-2.pt", at=200)
    (tmp_path / "latest.pt").symlink_to(new)
    date(tmp_path / "latest.pt", 300)
    server = CheckpointService(str(tmp_path), (), "", "auto")
    assert [f.candidate.name for f in server.search([])] == ["epoch-2.pt"]


def test_damage_that_was_found_before_is_not_what_is_missing(service, tmp_path):
    save(tmp_path / "epoch-1.pt", at=100)
    service.search(1, [], {})
    (found,) = reply(service).found
    damage_in_the_middle(tmp_path / "epoch-1.pt")
    for _ in range(2):
        answer = seen(service, a_look(found, share=(0, 1)))
        assert answer.missing == ""
        assert "wrong checksum" in answer.damage


def test_who_has_no_time_opens_nothing(tmp_path, monkeypatch):
    for step in range(8):
        save(tmp_path / f"epoch-{step}.pt", at=100)
    server = CheckpointService(str(tmp_path), (), "", "auto")
    (found,) = server.search([])
    monkeypatch.setattr("hpclaunch.system.checkpoints.reading.spans_of", None)
    outcome = CheckpointReading(found.parts * 8, server.cache, until=0.0).run()
    assert not outcome.is_complete


def test_of_many_files_each_node_opens_its_own(tmp_path, monkeypatch):
    save(tmp_path / "epoch-1.pt", at=100)
    server = CheckpointService(str(tmp_path), (), "", "full")
    (found,) = server.search([])
    opened = []
    monkeypatch.setattr(
        "hpclaunch.system.checkpoints.reading.spans_of", lambda part: opened.append(part) or []
    )
    CheckpointReading(found.parts * 12, server.cache, share=(1, 3)).run()
    assert len(opened) == 4


def test_a_node_judges_by_the_rounds_of_the_head(service, tmp_path):
    """The node may not have taken part in the round that saved the checkpoint."""
    (tmp_path / "step-1").mkdir()
    for rank in range(2):
        save(tmp_path / "step-1" / f"random_states_{rank}.pkl", at=100)
    save(tmp_path / "step-1" / "optimizer.bin", at=100)
    second = 10**9
    service.search(1, [(50 * second, None, 2)], {})
    (found,) = reply(service).found
    assert found.lacks is None
    assert seen(service, a_look(found, rounds=((50 * second, None, 2),))).missing == ""
    assert "rank 2 of 4" in seen(service, a_look(found, rounds=((50 * second, None, 4),))).missing
