"""One process for each library, as long as the tests of one file run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from makers import Maker


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
