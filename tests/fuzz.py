"""Fuzz all parsers of external data with new examples for some time: `make fuzz`.

The tests with the marker `fuzz` run again and again: always the one that has had the least time so
far, with new examples. A failure is shown at once, with how to replay it, and its test does not
run again.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

STUCK = 600  # seconds; a test that takes longer hangs


class Fuzz:
    """A pytest plugin that repeats the tests until the time is over."""

    def __init__(self, minutes: float) -> None:
        self._until = time.monotonic() + 60 * minutes
        self._spent: Counter[str] = Counter()  # seconds, by test
        self._examples: Counter[str] = Counter()
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = item.obj.hypothesis
            test.inner_test = self._counted(test.inner_test, item.nodeid)

    def _counted(self, test: Any, name: str) -> Any:
        @functools.wraps(test)
        def counted(*args: Any, **kwargs: Any) -> None:
            self._examples[name] += 1
            test(*args, **kwargs)

        return counted

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        left = list(session.items)
        while left and time.monotonic() < self._until:
            item = min(left, key=lambda item: self._spent[item.nodeid])
            began = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            self._spent[item.nodeid] += time.monotonic() - began
            left = [item for item in left if item.nodeid not in self._failed]
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
            sys.stdout.write(
                f"\n{report.nodeid} failed:\n{report.longreprtext}\n"
            )  # now, not at the end

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("examples")
        for nodeid, seconds in sorted(self._spent.items()):
            state = "FAILED" if nodeid in self._failed else ""
            line = f"{self._examples[nodeid]:9,} {seconds:5.0f} s  {nodeid} {state}"
            terminalreporter.write_line(line.rstrip())
        total, failed = sum(self._examples.values()), len(self._failed)
        terminalreporter.write_line(f"{total:9,} examples, {failed} parsers failed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    known, words = parser.parse_known_args()  # such as -k NAME
    options = ["-m", "fuzz", "-qq", "--hypothesis-profile=fuzz", f"--timeout={STUCK}"]
    tests = str(Path(__file__).parent)
    return pytest.main([*options, *words, tests], plugins=[Fuzz(known.minutes)])


if __name__ == "__main__":
    sys.exit(main())
