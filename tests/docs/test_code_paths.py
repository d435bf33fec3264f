"""The page on paths through the code names files that exist, and what is defined in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "code-paths.md").read_text()
STEPS = re.findall(r"^\d+\. `(.+?)`: (.*(?:\n +.*)*)$", PAGE, re.MULTILINE)


def defined(file: Path) -> set[str]:
    """Return the functions, classes and variables that are defined in a file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


@pytest.mark.parametrize(("path", "text"), STEPS, ids=range(len(STEPS)))
def test_a_step_names_what_its_file_defines(path: str, text: str) -> None:
    named = set(re.findall(r"`(.+?)`", text))
    assert named
    assert named <= defined(ROOT / "launcher/hpclaunch" / path)


def test_every_line_of_a_list_is_a_step() -> None:
    assert len(STEPS) == len(re.findall(r"^\d+\.", PAGE, re.MULTILINE)) > 0
