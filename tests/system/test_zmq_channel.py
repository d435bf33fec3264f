"""The agents' channel with real sockets: who gets in, who does not, and who has gone."""

import contextlib
import functools
import os
import resource
import signal
import socket
import time

import pytest
import zmq

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.system.network import zmq_channel

SECRET = b"s" * 32
LIMIT = 120  # seconds; far more than any of this takes
MAX = 1 << 16


@pytest.fixture
def keys():
    """Return the keys of a separate job, so that concurrent tests never meet. All of its ports are
    free.
    """
    while True:
        keys = zmq_channel.derive(SECRET, f"{os.getpid()} {time.monotonic_ns()}")
        if all(map(is_free, keys.ports)):
            return keys


def is_free(port):
    with contextlib.suppress(OSError), socket.create_server(("", port)):
        return True
    return False


class Wiring:
    """Channels that share this thread, as agents share none: all are served while one waits."""

    def __init__(self):
        self.inboxes = {}
        self.others = []

    def head(self, keys, agents):
        return self.add(zmq_channel.HeadChannel(keys, agents, MAX))

    def member(self, keys, index):
        return self.add(zmq_channel.MemberChannel(keys, index, ["127.0.0.1"], MAX))

    def stranger(self, port):
        self.others.append(socket.create_server(("127.0.0.1", port)))
        return self.others[-1]

    def add(self, channel):
        self.inboxes[channel] = []
        return channel

    def until(self, channel, kind, limit=LIMIT, speak=lambda: None):
        """The next item of a kind; `speak` is called now and then, as agents repeat themselves."""
        deadline, speaks_at = time.monotonic() + limit, 0.0
        poller = zmq.Poller()
        for served in self.inboxes:
            for s in served.sockets:
                poller.register(s, zmq.POLLIN)
        while (now := time.monotonic()) < deadline:
            if now >= speaks_at:
                speak()
                speaks_at = now + 0.02
            ready = dict(poller.poll(50))
            for served, inbox in self.inboxes.items():
                inbox += served.receive(ready)
            for item in self.inboxes[channel]:
                if isinstance(item, kind):
                    self.inboxes[channel].remove(item)
                    return item
        return None

    def close(self, channel):
        del self.inboxes[channel]
        channel.close()


@pytest.fixture
def wiring():
    wiring = Wiring()
    yield wiring
    for thing in (*wiring.inboxes, *wiring.others):
        thing.close()


def test_who_has_no_index_has_a_number_beyond_them(keys, wiring):
    """The number of such an agent is always the same."""
    head = wiring.head(keys, 3)
    numbers = []
    for word in (b"first", b"second"):
        member = wiring.member(keys, None)
        item = wiring.until(head, zmq_channel.Arrived, speak=lambda m=member, w=word: m.send(0, w))
        while item.data != word:
            item = wiring.until(head, zmq_channel.Arrived)
        numbers.append(item.sender)
        head.send(item.sender, b"welcome, " + word)
        assert wiring.until(member, zmq_channel.Arrived).data == b"welcome, " + word
        member.send(0, b"again")
        while item.data != b"again":
            item = wiring.until(head, zmq_channel.Arrived)
        numbers.append(item.sender)
    assert numbers == [3, 3, 4, 4]


def test_the_users_own_port_comes_first(wiring):
    port = 20000 + os.getpid() % 10000
    mine = zmq_channel.derive(SECRET, f"own {os.getpid()} {time.monotonic_ns()}", port)
    assert mine.ports[0] == port
    head = wiring.head(mine, 2)
    member = wiring.member(mine, 1)
    assert wiring.until(member, zmq_channel.Reached)
    deadline = time.monotonic() + LIMIT
    while not head.reached:  # its end of the handshake may come later
        assert time.monotonic() < deadline
        wiring.until(head, zmq_channel.Arrived, 0.05)


def test_a_member_finds_the_head_and_they_talk(keys, wiring):
    member = wiring.member(keys, 3)  # the head comes later
    head = wiring.head(keys, 4)
    assert wiring.until(member, zmq_channel.Reached)
    member.send(0, b"hello")
    assert wiring.until(head, zmq_channel.Arrived) == zmq_channel.Arrived(3, b"hello", "127.0.0.1")
    assert len(member.targets) == len(keys.ports)
    head.send(3, b"order")
    assert wiring.until(member, zmq_channel.Arrived) == zmq_channel.Arrived(
        0, b"order", "127.0.0.1"
    )
    assert member.targets == [("127.0.0.1", head.port)]  # and it asks at no other


def test_a_head_that_is_reached_again_has_the_same_address(keys, wiring):
    """Workers get this address as MASTER_ADDR, and choose their interface by it."""
    head, member = wiring.head(keys, 2), wiring.member(keys, 1)
    for _ in range(2):
        assert wiring.until(member, zmq_channel.Reached) == zmq_channel.Reached(0, "127.0.0.1")
        wiring.close(head)
        head = wiring.head(keys, 2)


def test_of_a_head_with_two_addresses_one_is_left(keys, wiring):
    """Otherwise the head answers on one connection, and messages on the other are lost."""
    member = wiring.add(zmq_channel.MemberChannel(keys, 1, ["127.0.0.1", "127.0.0.2"], MAX))
    head = wiring.head(keys, 2)
    assert wiring.until(head, zmq_channel.Arrived, speak=lambda: member.send(0, b"hello"))
    head.send(1, b"order")
    assert wiring.until(member, zmq_channel.Arrived)
    assert len(member.targets) == 1
    for burst in range(3):  # what is sent while the other connection ends may be lost with it
        sent, heard = [b"%d %d" % (burst, number) for number in range(11)], []
        for data in sent[:-1]:
            member.send(0, data)
        while sent[-1] not in heard:
            again = functools.partial(member.send, 0, sent[-1])
            item = wiring.until(head, zmq_channel.Arrived, speak=again)
            heard += [item.data] * (item.data in sent)
        if heard == sent:
            break
    else:
        pytest.fail(f"{heard} of {sent}")
    head.send(1, b"another")
    assert wiring.until(member, zmq_channel.Arrived).data == b"another"


def test_an_agent_without_an_index_at_the_second_address_of_a_head(keys, wiring):
    addresses = ["192.0.2.1", "127.0.0.1"]  # nobody has the first one
    member = wiring.add(zmq_channel.MemberChannel(keys, None, addresses, MAX))
    head = wiring.head(keys, 2)
    heard = wiring.until(head, zmq_channel.Arrived, speak=lambda: member.send(0, b"hello"))
    assert (heard.sender, heard.data) == (2, b"hello")
    head.send(2, b"order")
    assert wiring.until(member, zmq_channel.Arrived).data == b"order"


def test_a_taken_port_is_no_error_and_a_stranger_is_never_spoken_to(keys, wiring):
    stranger = wiring.stranger(keys.ports[0])
    head = wiring.head(keys, 2)
    assert head.port in keys.ports[1:]
    member = wiring.member(keys, 1)
    assert (
        wiring.until(head, zmq_channel.Arrived, speak=lambda: member.send(0, b"hello")).data
        == b"hello"
    )
    head.send(1, b"order")
    assert wiring.until(member, zmq_channel.Arrived).data == b"order"
    stranger.settimeout(LIMIT)
    connection, _ = stranger.accept()
    with connection:
        connection.settimeout(1)
        heard = b""
        try:
            while chunk := connection.recv(4096):
                heard += chunk
        except TimeoutError:
            pass
    assert b"hello" not in heard


def test_all_ports_taken_says_which(keys, wiring):
    for port in keys.ports:
        wiring.stranger(port)
    with pytest.raises(UsageError, match=f"none of this job's ports is free.*{keys.ports[0]}"):
        zmq_channel.HeadChannel(keys, 2, MAX)


@pytest.mark.parametrize(
    "stranger",
    [
        zmq_channel.derive(b"t" * 32, "7.0"),  # another user's secret
        zmq_channel.derive(SECRET, "8.0"),  # the same user's other job
    ],
)
def test_who_has_other_keys_does_not_get_in(keys, wiring, stranger):
    head = wiring.head(keys, 2)
    aimed = zmq_channel.Keys(
        head_public=stranger.head_public,
        head_secret=stranger.head_secret,
        member_public=stranger.member_public,
        member_secret=stranger.member_secret,
        death_secret=b"",
        ports=(head.port,),
    )
    intruder, deadline = wiring.member(aimed, 1), time.monotonic() + LIMIT
    while not head.refused:  # the head can say so
        assert time.monotonic() < deadline
        assert not wiring.until(
            head, zmq_channel.Arrived, 0.5, speak=lambda: intruder.send(0, b"let me in")
        )
    while not intruder.is_refused:  # and so can the other one
        assert time.monotonic() < deadline
        wiring.until(intruder, zmq_channel.Reached, 0.5)
    assert not intruder.reached


def test_a_head_that_is_busy_refuses_nobody(keys, wiring, monkeypatch):
    """The head closes connections that it has not authenticated in time, but has the same keys."""
    monkeypatch.setattr(zmq_channel, "HANDSHAKE", 2000)
    head, member = wiring.head(keys, 2), wiring.member(keys, 1)
    with monkeypatch.context() as busy:
        busy.setattr(head, "receive", lambda _: [])
        assert wiring.until(member, zmq_channel.Reached, limit=2.5) is None
    assert not member.is_refused
    assert wiring.until(member, zmq_channel.Reached)


def test_a_head_that_dies_refuses_nobody(keys, wiring):
    """A dying head closes what it has not authenticated; the notice of its death does so, too."""
    member, deadline = wiring.member(keys, 1), time.monotonic() + LIMIT
    with socket.create_server(("127.0.0.1", keys.ports[0])) as head:
        head.settimeout(LIMIT)
        for _ in range(3):
            head.accept()[0].close()
            wiring.until(member, zmq_channel.Reached, 0.2)
        assert member.is_refused
    while member.is_refused:
        assert time.monotonic() < deadline
        wiring.until(member, zmq_channel.Reached, 0.1)


def test_another_program_that_connects_is_not_refused_for_its_keys(keys, wiring):
    head = wiring.head(keys, 2)
    without_keys = GREETING.replace(b"CURVE", b"NULL\0")
    for first in (b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", without_keys):
        with socket.create_connection(("127.0.0.1", head.port)) as stranger:
            stranger.sendall(first)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(1000):
                    pass
    assert wiring.until(head, zmq_channel.Arrived, limit=0.2) is None
    assert head.refused == 0


def test_who_knows_only_the_heads_public_key_does_not_get_in(keys, wiring):
    head = wiring.head(keys, 2)
    public, secret = zmq.curve_keypair()
    aimed = zmq_channel.Keys(keys.head_public, b"", public, secret, b"", (head.port,))
    intruder = wiring.member(aimed, 1)
    assert (
        wiring.until(head, zmq_channel.Arrived, 1, speak=lambda: intruder.send(0, b"let me in"))
        is None
    )


def test_without_curve_nobody_gets_in(keys, wiring):
    head = wiring.head(keys, 2)
    context = zmq.Context()
    plain = context.socket(zmq.DEALER)
    plain.linger = 0
    plain.routing_id = b"1"
    plain.connect(f"tcp://127.0.0.1:{head.port}")
    plain.send(b"let me in")
    assert wiring.until(head, zmq_channel.Arrived, 1) is None
    plain.close()
    context.term()


@pytest.mark.parametrize("index", [0, 2, 99])
def test_an_index_that_is_not_of_this_job_is_ignored(keys, wiring, index):
    head = wiring.head(keys, 2)
    member = wiring.member(keys, index)
    assert (
        wiring.until(head, zmq_channel.Arrived, 1, speak=lambda: member.send(0, b"hello")) is None
    )


def test_a_message_over_the_limit_ends_the_connection(keys, wiring):
    head = wiring.head(keys, 2)
    member = wiring.member(keys, 1)
    assert wiring.until(member, zmq_channel.Reached)
    member.send(0, b"x" * (MAX + 1))
    assert wiring.until(head, zmq_channel.Arrived, 1) is None
    assert (
        wiring.until(head, zmq_channel.Arrived, speak=lambda: member.send(0, b"small")).data
        == b"small"
    )


@pytest.mark.starts
def test_a_killed_peer_is_noticed_on_both_sides(keys, wiring):
    member = wiring.member(keys, 1)
    ready, write_end = os.pipe()
    head = os.fork()
    if not head:
        wiring = Wiring()
        channel = wiring.head(keys, 2)
        wiring.until(channel, zmq_channel.Arrived)
        channel.send(1, b"order")
        os.write(write_end, b".")
        time.sleep(LIMIT)
        os._exit(0)
    assert (
        wiring.until(member, zmq_channel.Arrived, speak=lambda: member.send(0, b"hello")).data
        == b"order"
    )
    os.read(ready, 1)
    os.kill(head, signal.SIGKILL)
    os.waitpid(head, 0)
    assert wiring.until(member, zmq_channel.Closed) == zmq_channel.Closed(0)
    wiring.close(member)  # it would come back, and keep out the other one of its index

    head_channel = wiring.head(keys, 2)
    other = wiring.member(keys, 1)
    assert wiring.until(head_channel, zmq_channel.Arrived, speak=lambda: other.send(0, b"hello"))
    wiring.close(other)
    assert wiring.until(head_channel, zmq_channel.Closed) == zmq_channel.Closed(1)


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.mark.starts
@pytest.mark.parametrize(
    "first", [b"", GREETING[:1], GREETING], ids=["nothing", "one byte", "a greeting"]
)
def test_strangers_cannot_hold_their_connections(keys, wiring, first):
    """The strangers use every descriptor of the head, and send only this."""
    ready, write_end = os.pipe()
    head = os.fork()
    if not head:
        wiring = Wiring()
        channel = wiring.head(keys, 2)
        files = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (files + 32,) * 2)
        os.write(write_end, channel.port.to_bytes(2, "big"))
        wiring.until(channel, zmq_channel.Arrived)
        channel.send(1, b"order")
        time.sleep(LIMIT)
        os._exit(0)
    port = int.from_bytes(os.read(ready, 2), "big")
    try:
        for _ in range(64):
            stranger = socket.create_connection(("127.0.0.1", port))
            stranger.sendall(first)
            wiring.others.append(stranger)
        member = wiring.member(keys, 1)
        heard = wiring.until(member, zmq_channel.Arrived, speak=lambda: member.send(0, b"hello"))
        assert heard.data == b"order"
    finally:
        os.kill(head, signal.SIGKILL)
        os.waitpid(head, 0)


def test_secrets_are_not_printed(keys):
    assert keys.head_secret.decode() not in repr(keys)
    assert keys.member_secret.decode() not in repr(keys)


def test_jobs_have_keys_and_ports_of_their_own():
    one, other = zmq_channel.derive(SECRET, "7.0"), zmq_channel.derive(SECRET, "8.0")
    assert one == zmq_channel.derive(SECRET, "7.0")
    assert not {one.head_public, one.member_public} & {other.head_public, other.member_public}
    assert one.ports != other.ports
    assert all(port in zmq_channel.PORTS for port in one.ports)
