"""Helpers of the tests of checkpoints are used here, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clocks import AheadClock
from hpclaunch.system.staging import copying, draining, gathering, looking

sys.path.append(str(Path(__file__).parents[1] / "checkpoints"))


@pytest.fixture(autouse=True)
def _rare_looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a copy there is no look that a test has not asked for. On a busy machine a copy would
    take until the next one, and be given up for a newer checkpoint.
    """
    if request.node.get_closest_marker("starts") is None:
        monkeypatch.setattr(looking, "PERIOD", 3600.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AheadClock:
    """Return the clock of drains and restores."""
    made = AheadClock()
    for module in (copying, draining, gathering):
        monkeypatch.setattr(module, "time", made)
    return made
