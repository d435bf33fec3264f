"""The assignment that each agent gets for a round, beside its ranks (`test_ranks.py`)."""

from __future__ import annotations

from story import a_job, report

from hpclaunch.core.placement.assigning import assign
from hpclaunch.core.protocol.messages import Report
from hpclaunch.core.protocol.model import Phase


def test_only_the_host_of_the_store_learns_from_where_the_others_connect() -> None:
    reports: dict[int, Report] = {}
    for index, networks in enumerate([("10.0.0.1", "10.1.0.1"), ("10.0.0.2",), ("2001:db8::/64",)]):
        message = report(index, Phase.IDLE, networks=networks).message
        assert isinstance(message, Report)
        reports[index] = message
    more = {"number": 0, "restarts": 0, "checkpoint": ""}
    parts = assign(a_job("n0 n1 n2"), reports, groups=[1, 0, 2], **more)  # type: ignore[arg-type]
    assert {index: part.hosts_store for index, part in parts.items()} == {
        0: False,
        1: True,
        2: False,
    }
    everybody = ("10.0.0.1", "10.0.0.2", "10.1.0.1", "2001:db8::/64")
    assert {index: part.peers for index, part in parts.items()} == {0: (), 1: everybody, 2: ()}


def test_all_get_the_hosts_in_the_order_of_their_ranks() -> None:
    reports: dict[int, Report] = {}
    for index, host in enumerate(["n1", "n1", "n2", "n3"]):
        message = report(index, Phase.IDLE, host=host).message
        assert isinstance(message, Report)
        reports[index] = message
    more = {"number": 0, "restarts": 0, "checkpoint": ""}
    job = a_job("n1 n1 n2 n3")
    parts = assign(job, reports, groups=[2, 0, 1], **more)  # type: ignore[arg-type]
    assert [part.hosts for part in parts.values()] == ["n3,n[1-2]"] * 4
