"""docs/messages.md: it is up to date, and has every message that the console can print."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import messages as page
import pytest

from hpclaunch.core.protocol.facts import Fact
from hpclaunch.core.protocol.model import Culprit, Failure, Origin, Sequel, Verdict
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe import console, further_reading, node_console
from hpclaunch.system.logs.fact_files import KINDS

ENTRIES = [entry for _, entries in page.SECTIONS for entry in entries]
EXAMPLES: list[Fact] = [*page.SILENT, *(entry.fact for entry in ENTRIES)]
MODULES = (console, node_console)


def test_the_page_is_up_to_date() -> None:
    assert page.PAGE.read_text() == page.page(), "python docs/messages.py writes it"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_fact_has_an_example(kind: type[Fact]) -> None:
    assert any(type(fact) is kind for fact in EXAMPLES)


def test_each_example_has_a_message_a_meaning_and_something_to_do() -> None:
    for entry in ENTRIES:
        assert console.messages(entry.fact), entry
        assert entry.means.endswith("."), entry
        assert entry.do.endswith("."), entry
    assert not [fact for fact in page.SILENT if console.messages(fact)]


def test_every_line_that_words_a_fact_has_an_example() -> None:
    """A message, or a part of one, that no example shows has no meaning on the page."""
    files = {module.__file__ for module in MODULES}
    reached: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for fact in EXAMPLES:
            console.messages(fact)
    finally:
        sys.settrace(before)
    for module in MODULES:
        name = str(module.__file__)
        missing = {line for line in lines_of(module) if (name, line) not in reached}
        assert not missing, f"{name}: docs/messages.py has no example of lines {sorted(missing)}"


def lines_of(module: Any) -> Iterator[int]:
    """The lines within functions that `console.messages` can reach."""
    for value in vars(module).values():
        if callable(value) and getattr(value, "__module__", "") == module.__name__:
            code = getattr(value, "__code__", None)
            if code is not None and value not in (console.words, node_console.who):
                yield from _within(code)


def _within(code: CodeType) -> Iterator[int]:
    yield from (
        line for _, line in dis.findlinestarts(code) if line and line != code.co_firstlineno
    )
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _within(each)


@pytest.mark.parametrize("origin", Origin)
def test_the_section_that_the_console_names_is_there(origin: Origin) -> None:
    section = further_reading.section_on(Verdict(1, "why", origin))
    assert not section or section.partition("#")[2] in anchors()


def test_the_section_on_hangs() -> None:
    cause = Failure(0, 3, "n1", 124, 0, 0.0, "", culprit=Culprit.HANG)
    section = further_reading.section_on(Verdict(124, "why", Origin.FAILURE, cause))
    assert section == "docs/messages.md#hang"
    assert "hang" in anchors()


def test_a_failure_with_advice_needs_no_section() -> None:
    cause = Failure(0, 3, "n1", 1, 0, 0.0, "ModuleNotFoundError: No module named 'x'")
    assert further_reading.section_on(Verdict(1, "why", Origin.FAILURE, cause)) == ""


def test_a_job_that_continues_in_another_run_needs_no_section() -> None:
    end = Verdict(75, "why", Origin.TIME_LIMIT)
    assert further_reading.section_on(end) == "docs/messages.md#time-limit"
    assert further_reading.section_on(replace(end, sequel=Sequel.REQUEUE)) == ""


def anchors() -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.PAGE.read_text(), re.MULTILINE)
    return {title.lower().replace(" ", "-") for title in titles}
