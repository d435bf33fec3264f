"""The report as text."""

from __future__ import annotations

import time

import pytest

from hpclaunch.core.protocol.facts import Category, EndReason, RoundEnded
from hpclaunch.observe.job_report import report
from hpclaunch.observe.job_report_text import text
from hpclaunch.observe.launches import Launch
from hpclaunch.observe.ledger_entries import LedgerEntry

BEGIN = 1.7e9  # 2023-11-14 22:13:20


def utc(at, form):
    return time.strftime(form, time.gmtime(at))


@pytest.mark.parametrize(("lasted", "when"), [(1000.0, "22:21:40"), (200_000.0, "Nov 16 02:00:00")])
def test_when_a_round_ended(lasted, when):
    """The day is shown if it could be another one."""
    middle, last = BEGIN + lasted / 2, BEGIN + lasted
    trained = LedgerEntry(BEGIN, last, 1.0, {Category.TRAINING: lasted}, 0, (BEGIN, last))
    end = RoundEnded(0, middle, middle, (EndReason.GROWTH,))
    lines = text(report([Launch("1.0", (trained,), (end,))]), "logs", utc)
    assert f"  {when} round 0: more nodes" in lines
