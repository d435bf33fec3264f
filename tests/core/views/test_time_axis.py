"""Where times are, and which are named."""

from __future__ import annotations

import time

import pytest

from hpclaunch.core.views.time_axis import UNITS, TimeAxis, ahead, percent

MIDNIGHT = 1_789_948_800.0  # UTC
HOUR, DAY = 3600, 86400


def in_zone(hours, minutes=0):
    seconds = hours * HOUR + minutes * 60

    def local(at, form):
        sign = "+" if seconds >= 0 else "-"
        zone = f"{sign}{abs(seconds) // HOUR:02}{abs(seconds) % HOUR // 60:02}"
        return time.strftime(form.replace("%z", zone), time.gmtime(at + seconds))

    return local


def test_places():
    axis = TimeAxis(100.0, 300.0)
    assert [axis.x(at) for at in (50, 100, 200, 300, 400)] == [0, 0, UNITS // 2, UNITS, UNITS]
    assert axis.percent(150) == "25%"
    assert percent(1 / 3) == "33.333%"


@pytest.mark.parametrize(
    ("begin", "length", "zone", "labels"),
    [
        (0, 40, 0, ["00:00:10", "00:00:20", "00:00:30"]),
        (0, HOUR, 0, ["00:15", "00:30", "00:45"]),
        (0, 8 * HOUR, 2, ["04:00", "06:00", "08:00"]),
        (0, 6 * DAY, 0, ["Sep 22", "Sep 24", "Sep 26"]),
    ],
)
def test_round_times_of_the_clock_are_named(begin, length, zone, labels):
    axis = TimeAxis(MIDNIGHT + begin, MIDNIGHT + begin + length)
    assert [tick.label for tick in axis.ticks(in_zone(zone), 5)] == labels


@pytest.mark.parametrize(("zone", "seconds"), [((0,), 0), ((5, 30), 19_800), ((-7,), -25_200)])
def test_how_far_the_local_time_is_ahead(zone, seconds):
    assert ahead(MIDNIGHT, in_zone(*zone)) == seconds
