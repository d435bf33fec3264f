"""The page on the protocol says what the code does, and names what holds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import state_diagrams

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
LAUNCHER = "launcher/hpclaunch"
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))


def test_the_diagrams_are_those_of_the_tables() -> None:
    assert state_diagrams.drawn(PAGE) == PAGE, "python docs/state_diagrams.py writes them"
    assert set(state_diagrams.MARK.findall(PAGE)) == set(state_diagrams.TABLES)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", PAGE))))
def test_a_claim_names_a_test_that_is_there(name: str) -> None:
    assert f"def {name}(" in TESTS


def test_the_files_that_it_names_are_there() -> None:
    named = set(re.findall(r"`((?:launcher|core)/[\w/.]+)`", PAGE))
    assert named
    assert [n for n in named if not any((ROOT / p / n).exists() for p in (".", LAUNCHER))] == []


LAWS = ["starts an old round", "has not left after", "leaves with others", "does not continue"]


@pytest.mark.parametrize("law", LAWS)
def test_a_law_of_the_simulation_is_there(law: str) -> None:
    assert f"`{law}`" in PAGE
    assert law in (ROOT / "tests" / "sim" / "sim_checker.py").read_text()
