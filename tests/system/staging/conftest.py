"""Helpers of the tests of checkpoints are used here, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpclaunch.system.staging import looking

sys.path.append(str(Path(__file__).parents[1] / "checkpoints"))


@pytest.fixture(autouse=True)
def _rare_looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a copy there is no look that a test has not asked for. On a busy machine a copy would
    take until the next one, and be given up for a newer checkpoint.
    """
    if request.node.get_closest_marker("starts") is None:
        monkeypatch.setattr(looking, "PERIOD", 3600.0)
