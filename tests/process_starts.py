"""Tests that start processes are marked `starts`; `make quick` leaves them out."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

EVENTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
LDCONFIG = ("/sbin/ldconfig",)  # starts as torch for CUDA is imported
MARKS = ("starts", "slurm", "gpu")


class StartWatch:
    """Fail each test that starts a process without a mark.

    The start is refused, so the traceback shows where it was. A process that a fixture of a module
    or session starts counts for every test that uses the fixture. Processes that multiprocessing
    spawns are not noticed, since Python raises no audit event for them.
    """

    def __init__(self) -> None:
        self._is_watching = False
        self._starts = 0
        self._shared: set[tuple[str, str]] = set()  # scopes and names of fixtures
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS and args[:1] != LDCONFIG:
            self._starts += 1
            if self._is_watching:
                _fail(f"{event}{args[:2]}")

    @pytest.hookimpl(tryfirst=True)  # before the tests are selected by their marks
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in {"starts", "frameworks"} & {*item.fixturenames}:
                item.add_marker(mark)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        with self._watching(item):
            yield
        for base, name in self._shared:
            if name in item.fixturenames and item.nodeid.startswith(base) and not is_marked(item):
                _fail(f"its fixture {name}")

    # The teardown is not watched, since it may also end the fixtures of other tests.
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        with self._watching(item):
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        before = self._starts
        try:
            return (yield)
        finally:
            if self._starts > before and fixturedef.scope != "function":
                self._shared.add((fixturedef.baseid, fixturedef.argname))

    @contextmanager
    def _watching(self, item: pytest.Item) -> Iterator[None]:
        self._is_watching = not is_marked(item)
        try:
            yield
        finally:
            self._is_watching = False


def is_marked(item: pytest.Item) -> bool:
    """Return whether a test may start processes."""
    return any(item.get_closest_marker(mark) for mark in MARKS)


def _fail(what: str) -> None:
    pytest.fail(f"a process was started: {what}; mark this test with @pytest.mark.starts")
