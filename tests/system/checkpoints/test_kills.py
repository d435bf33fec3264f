"""A kill for every way to save; `make test-kills` does two hundred."""

import time

import kills
import pytest

KILLS = 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", kills.CASES)
def test_what_is_chosen_is_the_newest_and_whole(name):
    kills.run(name, KILLS, seed=time.time_ns() % 10**6)
