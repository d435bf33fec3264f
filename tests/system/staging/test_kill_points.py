"""A stager that is killed anywhere leaves whole checkpoints; `kill_points.py` tries every point."""

import random
import time

import pytest
import random_kills
from kill_points import KILLS
from saving_scripts import SCRIPTS

from hpclaunch.system.staging import copying

POINTS = 3


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_is_torn_lost_or_left(script, kill, monkeypatch):
    monkeypatch.setattr(copying, "PIECE", 30_000)
    seed = time.time_ns() % 10**6
    for point in random.Random(seed).sample(range(60), POINTS):
        kill(script, point)


@pytest.mark.starts
@pytest.mark.parametrize("script", ["files", "sealed-one-name"])
def test_real_kills(script):
    random_kills.run(script, 3, seed=time.time_ns() % 10**6)
