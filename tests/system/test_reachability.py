"""Why a host cannot be reached, with real sockets on this machine."""

import itertools
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from hpclaunch.system.network import reachability
from hpclaunch.system.network.reachability import Answer


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as s:
        yield s.getsockname()[1]


@pytest.fixture
def closed():
    """Yield a port that is bound, so that nobody listens on it."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        yield s.getsockname()[1]


@pytest.fixture
def silent():
    """Yield a port that never answers, since its queue of connections is full."""
    waiting = []
    with socket.create_server(("127.0.0.1", 0), backlog=0) as s:
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(s.getsockname())
        yield s.getsockname()[1]
    for one in waiting:
        one.close()


def test_each_answer(listener, closed, silent):
    found = reachability.probe(["127.0.0.1"], [listener, closed, silent], timeout=0.3)
    assert found == {
        ("127.0.0.1", listener): Answer.OPEN,
        ("127.0.0.1", closed): Answer.REFUSED,
        ("127.0.0.1", silent): Answer.SILENT,
    }


def test_answers_count_that_come_before_a_busy_machine_looks(listener, closed, monkeypatch):
    late = SimpleNamespace(monotonic=itertools.count(0.0, 1000.0).__next__)
    monkeypatch.setattr(reachability, "time", late)
    found = reachability.probe(["127.0.0.1"], [listener, closed], timeout=0.3)
    assert [*found.values()] == [Answer.OPEN, Answer.REFUSED]


def test_words_for_each(listener, closed, silent):
    said = reachability.explain("n1", ["127.0.0.1"], [listener, closed])
    assert said.startswith(f"something listens on n1 (127.0.0.1, port {listener})")
    said = reachability.explain("n1", ["127.0.0.1"], [closed, silent], timeout=0.1)
    assert said.startswith("n1 (127.0.0.1) is up, but nothing listens there")
    said = reachability.explain("n1", ["127.0.0.1"], [silent], timeout=0.1)
    assert said.startswith("n1 (127.0.0.1) does not answer at all")


@pytest.mark.parametrize(
    ("found", "cut_off"),
    [
        ([], False),
        ([Answer.SILENT, Answer.NO_ROUTE], True),
        ([Answer.SILENT, Answer.REFUSED], False),
        ([Answer.OPEN], False),
    ],
)
def test_a_host_from_which_nothing_comes_back(found, cut_off):
    each = {("192.0.2.7", port): answer for port, answer in enumerate(found)}
    assert reachability.is_cut_off(each) is cut_off


def test_ipv6(closed):
    try:
        s = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as e:
        pytest.skip(f"no IPv6 here: {e}")
    with s:
        assert set(reachability.probe(["::1"], [s.getsockname()[1]], 60).values()) == {Answer.OPEN}


@pytest.mark.starts
def test_no_route():
    """The host has only a loopback interface, which is down."""
    program = (
        "from hpclaunch.system.network import reachability\n"
        "print(reachability.explain('n1', ['192.0.2.7'], [22]))"
    )
    command = ["unshare", "--net", sys.executable, "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.startswith("there is no route from here to n1 (192.0.2.7)"), done.stderr
    assert done.stdout.endswith("ip route get 192.0.2.7\n")


@pytest.mark.parametrize("addresses", [[], ["n1"], [""], ["1.2.3.4:5"], ["\0"], ["x" * 300]])
def test_what_cannot_be_tried_says_nothing(addresses):
    assert reachability.explain("n1", addresses, [22]) == ""


@pytest.mark.starts
def test_without_descriptors_it_says_nothing():
    program = (
        "import resource; from hpclaunch.system.network import reachability\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "print([reachability.explain('n1', ['127.0.0.1'], [22])])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['']\n", done.stderr


def test_many_ports_are_not_all_named():
    found = {("10.0.0.1", port): Answer.SILENT for port in range(20000, 20008)}
    said = reachability.in_words("n1", found)
    assert "port 20000, 20001, 20002, 20003 and 4 more" in said
