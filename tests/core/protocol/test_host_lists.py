"""Lists of hosts in Slurm's form."""

from __future__ import annotations

import pytest

from hpclaunch.core.protocol.host_lists import MOST, read, written


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("n1", "n1"),
        ("n1 n2 n3", "n[1-3]"),
        ("n3 n1 n2", "n3,n[1-2]"),
        ("n2 n1", "n2,n1"),
        ("n08 n09 n10 n100", "n[08-10],n100"),
        ("n9 n10 n11", "n9,n[10-11]"),
        ("gpu cpu", "gpu,cpu"),
        ("localhost localhost", "localhost,localhost"),
        ("n1 n1", "n1,n1"),
        (f"n8{19 * '0'} n8{18 * '0'}1", f"n80[{18 * '0'}-{17 * '0'}1]"),
        ("r1n2 r1n3 r2n4 n4-ib", "r1n[2-3],r2n4,n4-ib"),
    ],
)
def test_hosts_are_written_and_read(hosts, text):
    assert written(hosts.split()) == text
    assert list(read(text)) == hosts.split()


def test_a_damaged_list_is_no_burden():
    assert len(list(read("n[1-999999999999]"))) == MOST
    digits = 5000 * "1"
    assert list(read(f"n[{digits}-{digits}]")) == [f"n[{digits}-{digits}]"]
