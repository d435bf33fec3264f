"""A port for some addresses only, with connections from the many addresses of loopback."""

import encodings.idna  # noqa: F401  # somebody else may not be able to read Python's files
import errno
import os
import socket
import traceback

import pytest

from hpclaunch.worker.guarded_port import GuardedPort

SOURCES = ("127.0.0.2", "127.0.0.3", "127.1.1.2", "::1")
MANY = [f"10.{n >> 8}.{n & 255}.{m}" for n in range(2048) for m in (1, 9)]  # no two are neighbours
MANY6 = [f"2001:db8:{n:x}::1" for n in range(1024)]

LIMIT = 120  # seconds; far more than any of this takes

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")


@pytest.fixture
def guard():
    guard = GuardedPort(())
    yield guard
    guard.socket.close()
    guard.close()


def connects(guard, source, wait):
    """Return whether a connection is accepted, within `wait` seconds if it is not to be."""
    loopback = "::1" if ":" in source else "127.0.0.1"
    target = (loopback, guard.socket.getsockname()[1])
    try:
        with socket.create_connection(target, timeout=wait, source_address=(source, 0)):
            guard.socket.settimeout(wait)
            connection, (address, *_) = guard.socket.accept()
            connection.close()
            return address.removeprefix("::ffff:") == source
    except TimeoutError:
        return False


@needs_ipv6
@pytest.mark.parametrize(
    ("networks", "admitted"),
    [
        ([], []),
        (["127.0.0.2"], ["127.0.0.2"]),
        (["127.0.0.3", "::1"], ["127.0.0.3", "::1"]),
        (["127.0.0.0/24", "::2", "2001:db8::1"], ["127.0.0.2", "127.0.0.3"]),
        (["192.0.2.1", "127.1.1.0/30", "::/64"], ["127.1.1.2", "::1"]),
        (["0.0.0.0/0"], ["127.0.0.2", "127.0.0.3", "127.1.1.2"]),
        ([*MANY, "127.0.0.2", *MANY6], ["127.0.0.2", "127.0.0.3"]),
    ],
    ids=["nobody", "one", "two", "a network", "networks", "all of IPv4", "so many that they widen"],
)
def test_who_connects(guard, networks, admitted):
    guard.admit(networks)
    for source in SOURCES:
        expected = source in admitted
        assert connects(guard, source, wait=LIMIT if expected else 0.3) == expected, source


def test_an_early_connection_is_made_once_its_address_is_admitted(guard):
    with socket.socket() as early:
        early.setblocking(False)
        assert early.connect_ex(("127.0.0.1", guard.socket.getsockname()[1])) == errno.EINPROGRESS
        assert not connects(guard, "127.0.0.2", wait=0.3)
        guard.admit(["127.0.0.1"])
        guard.socket.settimeout(LIMIT)
        connection, (address, *_) = guard.socket.accept()
        connection.close()
        assert address.removeprefix("::ffff:") == "127.0.0.1"


def test_nobody_waits_for_a_socket_that_is_closed(guard):
    guard.admit(["127.0.0.2"])
    target = ("127.0.0.1", guard.socket.getsockname()[1])
    guard.socket.close()
    guard.close()
    for source in SOURCES[:2]:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(target, timeout=LIMIT, source_address=(source, 0))


@pytest.mark.starts
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_takes_no_privilege():
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            GuardedPort(()).admit(["192.0.2.1", "2001:db8::/64"])
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
