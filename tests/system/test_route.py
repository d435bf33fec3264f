"""Addresses and interfaces of this very machine."""

import socket

import pytest

from hpclaunch.system.network import route


def test_loopback_is_no_address_for_others():
    assert route.resolve("localhost") == []
    assert route.resolve("127.0.1.1") == []
    assert route.resolve("192.0.2.7") == ["192.0.2.7"]


def test_the_first_host_with_an_address_is_taken():
    assert route.resolve_any(["localhost", "192.0.2.7"], attempts=1) == ["192.0.2.7"]


def test_loopback_is_no_address_for_others_unless_it_is_asked_for():
    with pytest.raises(OSError, match="localhost resolves to loopback here"):
        route.resolve_any(["localhost"], attempts=1)
    assert "127.0.0.1" in route.resolve_any(["localhost"], attempts=1, loopback=True)


@pytest.mark.parametrize("host", ["", "a..b", "x" * 300, "no such host", "\0"])
def test_what_is_no_host_name(host):
    with pytest.raises(OSError):  # noqa: PT011
        route.resolve_any([host], attempts=1)


def test_no_address_at_all_names_the_hosts():
    with pytest.raises(OSError, match=r"no-such-host\.invalid"):
        route.resolve_any(["no-such-host.invalid"], attempts=1)


def test_the_way_to_oneself():
    assert route.source_address("127.0.0.1") == "127.0.0.1"
    assert route.interface_of("127.0.0.1") == "lo"
    assert route.interface_of("192.0.2.7") == ""


def test_every_interface_is_found_by_its_address():
    psutil = pytest.importorskip("psutil")
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family == socket.AF_INET:
                assert route.interface_of(entry.address) == name
