"""The ledger's files, as they are written and read."""

from __future__ import annotations

import pytest

from hpclaunch.core.ledger.book import Book, Category, LedgerEntry
from hpclaunch.core.ledger.job_report import report
from hpclaunch.core.protocol.model import Origin, Verdict
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.logs import ledger_files
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.logs.messages import Books
from hpclaunch.system.shared import packing

BEGIN = 1.7e9
TRAINED = LedgerEntry(BEGIN, BEGIN + 10, 1.0, {Category.TRAINING: 10.0}, 0, (BEGIN, BEGIN + 10))


def text(book, over=False):
    return ledger_files.text(book, launch="71.0", allocated=None, over=over)


def test_names_that_are_no_text(tmp_path):
    verdict = Verdict(2, "no such file: tr\udce4in.py", Origin.USAGE)
    book = Book(0, BEGIN, BEGIN + 10, (TRAINED,), verdict=verdict)
    (tmp_path / "ledger-agent-0.json").write_text(text(book, over=True))
    (launch,), unknown = ledger_files.read(tmp_path)
    assert unknown == []
    assert launch.books == (book,)


def test_a_launch_is_over_when_the_head_that_leads_says_so(tmp_path):
    cut_off = Book(
        0,
        BEGIN,
        BEGIN + 10,
        (TRAINED,),
        verdict=Verdict(1, "too few nodes are left", Origin.NODE_LOST),
    )
    leads = Book(1, BEGIN, BEGIN + 10, (TRAINED,))
    (tmp_path / "ledger-agent-0.json").write_text(text(cut_off, over=True))
    (tmp_path / "ledger-agent-1.json").write_text(text(leads))
    (launch,), _ = ledger_files.read(tmp_path)
    assert not launch.over
    told = report([launch])
    assert (told.over, told.code, told.cause) == (False, None, "")


@pytest.mark.starts
def test_the_log_service_reads_what_earlier_heads_have_written(tmp_path):
    """As one book; not of other launches, and not of later terms."""
    again = Book(1, BEGIN + 10, BEGIN + 20, (replace(TRAINED, begin=BEGIN + 10, end=BEGIN + 20),))
    for number, book in enumerate(
        (Book(0, BEGIN, BEGIN + 10, (TRAINED,)), again, replace(again, term=2))
    ):
        (tmp_path / f"ledger-agent-{number}.json").write_text(text(book))
    other = ledger_files.text(again, launch="70.0", allocated=None, over=False)
    (tmp_path / "ledger-agent-9.json").write_text(other)
    client = LogServiceClient()
    try:
        client.read_books(tmp_path / "nowhere", "71.0", 2)  # no answer
        client.read_books(tmp_path, "71.0", 2)
        client._socket.setblocking(True)
        (told,) = client.replies()
    finally:
        client.close()
    assert (type(told), told.term) == (Books, 2)
    book = packing.unpack(told.book.encode(), Book)
    assert (book.term, book.begin, book.until) == (1, BEGIN, BEGIN + 20)
    assert [entry.round for entry in book.entries] == [0, 0]


@pytest.mark.starts
@pytest.mark.parametrize("heads", [1, 2])
def test_a_report_is_that_of_its_head_or_made_of_all_ledgers(tmp_path, heads):
    for term in range(heads):
        book = Book(term, BEGIN, BEGIN + 10, (TRAINED,))
        (tmp_path / f"ledger-agent-{term}.json").write_text(text(book))
    client = LogServiceClient()
    client.report(tmp_path, "71.0", ledger="ledger-agent-0.json", alone='"of the head"')
    client.close()
    launches, _ = ledger_files.read(tmp_path)
    of_all = ledger_files.to_json(report(launches))
    written = (tmp_path / "report.json").read_text()
    assert written == ('"of the head"' if heads == 1 else of_all)


@pytest.mark.parametrize("end", [-1.0, 1e25, 1e300])
def test_a_book_of_no_possible_time_is_damaged(tmp_path, end):
    book = Book(0, BEGIN, BEGIN + 10, (replace(TRAINED, end=end),))
    (tmp_path / "ledger-agent-0.json").write_text(text(book))
    assert ledger_files.read(tmp_path) == ([], ["ledger-agent-0.json"])


@pytest.mark.parametrize("allocated", [-1e300, 1e300])
def test_an_allocation_of_no_possible_time_is_damaged(tmp_path, allocated):
    book = Book(0, BEGIN, BEGIN + 10, (TRAINED,))
    told = ledger_files.text(book, launch="71.0", allocated=allocated, over=False)
    (tmp_path / "ledger-agent-0.json").write_text(told)
    assert ledger_files.read(tmp_path) == ([], ["ledger-agent-0.json"])


def test_a_file_with_bytes_that_are_no_text_is_damaged(tmp_path):
    written = text(Book(0, BEGIN, BEGIN + 10, (TRAINED,), names=("n1",))).encode()
    (tmp_path / "ledger-agent-0.json").write_bytes(written.replace(b'"n1"', b'"n\xff"'))
    (tmp_path / "ledger-agent-1.json").write_bytes(b'"\xff"')
    assert ledger_files.read(tmp_path) == ([], ["ledger-agent-0.json", "ledger-agent-1.json"])
