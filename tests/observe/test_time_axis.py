"""The positions of times on the axis, and the times that are labelled."""

from __future__ import annotations

import time

import pytest

from hpclaunch.observe.time_axis import UNITS, TimeAxis, ahead

MIDNIGHT = 1_789_948_800.0  # UTC
HOUR = 3600


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
    assert axis.share(150) == 0.25


@pytest.mark.parametrize(("zone", "seconds"), [((0,), 0), ((5, 30), 19_800), ((-7,), -25_200)])
def test_how_far_the_local_time_is_ahead(zone, seconds):
    assert ahead(MIDNIGHT, in_zone(*zone)) == seconds
