"""Stagers that reach each other over real sockets: several in this process, and some as others."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from looking import damage
from random_kills import eventually
from relays import Relay
from saving_scripts import picture

from clocks import AheadClock, FastClock, fast
from hpclaunch.core.protocol.values import replace
from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.core.staging.generations import LastRestore, manifest
from hpclaunch.system.shared import packing
from hpclaunch.system.staging import mesh as mesh_module
from hpclaunch.system.staging import orders, remote_node
from hpclaunch.system.staging.copying import GivenUpError
from hpclaunch.system.staging.fetching import PIECE, STREAMS
from hpclaunch.system.staging.mesh import Mesh
from hpclaunch.system.staging.messages import PeerPlace
from hpclaunch.system.staging.node import DAMAGED, StageNode
from hpclaunch.system.staging.orders import (
    LIMIT,
    AskPieces,
    Copy,
    Delete,
    Drop,
    Fetch,
    Keep,
    Lend,
    Look,
    RecordRestore,
    Request,
    packed,
)
from hpclaunch.system.staging.publishing import DRAFT, draft

KEY = b"k" * 32
LONG = 120.0  # seconds; a test that needs them fails
SILENCE = 100.0  # seconds; no busy machine is as silent


@pytest.fixture
def storage(tmp_path):
    path = tmp_path / "storage"
    path.mkdir()
    return str(path)


@pytest.fixture
def start(tmp_path, storage):
    """Return a function that starts a stager in this process."""
    # Have pyzmq make the socket by which it frees what was sent. If the threads of two stagers did
    # so at once, one of two sockets would never be closed.
    zmq.Frame(bytes(1 << 20), copy=False)
    with contextlib.ExitStack() as stack:

        def started(name, key=KEY):
            stage = tmp_path / name / "ckpt"
            stage.mkdir(parents=True, exist_ok=True)
            made = Mesh(key, StageNode(str(stage), storage))
            stack.callback(made.close)
            return made

        yield started
    left = [path for path in tmp_path.rglob("*") if path.name.startswith(DRAFT)]
    assert not left


@pytest.fixture
def leader(start):
    return start("leader")


@pytest.fixture
def follower(start):
    return start("follower")


@pytest.fixture
def spawn(tmp_path, storage):
    """Return a function that starts a stager as a process, and returns it and its port."""
    with contextlib.ExitStack() as stack:

        def started(name):
            (tmp_path / name / "ckpt").mkdir(parents=True, exist_ok=True)
            program = str(Path(__file__).with_name("mesh_peer.py"))
            late = str(tmp_path / f"{name}-late")
            words = [str(tmp_path / name / "ckpt"), storage, KEY.hex(), str(SILENCE), late]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = stack.enter_context(
                subprocess.Popen([sys.executable, program, *words], **pipes)
            )
            stack.callback(process.kill)
            return process, int(process.stdout.readline())

        yield started


def lead(leader, *ports, term=1, index=0):
    """Have a stager lead others, which get the indices that follow."""
    here = "127.0.0.1"
    peers = [PeerPlace(index + 1 + at, "host", here, port, here) for at, port in enumerate(ports)]
    leader.lead(term, index, peers)
    return list(leader.peers.values())


def sources(mesh):
    """Return the nodes from which that of this stager can fetch."""
    return {**mesh.peers, mesh._index: mesh._node}


def write(root, name, data=b""):
    path = root / "ckpt" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def files(inventory):
    return [entry for entry in inventory.entries if entry.is_file]


def copy_of(entries, drafted):
    return Copy(entries, frozenset({"model.pt"}), os.path.basename(drafted), False)


# What peers do


def test_an_inventory_is_the_same_on_the_leader(leader, follower, start, tmp_path):
    write(tmp_path / "follower", "step/odd \udcff\n名", b"x")
    (tmp_path / "follower" / "ckpt" / "latest").symlink_to("step")
    (peer,) = lead(leader, follower.port)
    node = StageNode(str(tmp_path / "follower" / "ckpt"), "")
    found = files(node.inventory())
    kept = manifest("step", found, found[0].name, frozenset({found[0].name}), ("step",))
    peer.ask(Keep(kept)).result(LONG)
    peer.ask(Lend(tuple(files(node.inventory())))).result(LONG)
    peer.ask(RecordRestore(LastRestore(2, frozenset({0, 1}), "some"))).result(LONG)
    assert peer.ask(Look()).result(LONG)._replace(free=None) == node.inventory()._replace(free=None)
    assert peer.ask(Look()).result(LONG).kept[0].manifest == kept
    peer.ask(Drop(kept.generation)).result(LONG)
    peer.ask(Delete(node.inventory().entries)).result(LONG)
    found = peer.ask(Look()).result(LONG)
    assert (found.entries, found.kept) == ((), ())


def test_a_generation_comes_from_two_holders(leader, start, tmp_path):
    """Another node fetches it, the leader fetches it, and each has the same bytes."""
    data = os.urandom(3 * PIECE + 5)
    write(tmp_path / "one", "step/rank0.pt", data)
    write(tmp_path / "two", "step/rank1.pt", data[::-1])
    write(tmp_path / "leader", "step/meta", b"meta")
    one, two, three = lead(leader, *(start(name).port for name in ("one", "two", "three")))
    entries = [*files(one.ask(Look()).result(LONG)), *files(two.ask(Look()).result(LONG))]
    own = files(sources(leader)[0].inventory())
    wanted = tuple(Transfer(0, entry, 1 + at) for at, entry in enumerate(entries))
    call = three.ask(Fetch((*wanted, Transfer(0, own[0], 0)), "some"))
    call.result(LONG)
    sources(leader)[0].fetch(wanted, "", sources(leader))
    whole = picture(tmp_path / "leader" / "ckpt")
    assert len(whole) == 3
    assert picture(tmp_path / "three" / "kept" / "some" / "files") == whole
    # The leader is lost; the others have all.
    write(tmp_path / "one", "step/rank0.pt")
    kept = tuple(Transfer(0, entry, 3, "some") for entry in (*entries, *own))
    one_again, *_ = lead(start("next"), *(peer.place[1] for peer in (one, two, three)), term=2)
    one_again.ask(Fetch(kept)).result(LONG)
    assert picture(tmp_path / "one" / "ckpt") == whole


def test_a_copy_whose_bytes_have_changed(leader, start, tmp_path):
    """The leader learns of it, also if another node has asked for the copy."""
    path = write(tmp_path / "leader", "odd \udcff.pt", os.urandom(PIECE + 1))
    buddy, other = lead(leader, start("buddy").port, start("other").port)
    (file,) = files(sources(leader)[0].inventory())
    kept = manifest(file.name, [file], file.name, frozenset({file.name}))
    buddy.ask(Keep(kept)).result(LONG)
    buddy.ask(Fetch((Transfer(1, file, 0),), kept.generation)).result(LONG)
    copy = tmp_path / "buddy" / "kept" / kept.generation / "files" / path.name
    damage(copy, lambda data: data[::-1])
    call = other.ask(Fetch((Transfer(2, file, 1, kept.generation),)))
    with pytest.raises(OSError, match="its bytes have changed") as failure:
        call.result(LONG)
    assert (failure.value.errno, failure.value.filename) == (DAMAGED, file.name)
    assert not buddy.ask(Look()).result(LONG).kept[0].names
    assert not os.listdir(tmp_path / "other" / "ckpt")


def test_a_copy_to_storage(leader, follower, tmp_path, storage):
    """Copy into a draft; give up if a file has changed."""
    write(tmp_path / "follower", "model.pt", data := os.urandom(PIECE))
    (peer,) = lead(leader, follower.port)
    entries = peer.ask(Look()).result(LONG).entries
    with draft(storage, "launch") as drafted:
        peer.ask(copy_of(entries, drafted)).result(LONG)
        assert (Path(drafted) / "model.pt").read_bytes() == data
        write(tmp_path / "follower", "model.pt", data[::-1])
        with pytest.raises(GivenUpError):
            peer.ask(copy_of(entries, drafted)).result(LONG)


@pytest.fixture
def slow_copy(monkeypatch):
    """Have a copy to storage take forever, but for its pauses."""

    def slow(_items, _source, _draft, between):
        threads, done = between(0, 0.0), 0
        while threads == 1:
            threads, done = between(done := done + 1, 0.01), done
        assert threads > 1

    monkeypatch.setattr("hpclaunch.system.staging.copying.copy", slow)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of those who wait for a peer."""
    clock = AheadClock()
    monkeypatch.setattr(remote_node, "time", clock)
    monkeypatch.setattr(remote_node, "SILENCE", SILENCE)
    monkeypatch.setattr(mesh_module, "SAY", 0.1)
    return clock


def test_a_copy_may_take_longer_than_a_peer_may_be_silent(clock, copying):
    for _ in range(4):
        done = copying.done_bytes
        clock.ahead += SILENCE / 2
        eventually(lambda done=done: copying.done_bytes > done)
    copying.hurry(on=True)
    assert copying.result(LONG) is None


@pytest.fixture
def copying(slow_copy, leader, follower, tmp_path, storage):
    """A copy to storage that another node has begun."""
    write(tmp_path / "follower", "model.pt", b"x")
    (peer,) = lead(leader, follower.port)
    entries = peer.ask(Look()).result(LONG).entries
    with draft(storage, "launch") as drafted:
        call = peer.ask(copy_of(entries, drafted))
        eventually(lambda: call.done_bytes > 0)
        assert not call.done()
        yield call


def held(tmp_path):
    return [path for path in (tmp_path / "follower").iterdir() if path.name.startswith(DRAFT)]


def test_a_copy_becomes_urgent(copying):
    copying.hurry(on=True)
    assert copying.result(LONG) is None


def test_a_copy_is_cancelled(copying, tmp_path):
    """Once it is done, the other node has stopped and holds nothing any more."""
    assert held(tmp_path)
    assert copying.cancel()
    with pytest.raises(GivenUpError, match="cancelled"):
        copying.result(LONG)
    assert not held(tmp_path)


def test_a_copy_ends_with_the_leader_that_has_ordered_it(copying, leader, tmp_path):
    leader.close()
    with pytest.raises(ConnectionError):
        copying.result(LONG)
    eventually(lambda: not held(tmp_path))


# Who leads


def test_a_leader_of_a_lower_term_is_refused(leader, follower, start):
    old, later = start("old"), start("later")
    (of_old,) = lead(old, follower.port, term=3)
    of_old.ask(Look()).result(LONG)
    (of_later,) = lead(later, follower.port, term=4)
    of_later.ask(Look()).result(LONG)
    for call in (of_old.ask(Look()), of_old.ask(Drop("some")), of_old.ask(Delete(()))):
        with pytest.raises(ConnectionRefusedError):
            call.result(LONG)
    of_later.ask(Look()).result(LONG)
    assert follower.term == 4
    # Nor does it lead on after it has obeyed a later one.
    (_, of_old_itself) = lead(later, follower.port, old.port, term=4)
    of_old_itself.ask(Look()).result(LONG)
    assert old.term == 4
    with pytest.raises(ConnectionRefusedError):
        of_old.ask(Look()).result(LONG)
    # One that has led itself obeys only later ones.
    (of_leader,) = lead(leader, later.port, term=4)
    of_leader.ask(Look()).result(LONG)
    later.lead(5, 0, ())
    with pytest.raises(ConnectionRefusedError):
        of_leader.ask(Look()).result(LONG)


def test_a_later_leader_ends_what_was_ordered_before(copying, follower, start, tmp_path):
    (peer,) = lead(start("later"), follower.port, term=2)
    peer.ask(Look()).result(LONG)
    with pytest.raises(GivenUpError):
        copying.result(LONG)
    assert not held(tmp_path)


def test_any_node_may_read(leader, follower, start, tmp_path):
    """A node that fetches for the leader of a lower term gets pieces of files."""
    write(tmp_path / "follower", "model.pt", b"x")
    (entry,) = sources(follower)[-1].inventory().entries
    follower.lead(9, 0, ())
    (peer,) = lead(leader, follower.port)
    assert bytes(peer.read("model.pt", "", entry.identity, 0, 1)) == b"x"


def test_peers_that_stay_keep_their_connections(leader, follower, start):
    (peer,) = lead(leader, follower.port)
    peer.ask(Look()).result(LONG)
    assert lead(leader, follower.port, start("other").port, term=2)[0] is peer
    leader.follow()
    assert not leader.peers


def test_sources_that_were_lost_keep_no_connections(leader, follower, start, tmp_path):
    """A node that is lost again and again comes back with another stager each time."""
    for step in range(3):
        write(tmp_path / f"source-{step}", f"step-{step}.pt", b"x")
        source = start(f"source-{step}")
        fetching, lending = lead(leader, follower.port, source.port)
        entries = lending.ask(Look()).result(LONG).entries
        fetching.ask(Fetch(tuple(Transfer(1, each, 2) for each in entries))).result(LONG)
        (stranger,) = follower._strangers.values()
        assert stranger.place[1] == source.port
    assert len(picture(tmp_path / "follower" / "ckpt")) == 3


# Nodes that are lost


def test_a_node_that_is_not_there(leader):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        (peer,) = lead(leader, s.getsockname()[1])
        with pytest.raises(ConnectionError):
            peer.ask(Look()).result(LONG)


def test_a_connection_that_was_lost_while_idle(leader, follower):
    """The next call makes another one."""
    with contextlib.closing(Relay(follower.port)) as relay:
        (peer,) = lead(leader, relay.port)
        peer.ask(Look()).result(LONG)
        relay.cut()
        eventually(peer._idle[0].is_lost)
        peer.ask(Look()).result(LONG)


def large(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for _ in range(size // PIECE):
            file.write(os.urandom(PIECE))


@pytest.mark.starts
def test_a_source_that_is_killed(leader, spawn, tmp_path):
    """The fetch fails at once, and leaves nothing; another source of the file will do."""
    large(tmp_path / "one" / "ckpt" / "model.pt", 64 * PIECE)
    (process, port), (_, other) = spawn("one"), spawn("two")
    lead(leader, port, other)
    wanted = tuple(Transfer(0, e, 1) for e in files(leader.peers[1].ask(Look()).result(LONG)))
    leader.peers[2].ask(Fetch(wanted)).result(LONG)
    call = leader.peers[2].ask(Fetch(wanted, "some"))

    def kill(done, _):
        if done:
            process.kill()

    with pytest.raises(ConnectionError):
        sources(leader)[0].fetch(wanted, "", sources(leader), kill)
    with contextlib.suppress(OSError):  # it may have been done before
        call.result(LONG)
    assert sources(leader)[0].inventory().entries == ()
    sources(leader)[0].fetch([replace(w, source=2) for w in wanted], "", sources(leader))
    assert picture(tmp_path / "leader" / "ckpt") == picture(tmp_path / "one" / "ckpt")


@pytest.mark.starts
def test_a_source_that_is_stopped(leader, spawn, tmp_path, monkeypatch):
    """A node that is silent fails what waits for it, and serves again once it continues."""
    late, of_two = tmp_path / "leader-late", tmp_path / "two-late"
    monkeypatch.setattr(remote_node, "SILENCE", SILENCE)
    monkeypatch.setattr(remote_node, "time", FastClock(late))
    large(tmp_path / "one" / "ckpt" / "model.pt", 8 * PIECE)
    (process, port), (_, other) = spawn("one"), spawn("two")
    one, two = lead(leader, port, other)
    wanted = tuple(Transfer(0, e, 1) for e in files(one.ask(Look()).result(LONG)))
    os.kill(process.pid, signal.SIGSTOP)
    with fast(of_two), pytest.raises(TimeoutError, match="no answer"):
        two.ask(Fetch(wanted)).result(LONG)
    with fast(late):
        with pytest.raises(TimeoutError, match="no answer"):
            one.ask(Look()).result(LONG)
        with pytest.raises(TimeoutError, match="no answer"):
            sources(leader)[0].fetch(wanted, "", sources(leader))
    os.kill(process.pid, signal.SIGCONT)
    two.ask(Fetch(wanted)).result(LONG)
    assert picture(tmp_path / "two" / "ckpt") == picture(tmp_path / "one" / "ckpt")


def peak(pid):
    """Return the most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.starts
def test_the_memory_of_a_fetch_is_bounded(leader, spawn, tmp_path):
    size = 96 * PIECE
    large(tmp_path / "one" / "ckpt" / "model.pt", size)
    (source, port), (fetcher, other) = spawn("one"), spawn("two")
    one, two = lead(leader, port, other)
    wanted = tuple(Transfer(0, e, 1) for e in files(one.ask(Look()).result(LONG)))
    before = peak(source.pid), peak(fetcher.pid)
    call = two.ask(Fetch(wanted))
    call.result(LONG)
    assert picture(tmp_path / "two" / "ckpt") == picture(tmp_path / "one" / "ckpt")
    assert peak(source.pid) - before[0] < size / 3
    assert peak(fetcher.pid) - before[1] < size / 3


# Strangers


def test_without_the_key_nobody_gets_anything(leader, follower, start):
    stranger = start("stranger", b"another key".ljust(32))
    (peer,) = lead(stranger, follower.port, term=9)
    with pytest.raises(ConnectionError):
        peer.ask(Look()).result(LONG)
    context = zmq.Context()
    request = packed(Request(9, Look()))
    with (
        context,
        context.socket(zmq.DEALER) as plain,
        context.socket(zmq.DEALER) as other,
        socket.socket() as raw,
    ):
        other.curve_publickey, other.curve_secretkey = zmq.curve_keypair()
        other.curve_serverkey = follower.keys.head_public  # which is no secret
        for each in (plain, other):
            each.linger = 0
            each.connect(f"tcp://127.0.0.1:{follower.port}")
            each.send(request)
        raw.connect(("127.0.0.1", follower.port))
        raw.sendall(os.urandom(1000))
        assert not plain.poll(300)
        assert not other.poll(300)
    assert follower.term == 0
    (peer,) = lead(leader, follower.port)
    peer.ask(Look()).result(LONG)


def test_a_node_that_is_no_stager_of_the_launch(leader, start):
    """A server without the key learns nothing from those who connect to it."""
    (peer,) = lead(leader, start("stranger", b"another key".ljust(32)).port)
    with pytest.raises(ConnectionError):
        peer.ask(Look()).result(LONG)
    with socket.create_server(("127.0.0.1", 0)) as server:
        (peer,) = lead(leader, server.getsockname()[1])
        call = peer.ask(Look())
        connection, _ = server.accept()
        with connection:
            assert b"Look" not in connection.recv(4096)
            connection.sendall(os.urandom(1000))
        with pytest.raises(ConnectionError):
            call.result(LONG)


def test_messages_that_make_no_sense(leader, follower):
    """A peer of another version, say, gets no reply and does no harm."""
    (peer,) = lead(leader, follower.port)
    connection = remote_node._Connection(leader, peer.place)
    deep = b'{"term":1,"what":{"type":"look","x":' + b"[" * 100_000
    for frames in ([b"junk"], [b""], [b"{}"], [b"a", b"b", b"c"], [b'"\\udc00"'], [deep]):
        connection._socket.send_multipart(frames)
    assert not connection._socket.poll(300)
    connection.close()
    peer.ask(Look()).result(LONG)


REQUESTS = [
    Request(3, what, 2, {1: ("::1", 5)})
    for entry in [StagedFile("odd \udcff", 5, 6, 0o100600, 3, "", 7)]
    for file in [StagedFile("name", 5, 6)]
    for what in (
        Look(),
        AskPieces(),
        Copy((entry,), frozenset({"name"}), DRAFT, True),
        Fetch((Transfer(0, entry, 1, "some"),), "some"),
        Keep(manifest("key", [file], "name", frozenset({"name"}))),
        Delete((entry,)),
        RecordRestore(LastRestore(1, frozenset({2}), "some")),
    )
]


@pytest.mark.parametrize("asked", REQUESTS)
def test_requests_stay_the_same_on_their_way(asked):
    assert packing.unpack(packing.pack(asked), Request) == asked


@pytest.mark.fuzz
@given(st.binary(max_size=300))
def test_noise_is_no_request(data):
    with pytest.raises((ValueError, RecursionError)):
        packing.unpack(data, Request)


@pytest.mark.fuzz
@given(st.sampled_from(REQUESTS), st.integers(0, 1000), st.integers(0, 255))
def test_one_wrong_byte_of_a_request(asked, position, value):
    data = bytearray(packing.pack(asked))
    data[position % len(data)] = value
    with contextlib.suppress(ValueError):
        assert isinstance(packing.unpack(bytes(data), Request), Request)


def test_messages_that_are_too_large(leader, follower, tmp_path, monkeypatch):
    for number in range(50):
        write(tmp_path / "follower", f"{number:0200}")
    (peer,) = lead(leader, follower.port)
    entries = peer.ask(Look()).result(LONG).entries
    monkeypatch.setattr(orders, "LIMIT", 9000)
    for call in (peer.ask(Look()), peer.ask(Delete(entries))):
        with pytest.raises(OSError, match="too many files") as failure:
            call.result(LONG)
        assert failure.value.errno == errno.EMSGSIZE
    assert len(sources(follower)[-1].inventory().entries) == 50


def test_a_message_that_a_stranger_to_the_limit_sends(leader, follower, monkeypatch):
    """The connection is closed before the message is in memory."""
    (peer,) = lead(leader, follower.port)
    connection = remote_node._Connection(leader, peer.place)
    connection._socket.send(bytes(LIMIT + 1))
    eventually(connection.is_lost)
    connection.close()
    peer.ask(Look()).result(LONG)


@pytest.mark.parametrize("name", ["../storage/secret", "/etc/passwd", "link/secret"])
def test_names_that_leave_the_directory(name, leader, follower, tmp_path):
    (tmp_path / "storage" / "secret").write_text("secret")
    write(tmp_path / "follower", "x")
    (tmp_path / "follower" / "ckpt" / "link").symlink_to(tmp_path / "storage")
    (peer,) = lead(leader, follower.port)
    entry, *_ = files(peer.ask(Look()).result(LONG))
    entry = entry._replace(name=name)
    for attempt in (
        lambda: peer.read(name, "", entry.identity, 0, 6),
        lambda: peer.read("x", name, entry.identity, 0, 6),
        peer.ask(Drop(name)).result,
        peer.ask(Delete((entry,))).result,
        peer.ask(Fetch((Transfer(0, entry, 0),))).result,
        peer.ask(Fetch((), name)).result,
    ):
        with pytest.raises(PermissionError):
            attempt()
    assert (tmp_path / "storage" / "secret").read_text() == "secret"


def test_drafts_lie_on_storage(leader, follower, tmp_path):
    """Whatever a request names, files are copied into a draft only."""
    write(tmp_path / "follower", "x", b"x")
    (tmp_path / "storage" / "mine").mkdir()
    (peer,) = lead(leader, follower.port)
    entries = peer.ask(Look()).result(LONG).entries
    for name in ("mine", str(tmp_path / "storage" / "mine"), "..", "", f"{DRAFT}gone", "/"):
        with pytest.raises(OSError):  # noqa: PT011 - one or the other
            peer.ask(Copy(entries, frozenset(), name, False)).result(LONG)
    assert not list((tmp_path / "storage" / "mine").iterdir())


def test_a_bug_while_a_request_is_served(leader, follower, monkeypatch):
    """The leader has a reply in any case, and does not wait for ever."""
    monkeypatch.setattr(StageNode, "inventory", lambda _: 1 // 0)
    (peer,) = lead(leader, follower.port)
    with pytest.raises(OSError, match="ZeroDivisionError"):
        peer.ask(Look()).result(LONG)


def test_many_requests_at_once(leader, follower, tmp_path):
    write(tmp_path / "follower", "x", b"x")
    (peer,) = lead(leader, follower.port)
    calls = [peer.ask(Look()) for _ in range(200)]
    assert {call.result(LONG).entries for call in calls} == {peer.ask(Look()).result(LONG).entries}
    assert len(peer._idle) <= STREAMS


def test_a_call_ends_when_its_stager_is_closed(slow_copy, copying, leader):
    leader.close()
    with pytest.raises(ConnectionAbortedError):
        copying.result(LONG)
    with pytest.raises(ConnectionAbortedError):
        leader.peers[1].ask(Look()).result(LONG)
