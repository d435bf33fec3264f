"""One process for each library, as long as the tests of one file run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from makers import Maker

from hpclaunch.system.checkpoints import pickles


@pytest.fixture(scope="module")
def maker(starts: None) -> Iterator[Callable[[str], Maker]]:
    made: dict[str, Maker] = {}

    def make(name: str) -> Maker:
        if name not in made:
            made[name] = Maker(name)
        return made[name]

    yield make
    for each in made.values():
        each.close()


@pytest.fixture(autouse=True)
def _unconfined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that start no process read pickles in their own."""
    if request.node.get_closest_marker("starts") is None:
        monkeypatch.setattr(pickles, "confined", lambda work: work())
