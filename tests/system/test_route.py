"""Addresses and interfaces of this very machine."""

import ipaddress
import socket
from types import SimpleNamespace

import pytest

from hpclaunch.system.network import route


def test_loopback_is_no_address_for_others():
    assert route.resolve("localhost") == []
    assert route.resolve("127.0.1.1") == []
    assert route.resolve("192.0.2.7") == ["192.0.2.7"]


def test_loopback_is_no_address_for_others_unless_it_is_asked_for():
    with pytest.raises(OSError, match="localhost resolves to loopback here"):
        route.resolve_patiently("localhost", attempts=1)
    assert "127.0.0.1" in route.resolve_patiently("localhost", attempts=1, loopback=True)


@pytest.mark.parametrize("host", ["", "a..b", "x" * 300, "no such host", "\0"])
def test_what_is_no_host_name(host):
    with pytest.raises(OSError):  # noqa: PT011
        route.resolve_patiently(host, attempts=1)


def test_no_address_at_all_names_the_hosts():
    with pytest.raises(OSError, match=r"no-such-host\.invalid"):
        route.resolve_patiently("no-such-host.invalid", attempts=1)


def test_a_node_of_slurms_cloud_without_a_name(monkeypatch):
    aliases = "ec1:[2001:db8::7]:foo,ec0:192.0.2.7:bar"
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("SLURM_NODE_ALIASES", aliases)
    assert route.resolve_node("ec0") == ["192.0.2.7"]
    assert route.resolve_node("ec1") == ["2001:db8::7"]


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


IPV6 = """\
20010db8000000010000000000000007 04 40 00 80     eth0
20010db8000000020123456789abcdef 04 40 00 01     eth1
00000000000000000000000000000001 01 80 10 80       lo
"""


def test_from_where_this_node_connects(monkeypatch, tmp_path):
    """From any of its addresses that others can reach, and from the one that it has named."""
    (tmp_path / "if_inet6").write_text(IPV6)
    monkeypatch.setattr(route, "_IPV6", tmp_path / "if_inet6")
    monkeypatch.setattr("psutil.net_if_addrs", lambda: INTERFACES)
    assert route.networks_of_node("fe80::7%eth0") == (
        *("192.0.2.7", "198.51.100.7", "2001:db8:0:1::7"),
        *("2001:db8:0:2:123:4567:89ab:cdef", "2001:db8:0:2::/64", "fe80::7"),
    )


def test_from_where_a_node_without_ipv6_connects(monkeypatch, tmp_path):
    monkeypatch.setattr(route, "_IPV6", tmp_path / "missing")
    assert "192.0.2.7" in route.networks_of_node("192.0.2.7")
    for network in route.networks_of_node("192.0.2.7"):
        ipaddress.ip_network(network)


def entry(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return SimpleNamespace(address=address, family=family)


INTERFACES = {
    "lo": [entry("127.0.0.1"), entry("::1"), SimpleNamespace(address="00:00:00", family=17)],
    "eth0": [entry("192.0.2.7"), entry("2001:db8:0:1::7"), entry("fe80::7%eth0")],
    "eth1": [entry("198.51.100.7"), entry("2001:db8:0:2:123:4567:89ab:cdef"), entry("fe80::8")],
}
