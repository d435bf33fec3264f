"""Events of the end of workers: each waits until the output before it is in files, if it can."""

from __future__ import annotations

import math
import time

import pytest

from hpclaunch.worker.fork_server_messages import Exit
from hpclaunch.worker.terminals import FLUSH_LIMIT, OrderedEvents

FIRST, SECOND = Exit(0, 1, 0), Exit(1, 0, 0)


class Copier:
    """A stand-in for the streams of workers, whose copier does one flush at a time."""

    done: int | None = 1

    def flush(self, _):
        return True

    def flushed(self):
        return self.done

    def close(self):
        self.done = 1  # the next copier is there


@pytest.fixture
def copier():
    return Copier()


@pytest.fixture
def sent():
    return []


@pytest.fixture
def ordered(copier, sent):
    return OrderedEvents(copier, sent.append)


def test_after_an_event_that_was_sent_late_the_next_one_still_waits(ordered, sent, monkeypatch):
    """The file system has stalled: the flush of the first event is done after its limit."""
    began = time.monotonic()
    ordered.add(FIRST, 0)
    monkeypatch.setattr(time, "monotonic", lambda: began + FLUSH_LIMIT + 1)
    ordered.send_due()
    ordered.add(SECOND, 1)
    ordered.hear_terminals()
    assert sent == [FIRST]
    ordered.hear_terminals()
    assert sent == [FIRST, SECOND]
    assert ordered.due() == math.inf


def test_without_the_copier_all_events_are_sent_and_those_after_it_wait_again(
    ordered, copier, sent
):
    ordered.add(FIRST, 0)
    copier.done = None
    ordered.hear_terminals()
    assert sent == [FIRST]
    ordered.add(SECOND, 1)
    assert sent == [FIRST]
    ordered.hear_terminals()
    assert sent == [FIRST, SECOND]
