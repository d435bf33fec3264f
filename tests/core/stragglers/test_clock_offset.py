"""The offset of the head's clock, from messages that are sent in any case."""

from __future__ import annotations

from random import Random

from hpclaunch.core.protocol.timing import Timing
from hpclaunch.core.stragglers.clock_offset import DRIFT, ClockOffset

HEAD, OTHER = 0, 1


def exchange(offset, serial, sent, *, there=0.001, back=0.001, ahead=100.0, head=HEAD):
    """Exchange a report and the order that answers it; return the time at which that has come."""
    offset.report_sent(serial, sent)
    offset.hear(head, serial, sent + there + ahead, sent + there + back)
    return sent + there + back


def test_it_is_known_after_one_exchange():
    offset = ClockOffset()
    assert offset.of(HEAD, 0.0) is None
    now = exchange(offset, 1, 5.0)
    assert offset.of(HEAD, now).seconds == 100.0
    assert 0.00099 < offset.of(HEAD, now).error < 0.00101


def test_it_is_never_wrong_by_more_than_it_says():
    rng, offset = Random(7), ClockOffset()
    for serial in range(1, 500):
        there, back = rng.expovariate(100.0), rng.expovariate(30.0)
        now = exchange(offset, serial, serial * 0.5, there=there, back=back)
        known = offset.of(HEAD, now)
        assert abs(known.seconds - 100.0) <= known.error + 1e-9
    assert known.error < 0.02


def test_the_quickest_exchange_counts_but_not_for_ever():
    offset = ClockOffset()
    exchange(offset, 1, 0.0, there=0.001, back=0.001)
    now = exchange(offset, 2, 1.0, there=0.1, back=0.0)
    assert abs(offset.of(HEAD, now).seconds - 100.0) < 1e-9
    exchange(offset, 3, 200.0, there=0.1, back=0.0)
    assert abs(offset.of(HEAD, 200.1).seconds - 100.05) < 1e-9


def test_clocks_may_drift():
    offset = ClockOffset()
    for serial in range(1, 100):
        now = exchange(offset, serial, serial * 0.5, ahead=100.0 + DRIFT * serial * 0.5)
        known = offset.of(HEAD, now)
        assert abs(known.seconds - 100.0 - DRIFT * now) <= known.error


def test_after_a_suspension_a_new_offset_counts_before_the_second_sample():
    """Two samples name a straggler, so at most one may have the old offset."""
    for seed in range(100):
        rng, offset = Random(seed), ClockOffset()
        for serial in range(200):
            sent = serial * Timing().quiet
            ahead = 100.0 if sent < 100.0 else 101.5
            there, back = rng.expovariate(500.0), rng.expovariate(500.0)
            now = exchange(offset, serial, sent, there=there, back=back, ahead=ahead)
            known = offset.of(HEAD, now)
            if not 100.0 <= sent < 100.0 + Timing().sampling:
                assert abs(known.seconds - ahead) <= known.error + 1e-9


def test_another_head_has_another_clock():
    offset = ClockOffset()
    exchange(offset, 1, 0.0)
    assert offset.of(OTHER, 1.0) is None
    now = exchange(offset, 2, 1.0, ahead=-3.0, head=OTHER)
    assert (offset.of(HEAD, now), offset.of(OTHER, now).seconds) == (None, -3.0)


def test_answers_that_are_lost_late_or_come_twice():
    offset = ClockOffset()
    for serial in (1, 2, 3):
        offset.report_sent(serial, float(serial))
    offset.hear(HEAD, 3, 103.001, 3.002)
    assert abs(offset.of(HEAD, 3.002).seconds - 100.0) < 1e-9
    offset.hear(HEAD, 3, 150.0, 3.5)  # a second answer to the same report
    offset.hear(HEAD, 1, 103.5, 3.5)
    assert abs(offset.of(HEAD, 3.5).seconds - 100.0) < 1e-9
