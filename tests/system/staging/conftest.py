"""Helpers of the tests of checkpoints are used here, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpclaunch.system.checkpoints import pickles

sys.path.append(str(Path(__file__).parents[1] / "checkpoints"))


@pytest.fixture(autouse=True)
def _unconfined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that start no process read pickles in their own."""
    if request.node.get_closest_marker("starts") is None:
        monkeypatch.setattr(pickles, "confined", lambda _size, work: work())
