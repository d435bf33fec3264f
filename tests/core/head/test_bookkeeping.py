"""What the heads of a job write of the rounds that ended early, put together."""

from __future__ import annotations

import pytest
from crew import Crew

from hpclaunch.core.ledger.book import Book, Category, LedgerEntry
from hpclaunch.core.ledger.job_report import report
from hpclaunch.core.ledger.last_lines import EndCause
from hpclaunch.core.ledger.summing import Launch
from hpclaunch.core.protocol.events import Requested, WorkerExited
from hpclaunch.core.protocol.model import Request
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace


def training(hosts="n0 n1 n2"):
    """Two workers on each."""
    crew = Crew(hosts, fewest=1)
    crew.start(*range(len(hosts.split())))
    crew.until(2.0)
    return crew


def book_of(crew, agent):
    return crew.agents[agent].book(crew.now)


def ends(*books):
    return [(end.round, end.cause, end.who) for end in report([Launch("1.0", books)]).ends]


def test_a_round_that_ends_with_its_head():
    crew = training()
    old = book_of(crew, 0)
    crew.kill(0)
    crew.until(6.0)
    new = book_of(crew, 1)
    assert ends(new) == ends(old, new) == [(0, EndCause.LOST.value, "")]
    (end,) = report([Launch("1.0", (old, new))]).ends
    assert end.text == "the head on n0 was lost"
    assert 1.0 < end.at <= 2.0 <= end.seen


def test_workers_that_fail_for_want_of_the_head_are_no_cause():
    crew = training()
    crew.kill(0, down=True)
    crew.until(2.2)
    crew.tell(1, WorkerExited(2, 1, 0, "RuntimeError: Connection closed by peer"))
    crew.until(20.0)
    (end,) = report([Launch("1.0", (book_of(crew, 1),))]).ends
    assert (end.cause, end.who) == (EndCause.LOST.value, "")
    assert end.consequences == ("rank 2 on n1",)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_head_that_is_lost_after_a_worker_has_failed(is_written):
    """The failure is the cause, whether or not the old head has written it down."""
    crew = training()
    crew.checkpoint = None  # the next round does not begin
    written = book_of(crew, 0)
    crew.tell(1, WorkerExited(2, 1, 0, "ValueError: no"))
    crew.until(3.0)
    written = book_of(crew, 0) if is_written else written
    crew.checkpoint = ""
    crew.kill(0)
    crew.until(8.0)
    assert ends(written, book_of(crew, 1)) == [(0, EndCause.EXCEPTION.value, "rank 2 on n1")]


def test_the_end_of_a_round_is_there_while_its_workers_are_stopped():
    crew = training()
    crew.cut([0], [2])
    crew.tell(0, Requested(Request.RESTART))
    assert crew.agents[0].head.stage is Stage.STOPPING
    written = book_of(crew, 0)
    assert ends(written) == [(0, EndCause.USER.value, "")]
    crew.kill(0)
    crew.until(20.0)
    assert ends(written, book_of(crew, 1)) == [(0, EndCause.USER.value, "")]


def test_the_restarts_of_a_job_that_goes_on():
    crew = training()
    crew.tell(1, WorkerExited(2, 1, 0, "ValueError: no"))
    crew.until(4.0)
    first = Launch("1.0", (book_of(crew, 0),))
    assert report([first]).restarts == 1
    assert report([first, replace(first, name="1.0.r1")]).restarts == 2


def test_the_goodput_of_a_launch_needs_the_books_of_all_heads():
    crew = training()
    assert crew.agents[0].goodput(crew.now) == 0.0
    crew.kill(0)
    crew.until(6.0)
    control = crew.agents[1]
    assert control.lacks_books
    assert control.goodput(crew.now) is None
    trained = LedgerEntry(-100.0, 0.0, 6.0, {Category.TRAINING: 600.0}, None)
    earlier = Book(0, -100.0, 0.0, (trained,))
    control.take_books(control.tenure + 1, earlier)  # asked for by another head
    assert control.lacks_books
    control.take_books(control.tenure, earlier)
    assert control.books(crew.now) == (earlier, book_of(crew, 1))
    assert control.goodput(crew.now) > 0.9


def test_an_agent_that_nobody_follows_yet_writes_nothing(monkeypatch):
    """Another one may have been quicker, and then this one's book would hide that one's."""
    crew = training()
    control, reaches = crew.agents[1], crew._reaches
    monkeypatch.setattr(crew, "_reaches", lambda a, b: a != 1 and reaches(a, b))
    crew.kill(0)
    while not control.leads:
        crew.until(crew.now + 0.1)
    assert not control.head.is_confirmed
    assert (book_of(crew, 1), control.book_changes, control.goodput(crew.now)) == (None, 0, None)
    monkeypatch.undo()
    crew.until(crew.now + 5.0)
    assert control.book_changes > 0
    assert book_of(crew, 1).entries[0].round == 0
