"""All that a page shows of a job, before it is written down."""

from __future__ import annotations

import time

import pytest
from long_jobs import BEGIN, a_launch, pasts_of

from hpclaunch.core.hangs.tracebacks import HangStacks
from hpclaunch.core.protocol.facts import Category, CheckpointSaved, EndReason, LostNode, RoundEnded
from hpclaunch.core.protocol.model import EXIT_SAVED, Culprit, Failure, Origin, Sequel, Verdict
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe import job_page as pages
from hpclaunch.observe.job_page import job_page
from hpclaunch.observe.job_report import report
from hpclaunch.observe.launch_past import Happening, HappeningKind, LaunchPast
from hpclaunch.observe.launches import Launch
from hpclaunch.observe.ledger_entries import LedgerEntry
from hpclaunch.observe.text_style import seat_time

FAILURE = Failure(0, 0, "n1", EXIT_SAVED, 0, BEGIN, "")


def local(at, form):
    return time.strftime(form, time.gmtime(at))


def page_of(launches, histories, stacks=(), pasts=None):
    pasts = pasts_of(*launches) if pasts is None else pasts
    seen = (pasts, histories, stacks)
    return job_page(report(launches), launches, *seen, local, logs=["logs"], version="1.2.3")


def facts(page):
    return {fact.name: fact.value for fact in page.facts}


def job_categories(line):
    """Return those of the bars of the job."""
    return {line.categories[number] for row, number, _, _ in line.bars if line.rows[row] == "job"}


def test_a_job_with_a_failure():
    launch, histories = a_launch(gpus=True)
    page = page_of([launch], histories)
    assert (page.name, page.state, page.result) == ("71.0", "done", "done")
    assert facts(page)["Time"] == "20 m 07 s"
    assert facts(page)["Size"] == "6 GPUs"
    assert facts(page)["Goodput"] == "53.3 %"
    assert [row.family for row in page.ledger] == sorted(
        [row.family for row in page.ledger], key=list(pages.FAMILIES).index
    )
    assert sum(row.part for row in page.ledger) == pytest.approx(1)
    (card,) = page.ends
    assert (card.cause, card.who) == ("GPU fault", "rank 2 on n2")
    assert card.tail.startswith("Traceback")
    line = page.time_line
    lanes = ["rank 0", "rank 1", "rank 2", "rank 3", "n3"]
    assert line.rows == ("rounds", "job", "events", "checkpoints", *lanes)
    fault = next(mark for mark in line.marks if mark.kind == "fault")
    assert [line.rows[row] for row in fault.rows] == ["events", "rank 2"]
    save = next(mark for mark in line.marks if mark.kind == "save")
    assert [line.rows[row] for row in save.rows] == ["checkpoints"]
    assert fault.link == card.anchor
    assert [span.number for span in line.rounds] == [0, 1]
    assert {chart.name: bool(chart.drawn) for chart in (*page.charts, *page.gpu_charts)} == {
        "Steps per second": True,
        "Goodput so far": True,
        "GPU time that was no training, so far": True,
        "Memory of a rank": True,
        "GPUs busy": True,
        "GPU memory in use": True,
        "Hottest GPU": True,
    }


@pytest.mark.parametrize(
    ("verdict", "state", "result"),
    [
        (
            Verdict(1, "rank 0 on n1 exited with code 1", Origin.TROUBLE),
            "failed",
            "failed: other, exit code 1",
        ),
        (
            Verdict(143, "ended by SIGTERM on n1", Origin.SIGNAL),
            "ended",
            "ended: user, exit code 143",
        ),
        (
            Verdict(EXIT_SAVED, "saved, not finished", Origin.TIME_LIMIT),
            *("ended", "not finished: time limit, exit code 75"),
        ),
        (
            Verdict(143, "ended 23 s before the time limit", Origin.TIME_LIMIT),
            *("ended", "not finished: time limit, exit code 143"),
        ),
        (
            Verdict(EXIT_SAVED, "rank 0 exited", Origin.FAILURE, FAILURE, sequel=Sequel.NEXT),
            *("ended", "not finished: exit code, exit code 75"),
        ),
        (
            Verdict(EXIT_SAVED, "rank 0 on n1 exited with code 75", Origin.FAILURE, FAILURE),
            *("failed", "failed: exit code, exit code 75"),
        ),
    ],
)
def test_the_result_of_a_job(verdict, state, result):
    launch, _ = a_launch()
    page = page_of([replace(launch, verdict=verdict)], [])
    assert (page.state, page.result) == (state, result)


def test_without_a_history_the_ledger_is_shown():
    launch, _ = a_launch()
    page = page_of([launch], [], pasts={})
    assert page.time_line.lanes == 0
    assert job_categories(page.time_line) >= {"training"}
    assert page.gpu_charts == ()
    assert page.charts[0].empty


def test_a_job_of_no_time():
    page = page_of([Launch("71.0", (LedgerEntry(BEGIN, BEGIN, 0.0, {}),))], [], pasts={})
    assert (page.state, page.ledger, page.ends) == ("running", (), ())
    assert page.end > page.begin


def test_requeued_jobs_are_one():
    first, noted = a_launch("71.0")
    second, more = a_launch("71.1", begin=BEGIN + 5000)
    page = page_of([first, second], [*noted, *more])
    assert page.name == "71.0, 71.1"
    assert [span.number for span in page.time_line.rounds] == [0, 1, 0, 1]
    assert job_categories(page.time_line) >= {"job script"}
    assert len(page.ends) == 2


def test_a_running_job_lasts_until_the_newest_moment():
    launch, histories = a_launch(over=False)
    at = launch.until + 60
    newest = replace(histories[0].moments[-1], at=at)
    histories[0] = replace(histories[0], moments=(*histories[0].moments, newest))
    length = at - launch.allocated
    assert page_of([launch], histories).end == at + pages.ROOM * length


def test_a_node_that_is_lost_and_one_that_never_had_workers_have_lanes():
    launch, _ = a_launch()
    nodes = {"n1": ((BEGIN, Category.WAITING), (BEGIN + 50, Category.LOST)), "n2": ()}
    happened = (Happening(BEGIN + 50, HappeningKind.NODE, "n1 is lost", "n1"),)
    page = page_of([launch], [], pasts={launch.name: LaunchPast(nodes, (), happened)})
    assert ("node", "n1 is lost") in [(kind.value, text) for _, kind, text, _ in page.events]
    line = page.time_line
    assert line.rows[4:] == ("n1", "n2")
    assert {line.categories[c] for row, c, _, _ in line.bars if row == 4} == {
        "waiting for nodes",
        "lost or cordoned",
    }


def test_a_cause_is_not_among_its_consequences():
    launch, histories = a_launch()
    lost = ("the agent on n1 was lost", "the agent on n2 was lost")
    nodes = tuple(LostNode(f"n{i}", why, is_unfit=False) for i, why in enumerate(lost, start=1))
    end = RoundEnded(0, BEGIN + 5, BEGIN + 6, (EndReason.LOSS,), lost=nodes)
    (card,) = page_of([replace(launch, ends=(end,))], histories).ends
    assert (card.text, card.consequences) == (lost[0], lost[1:])


def test_stacks_of_a_hang_are_those_of_its_round_and_time():
    launch, histories = a_launch()
    (end,) = launch.ends
    hung = Failure(0, 3, "n2", 1, 0, end.at, "", culprit=Culprit.HANG)
    launch = replace(launch, ends=(replace(end, failures=(hung,)),))
    stacks = [
        HangStacks(0, end.seen + 9000, "of another launch", (("rank-3.txt", "no"),)),
        HangStacks(0, end.seen, "logs/round-0/evidence", (("rank-3.txt", "in all_reduce\x1b[2J"),)),
    ]
    (card,) = page_of([launch], histories, stacks).ends
    assert card.cause == "hang"
    assert card.stacks == (("rank-3.txt", "in all_reduce?[2J"),)
    assert card.stacks_at == "logs/round-0/evidence"


def test_long_output_and_many_events_are_cut():
    launch, histories = a_launch(rounds=300, moments=2, tail="x" * 4000)
    page = page_of([launch], histories)
    assert [end.round for end in page.ends] == list(range(299))
    assert sum(len(end.tail) for end in page.ends) <= pages.MOST_TEXT
    assert len(page.events) == pages.MOST_EVENTS
    marks = [mark for mark in page.time_line.marks if mark.kind == "save"]
    assert len(marks) <= pages.MOST_MARKS + 1


def test_nodes_have_lanes_where_ranks_are_many():
    launch, histories = a_launch(nodes=30, per_node=4)
    line = page_of([launch], histories).time_line
    assert line.lanes == 31
    assert not line.of_ranks
    assert line.rows[4:6] == ("n1", "n2")


def test_unprintable_names_are_made_harmless():
    launch, histories = a_launch("71\x1b[2J", host="n{}\u202e")
    page = page_of([launch], histories)
    assert page.name == "71?[2J"
    assert page.ends[0].who == "rank 2 on n2?"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (61, "1 m 01 s"), (7800, "2 h 10 m")]
)
def test_times(seconds, text):
    assert seat_time(seconds) == text


@pytest.mark.parametrize(
    ("length", "unit", "seconds"), [(20, " s", 1), (600, " min", 60), (36_000, " h", 3600)]
)
def test_lost_time_has_a_unit_that_fits(length, unit, seconds):
    """The areas of the chart have their points at the same times, and add up."""
    launch, histories = a_launch(length=length, nodes=1, per_node=1)
    chart = next(c for c in page_of([launch], histories).charts if "no training" in c.name)
    spent = report([launch]).seconds
    lost = sum(spent.values()) - spent["training"]
    assert chart.unit == unit
    assert len({tuple(x for x, _ in area.points) for area in chart.drawn}) == 1
    assert sum(area.points[-1][1] for area in chart.drawn) * seconds == pytest.approx(lost, 0.01)


def test_every_category_has_a_family():
    """Each category is in exactly one family."""
    named = [category for family in pages.FAMILIES.values() for category in family]
    assert sorted(named) == sorted(Category)


def test_a_save_is_shown_once_and_only_if_it_is_of_this_job():
    launch, _ = a_launch()
    past = LaunchPast()
    for at in (launch.begin - 3600, launch.begin + 99.499, launch.begin + 99.501):
        past.note(CheckpointSaved("7.pt", 7, 100, 0.0), at)
    page = page_of([launch], [], pasts={launch.name: past})
    saves = [text for _, kind, text, _ in page.events if kind == "save"]
    assert saves == ["a checkpoint of step 7 is complete"]
    assert len([mark for mark in page.time_line.marks if mark.kind == "save"]) == 1


def test_a_checkpoint_from_before_the_job_is_no_save_of_it():
    launch, _ = a_launch()
    past = LaunchPast()
    past.note(CheckpointSaved("7.pt", 7, 100, 3600.0), launch.begin)
    page = page_of([launch], [], pasts={launch.name: past})
    assert "Checkpoint" not in facts(page)
    assert not [kind for _, kind, _, _ in page.events if kind == "save"]
