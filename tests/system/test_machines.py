"""Several machines without Slurm."""

import os
import socket
import subprocess
import sys

import pytest

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.system.hosts import machines


@pytest.fixture(autouse=True)
def claims():
    yield
    while machines._claims:
        machines._claims.pop().close()


def test_numbered_machines():
    head = machines.fixed(0, 3, "a", 29500, run_id="r", name="x", here="n1")
    last = machines.fixed(2, 3, "a", 29500, run_id="r", name="y", here="n3")
    assert [p.host for p in head.places] == ["n1", "machine 1", "machine 2"]
    assert [p.host for p in last.places] == ["a", "machine 1", "n3"]
    assert (head.index, last.index) == (0, 2)
    assert head.identity == last.identity, "the keys are the same"
    assert last.endpoint == ("a", 29500)
    with pytest.raises(UsageError, match="--node-rank 3"):
        machines.fixed(3, 3, "a", 29500, run_id="r", name="x", here="n1")


def come(host, run_id, head=None):
    who = {"name": "x", "here": "n1", "head": head, "shared": b"ours"}
    return machines.first_come(2, host, 7, run_id=run_id, **who)


NAMES = {"short": "", "long": "x" * 200, "not ASCII": "ü" * 60, "not UTF-8": "\udcff"}


@pytest.mark.starts
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_first_on_the_named_machine_is_the_head(name):
    """The next one, in another process, is not; this needs no other machine."""
    run_id = f"{name}-first-{os.getpid()}"
    code = (
        "import sys; from hpclaunch.system.hosts import machines\n"
        "who = {'name': 'x', 'here': 'n1', 'head': None, 'shared': sys.argv[2].encode()}\n"
        "it = machines.first_come(2, 'localhost', 7, run_id=sys.argv[1], **who)\n"
        "print(it.index)"
    )

    def another(shared="ours"):
        words = [sys.executable, "-c", code, run_id, shared]
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()

    assert another() == "0"
    here = come("localhost", run_id)
    assert (here.index, here.has_place) == (0, True)
    assert another() == "1"
    assert another("theirs") == "0", "who does not have the secret cannot make the same claim"


def test_a_machine_elsewhere_is_no_head_unless_it_says_so():
    here = come("192.0.2.1", "b")
    assert (here.index, here.has_place) == (1, False)
    assert come("192.0.2.1", "b", head=True).index == 0


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", socket.gethostname()])
def test_local_names(host):
    assert machines.is_local(host)


def test_an_address_of_this_machine_that_the_user_has_chosen():
    assert machines.own_address("127.0.0.1") == ""
    assert machines.own_address("127.0.0.1", loopback=True) == "127.0.0.1"
    assert machines.own_address("lo") == ""
    assert machines.own_address("lo", loopback=True) == "127.0.0.1"
    assert machines.own_address("192.0.2.1") == machines.own_address("no-such-host.invalid") == ""


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "", "a..b", "x" * 300])
def test_other_names(host):
    assert not machines.is_local(host) or host == ""


def test_where_a_claim_holds():
    """Two claims with the same answer cannot be held at once."""
    held = machines.claim(f"held-{os.getpid()}")
    assert machines.claim(f"held-{os.getpid()}") is None
    other = machines.claim(f"other-{os.getpid()}")
    with held, other, socket.socket(socket.AF_UNIX) as refused:
        assert machines.scope(held) == machines.scope(other) != ""
        assert machines.scope(refused) == ""
