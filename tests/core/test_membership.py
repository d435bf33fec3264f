"""When an agent counts as lost."""

from __future__ import annotations

import math

import pytest
from story import a_job

from hpclaunch.core.consensus.contact import Contact, evidence, lost_at

JOB = a_job(loss=10.0)


def contact(*history):
    """A contact after "heard" and "closed" at some times."""
    one = Contact()
    for what, when in history:
        (one.hear if what == "heard" else one.close)(when)
    return one


# What was known of an agent, and when it counts as lost.
TABLE = {
    "never heard": ([], math.inf),
    "never heard, and closed": ([("closed", 3.0)], math.inf),
    "heard": ([("heard", 5.0)], 15.0),
    "heard again": ([("heard", 5.0), ("heard", 6.0)], 16.0),
    "a closed connection says little": ([("heard", 5.0), ("closed", 7.0)], 15.0),
    "closed, then heard": ([("heard", 5.0), ("closed", 7.0), ("heard", 7.5)], 17.5),
}


@pytest.mark.parametrize(("history", "expected"), TABLE.values(), ids=TABLE)
def test_lost_at(history, expected):
    assert lost_at(contact(*history), JOB) == expected


def test_evidence():
    heard, closed = contact(("heard", 5.0)), contact(("heard", 5.0), ("closed", 7.0))
    silent = "it has been silent for 10 s"
    assert evidence(heard, gone=False, now=15.0) == silent
    assert evidence(closed, gone=False, now=15.0) == silent
    dead = "its connection was closed and cannot be made again"
    assert evidence(closed, gone=True, now=8.0) == dead
    assert evidence(contact(), gone=True, now=8.0) == "it is down"
