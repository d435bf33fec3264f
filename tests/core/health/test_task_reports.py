"""The findings of many hosts as one table."""

from hpclaunch.core.health.findings import Finding, Grade, failed
from hpclaunch.core.health.task_reports import (
    SHOWN,
    Row,
    TaskReport,
    clocks,
    differences,
    rows,
)

GOOD = Finding("secret", "as it should be")
BAD = Finding("secret", "open to others", Grade.FAIL, "remove it")


def test_the_same_finding_is_one_row():
    reports = [TaskReport("n1", (GOOD,)), TaskReport("n2", (GOOD,)), TaskReport("n2", (GOOD,))]
    assert rows(reports) == [Row(GOOD, ("n1", "n2"))]


def test_the_worst_comes_first_and_checks_keep_their_order():
    clock = Finding("clock", "synchronised")
    reports = [TaskReport("n1", (GOOD, clock)), TaskReport("n2", (BAD, clock))]
    assert rows(reports) == [Row(BAD, ("n2",)), Row(GOOD, ("n1",)), Row(clock, ("n1", "n2"))]


def test_what_differs_on_every_host_is_shown_for_a_few():
    reports = [TaskReport(f"n{i}", (Finding("route", f"10.0.0.{i}"),)) for i in range(1000)]
    *shown, rest = rows(reports)
    assert [row.hosts for row in shown] == [(f"n{i}",) for i in range(SHOWN)]
    assert rest.finding == Finding("route", "similar")
    assert len(rest.hosts) == 1000 - SHOWN


def test_a_failure_is_never_among_the_rest():
    reports = [TaskReport(f"n{i}", (Finding("secret", str(i)),)) for i in range(1000)]
    reports.append(TaskReport("last", (BAD,)))
    assert rows(reports)[0] == Row(BAD, ("last",))


def test_failed():
    assert failed([GOOD, BAD])
    assert not failed([GOOD, Finding("clock", "?", Grade.WARN)])


def test_another_torch_on_one_host_is_a_warning():
    versions = ["2.13", "2.12", "2.13"]
    reports = [TaskReport(f"n{i}", (Finding("torch", v),)) for i, v in enumerate(versions)]
    (difference,) = differences(reports)
    assert difference.grade is Grade.WARN
    assert difference.found == "differs: n0: 2.13; n1: 2.12"
    assert differences(reports[:1] + reports[2:]) == []


def test_clocks():
    assert clocks([("n2", 0.02), ("n3", -0.3)]).grade is Grade.OK
    ahead = clocks([("n2", 0.02), ("n3", 71.26)])
    assert (ahead.grade, ahead.found) == (
        Grade.WARN,
        "the clock of n3 is 71.3 s ahead of the first host's",
    )
    assert "a complete checkpoint may be passed over" in ahead.advice
    behind = clocks([("n2", -2.0), ("n3", 0.1)])
    assert behind.found == "the clock of n2 is 2.0 s behind the first host's"
