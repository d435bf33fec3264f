"""A kill for every way to save; `make test-kills` does two hundred.

Those of frameworks are among their tests: `make test-frameworks`.
"""

import time

import kills
import pytest

pytestmark = pytest.mark.starts

KILLS = 1
FRAMEWORKS = {"hf_trainer", "accelerate_state", "deepspeed_engine", "lightning_trainer"}


def marked(name):
    framework = kills.CASES[name].maker in FRAMEWORKS
    return pytest.param(name, marks=[pytest.mark.frameworks] if framework else [])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [marked(name) for name in kills.CASES])
def test_what_is_chosen_is_the_newest_and_whole(maker, name):
    own = maker(kills.CASES[name].maker)
    kills.run(name, own, KILLS, seed=time.time_ns() % 10**6)
