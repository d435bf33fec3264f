"""Fixtures that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forks_of_torch import Forks
from progress_server import ProgressServer


@pytest.fixture
def server(starts: None) -> Iterator[ProgressServer]:
    server = ProgressServer()
    yield server
    server.end()


@pytest.fixture(scope="session")
def forks(starts: None) -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.end()


@pytest.fixture(params=["forked", "cold"])
def forks_or_none(request: pytest.FixtureRequest) -> Forks | None:
    """`forks`, and None for workers in a new interpreter, which import torch below the hooks."""
    return request.getfixturevalue("forks") if request.param == "forked" else None
