"""Pieces of files between two stagers, and what those get who do not have the key."""

import errno
import os
import socket
import threading

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.protocol.values import replace
from hpclaunch.system.staging.copying import GivenUpError
from hpclaunch.system.staging.mesh import Mesh
from hpclaunch.system.staging.messages import PeerPlace
from hpclaunch.system.staging.node import DAMAGED, StageNode
from hpclaunch.system.staging.pieces import KEY, USER, Cipher, Read

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
    with pytest.raises(type(failure)) as raised:
        cipher.answered(question, cipher.answer(node, question, ALL))
    assert str(raised.value) == str(failure)


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


class Wire(threading.Thread):
    """A relay before a port that keeps all bytes it relays."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self._to, self._server = port, socket.create_server(("127.0.0.1", 0))
        self.port, self.seen = self._server.getsockname()[1], bytearray()
        self.start()

    def run(self):
        while True:
            near, far = self._server.accept()[0], socket.create_connection(("127.0.0.1", self._to))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _relay(self, source, target):
        while data := source.recv(1 << 16):
            self.seen += data
            target.sendall(data)


def test_the_bytes_on_the_wire_are_encrypted(meshes):
    owner, leader = meshes
    wire = Wire(owner._pieces.port)
    owner._pieces = replace(owner._pieces, port=wire.port)
    peer = reached(leader, owner.port)
    assert peer.read(*vars_of(ALL)) == SECRET
    assert len(wire.seen) > len(SECRET)
    assert b"weights" not in wire.seen
    assert b"model" not in wire.seen


def vars_of(what):
    return what.name, what.kept, what.identity, what.offset, what.length


def test_without_the_key_nobody_gets_a_piece(meshes):
    """A recorded question gets an answer that only those can read who have the key."""
    owner, leader = meshes
    real = Cipher(owner._pieces.key)
    recorded = real.question(ALL)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.plain_username, stranger.plain_password = USER, owner._pieces.token
        stranger.connect(f"tcp://127.0.0.1:{owner._pieces.port}")
        for frames in (Cipher(os.urandom(KEY)).question(ALL), [b"", b""], [b"junk"], [b"x"] * 5):
            stranger.send_multipart(frames)
        assert not stranger.poll(300)
        stranger.send_multipart(recorded)
        answer = stranger.recv_multipart()
    assert all(b"weights" not in frame for frame in answer)
    with socket.create_connection(("127.0.0.1", owner._pieces.port)) as raw:
        raw.sendall(os.urandom(1000))
    assert reached(leader, owner.port).read(*vars_of(ALL)) == SECRET


@pytest.mark.parametrize("has_token", [True, False])
def test_connections_of_strangers_are_closed(meshes, has_token):
    """One that has no token is, and one with a token after a question that is too large."""
    owner, leader = meshes
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.reconnect_ivl = -1
        if has_token:
            stranger.plain_username, stranger.plain_password = USER, owner._pieces.token
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        with stranger.get_monitor_socket(events) as monitor:
            stranger.connect(f"tcp://127.0.0.1:{owner._pieces.port}")
            if has_token:
                stranger.send_multipart([b"x" * 12, bytes(1 << 20)])
            assert monitor.poll(60_000)
            stranger.disable_monitor()
    assert reached(leader, owner.port).read(*vars_of(ALL)) == SECRET
