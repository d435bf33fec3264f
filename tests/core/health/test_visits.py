"""The findings of many hosts as one table."""

from hpclaunch.core.health.findings import Finding, Grade, failed
from hpclaunch.core.health.visits import SHOWN, Row, Visit, clocks, differences, rows

GOOD = Finding("secret", "as it should be")
BAD = Finding("secret", "open to others", Grade.FAIL, "remove it")


def test_the_same_finding_is_one_row():
    visits = [Visit("n1", (GOOD,)), Visit("n2", (GOOD,)), Visit("n2", (GOOD,))]
    assert rows(visits) == [Row(GOOD, ("n1", "n2"))]


def test_the_worst_comes_first_and_checks_keep_their_order():
    clock = Finding("clock", "synchronised")
    visits = [Visit("n1", (GOOD, clock)), Visit("n2", (BAD, clock))]
    assert rows(visits) == [Row(BAD, ("n2",)), Row(GOOD, ("n1",)), Row(clock, ("n1", "n2"))]


def test_what_differs_on_every_host_is_told_of_a_few():
    visits = [Visit(f"n{i}", (Finding("route", f"10.0.0.{i}"),)) for i in range(1000)]
    *shown, rest = rows(visits)
    assert [row.hosts for row in shown] == [(f"n{i}",) for i in range(SHOWN)]
    assert rest.finding == Finding("route", "similar")
    assert len(rest.hosts) == 1000 - SHOWN


def test_a_failure_is_never_among_the_rest():
    visits = [Visit(f"n{i}", (Finding("secret", str(i)),)) for i in range(1000)]
    visits.append(Visit("last", (BAD,)))
    assert rows(visits)[0] == Row(BAD, ("last",))


def test_failed():
    assert failed([GOOD, BAD])
    assert not failed([GOOD, Finding("clock", "?", Grade.WARN)])


def test_another_torch_on_one_host_is_a_warning():
    versions = ["2.13", "2.12", "2.13"]
    visits = [Visit(f"n{i}", (Finding("torch", v),)) for i, v in enumerate(versions)]
    (difference,) = differences(visits)
    assert difference.grade is Grade.WARN
    assert difference.found == "differs: n0: 2.13; n1: 2.12"
    assert differences(visits[:1] + visits[2:]) == []


def test_clocks():
    assert clocks([("n2", 0.02), ("n3", -0.3)]).grade is Grade.OK
    ahead = clocks([("n2", 0.02), ("n3", 71.26)])
    assert (ahead.grade, ahead.found) == (Grade.WARN, "that of n3 is 71.3 s ahead of the head's")
    behind = clocks([("n2", -2.0), ("n3", 0.1)])
    assert behind.found == "that of n2 is 2.0 s behind the head's"
