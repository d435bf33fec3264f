"""Pieces of files between two stagers, and what those get who do not have the key."""

import contextlib
import errno
import os
import socket
import threading

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from random_kills import eventually
from relays import Relay

from hpclaunch.system.staging import remote_node
from hpclaunch.system.staging.copying import GivenUpError
from hpclaunch.system.staging.mesh import SERVING, Mesh
from hpclaunch.system.staging.messages import PeerPlace
from hpclaunch.system.staging.node import DAMAGED, StageNode
from hpclaunch.system.staging.orders import Look
from hpclaunch.system.staging.pieces import KEY, LIMIT, USER, Cipher, Read

LAUNCH = b"k" * 32
SECRET = b"all our weights " * 4096
ALL = Read("model.pt", "", (len(SECRET), 5), 0, len(SECRET))
PART = Read("odd \udcff", "some", (5, 6), 1, 2)


@pytest.fixture
def stage(tmp_path):
    path = tmp_path / "ckpt"
    path.mkdir()
    (path / "model.pt").write_bytes(SECRET)
    os.utime(path / "model.pt", ns=(5, 5))
    return path


@pytest.fixture
def node(stage, tmp_path):
    return StageNode(str(stage), str(tmp_path))


@pytest.fixture
def cipher():
    return Cipher(os.urandom(KEY))


def changed(frames, position, value):
    """Return frames with one other byte."""
    frames = [bytearray(frame) for frame in frames]
    frame = frames[position % len(frames)]
    frame[position // len(frames) % len(frame)] ^= value
    return [bytes(frame) for frame in frames]


@pytest.mark.parametrize("what", [ALL, PART])
def test_a_question_stays_the_same_on_its_way(cipher, what):
    frames = cipher.question(what)
    assert cipher.asked(frames) == what
    assert Cipher(os.urandom(KEY)).asked(frames) is None


def test_an_answer(cipher, node):
    question = cipher.question(ALL)
    answer = cipher.answer(node, question, ALL)
    assert cipher.answered(question, answer) == SECRET
    assert all(b"weights" not in bytes(frame) for frame in answer)
    assert cipher.answer(node, question, ALL)[1] != answer[1], "a nonce was used twice"


def test_an_answer_to_another_question_is_refused(cipher, node):
    """Whoever records answers cannot pass one for another."""
    answer = cipher.answer(node, cipher.question(ALL), ALL)
    with pytest.raises(OSError, match="a wrong message") as refused:
        cipher.answered(cipher.question(ALL), answer)
    assert refused.value.errno == errno.EBADMSG


def test_an_answer_that_is_cut_short(cipher, node):
    question = cipher.question(ALL)
    kind, nonce, sealed = cipher.answer(node, question, ALL)
    for frames in ([], [kind, nonce], [kind, nonce, sealed[:-1]], [kind, b"", sealed]):
        with pytest.raises(OSError, match="a wrong message"):
            cipher.answered(question, frames)


@pytest.mark.parametrize(
    "failure",
    [GivenUpError("it is being written again"), OSError(DAMAGED, "its bytes have changed", "x")],
)
def test_what_a_node_raises_is_raised_where_it_was_asked(cipher, node, failure, monkeypatch):
    def fail(*_):
        raise failure

    monkeypatch.setattr(node, "read", fail)
    question = cipher.question(ALL)
    raised = cipher.answered(question, cipher.answer(node, question, ALL)).raised()
    assert type(raised) is type(failure)
    assert str(raised) == str(failure)


@pytest.mark.fuzz
@given(st.lists(st.binary(max_size=300), max_size=4))
def test_noise_is_no_question_and_no_answer(frames):
    cipher = Cipher(bytes(KEY))
    assert cipher.asked(frames) is None
    with pytest.raises(OSError, match="a wrong message"):
        cipher.answered(cipher.question(ALL), frames)


@pytest.mark.fuzz
@given(st.integers(0, 1000), st.integers(1, 255))
def test_one_wrong_byte(position, value):
    cipher = Cipher(bytes(KEY))
    question = cipher.question(ALL)
    assert cipher.asked(changed(question, position, value)) is None

    class Node:
        def read(self, *_):
            return b"x" * 100

    answer = cipher.answer(Node(), question, ALL)
    with pytest.raises(OSError, match="a wrong message"):
        cipher.answered(question, changed(answer, position, value))


# Over the network


@pytest.fixture
def meshes(stage, node, tmp_path):
    """Return a stager that has the file, and one that leads."""
    zmq.Frame(bytes(1 << 20), copy=False)  # as in test_mesh.py
    (tmp_path / "leader" / "ckpt").mkdir(parents=True)
    leader = Mesh(LAUNCH, StageNode(str(tmp_path / "leader" / "ckpt"), str(tmp_path)))
    owner = Mesh(LAUNCH, node)
    yield owner, leader
    leader.close()
    owner.close()


def reached(leader, port):
    leader.lead(leader.led_term + 1, 0, [PeerPlace(1, "host", "127.0.0.1", port, "127.0.0.1")])
    return leader.peers[1]


def test_the_bytes_on_the_wire_are_encrypted(meshes):
    owner, leader = meshes
    with contextlib.closing(Relay(owner._piece_port)) as wire:
        owner._piece_port = wire.port
        assert reached(leader, owner.port).read(*vars_of(ALL)) == SECRET
    assert len(wire.seen) > len(SECRET)
    assert b"weights" not in wire.seen
    assert b"model" not in wire.seen


def vars_of(what):
    return what.name, what.kept, what.identity, what.offset, what.length


@contextlib.contextmanager
def stranger_at(port, token=None):
    """Have a connection for pieces, with a token or without, and a monitor that hears its end."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.reconnect_ivl = -1
        if token is not None:
            stranger.plain_username, stranger.plain_password = USER, token
        with stranger.get_monitor_socket(remote_node._LOST) as monitor:
            stranger.connect(f"tcp://127.0.0.1:{port}")
            yield stranger, monitor
            stranger.disable_monitor()


def test_keys_and_tokens_are_random(meshes):
    owner, leader = meshes
    one, other, of_leader = owner._new_place(), owner._new_place(), leader._new_place()
    assert one.key != of_leader.key
    assert one.token != other.token


def test_what_was_recorded_is_of_no_use(meshes, monkeypatch):
    """A token that was used gives no connection, so a recorded question is not answered again."""
    owner, leader = meshes
    asked, question = [], Cipher.question

    def recorded(*args):
        asked.append(question(*args))
        return asked[-1]

    monkeypatch.setattr(Cipher, "question", recorded)
    places, new_place = [], owner._new_place
    owner._new_place = lambda: places.append(new_place()) or places[-1]
    assert reached(leader, owner.port).read(*vars_of(ALL)) == SECRET
    with stranger_at(places[0].port, places[0].token) as (stranger, monitor):
        stranger.send_multipart(asked[0])
        assert monitor.poll(60_000)
        assert not stranger.poll(0)
    assert len(places) == len(asked) == 1


def test_a_stager_that_was_started_again_at_its_port(meshes, stage, tmp_path):
    """A new one has another key, and another port for pieces."""
    owner, leader = meshes
    with contextlib.ExitStack() as stack:
        wire = stack.enter_context(contextlib.closing(Relay(owner.port)))
        peer = reached(leader, wire.port)
        assert peer.read(*vars_of(ALL)) == SECRET
        owner.close()
        again = Mesh(LAUNCH, StageNode(str(stage), str(tmp_path)))
        stack.callback(again.close)
        wire.to = again.port
        eventually(lambda: all(each.is_lost() for each in (*peer._idle, *peer._idle_readers)))
        assert peer.read(*vars_of(ALL)) == SECRET


def test_an_answer_of_somebody_else_ends_its_connection(meshes):
    owner, leader = meshes
    peer = reached(leader, owner.port)
    key, owner._cipher = owner._cipher, Cipher(os.urandom(KEY))
    owner._cipher.asked = key.asked
    with pytest.raises(OSError, match="a wrong message"):
        peer.read(*vars_of(ALL))
    owner._cipher = key
    assert not peer._idle_readers
    assert peer.read(*vars_of(ALL)) == SECRET
    assert len(peer._idle_readers) == 1


def test_orders_that_take_long_hold_up_no_pieces(meshes, node, monkeypatch):
    """Storage may hang for minutes."""
    owner, leader = meshes
    peer, continues = reached(leader, owner.port), threading.Event()
    monkeypatch.setattr(node, "inventory", continues.wait)
    calls = [peer.ask(Look()) for _ in range(SERVING)]
    eventually(lambda: len(owner._jobs) == SERVING)
    assert peer.read(*vars_of(ALL)) == SECRET
    assert not any(call.done() for call in calls)
    continues.set()


def test_a_failure_keeps_the_connection(meshes):
    owner, leader = meshes
    peer = reached(leader, owner.port)
    with pytest.raises(FileNotFoundError) as failure:
        peer.read("none.pt", "", (1, 5), 0, 1)
    assert failure.value.filename.endswith("none.pt")
    assert len(peer._idle_readers) == 1


def test_without_the_key_nobody_gets_a_piece(meshes):
    """Also not with a token that somebody else has not used yet."""
    owner, leader = meshes
    place = owner._new_place()
    recorded = Cipher(place.key).question(ALL)
    with stranger_at(place.port, place.token) as (stranger, _):
        for frames in (Cipher(os.urandom(KEY)).question(ALL), [b"", b""], [b"junk"], [b"x"] * 5):
            stranger.send_multipart(frames)
        assert not stranger.poll(300)
        stranger.send_multipart(recorded)
        answer = stranger.recv_multipart()
    assert all(b"weights" not in frame for frame in answer)
    with socket.create_connection(("127.0.0.1", place.port)) as raw:
        raw.sendall(os.urandom(1000))
    assert reached(leader, owner.port).read(*vars_of(ALL)) == SECRET


@pytest.mark.parametrize("token", [None, bytes(KEY)])
def test_connections_of_strangers_are_closed(meshes, token):
    owner, leader = meshes
    with stranger_at(owner._piece_port, token) as (_, monitor):
        assert monitor.poll(60_000)
    assert reached(leader, owner.port).read(*vars_of(ALL)) == SECRET


def test_a_question_that_is_too_large(meshes):
    """The connection is closed before the question is in memory."""
    owner, leader = meshes
    place = owner._new_place()
    with stranger_at(place.port, place.token) as (stranger, monitor):
        stranger.send_multipart([b"x" * 12, bytes(LIMIT + 1)])
        assert monitor.poll(60_000)
    assert reached(leader, owner.port).read(*vars_of(ALL)) == SECRET
