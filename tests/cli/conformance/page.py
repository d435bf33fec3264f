"""The tables of docs/inside-workers.md: what a worker has because of hpclaunch."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "inside-workers.md"
TEXT = PAGE.read_text("utf-8")


def table(title):
    """Return the names in the first column of the table below a heading."""
    _, heading, rest = TEXT.partition(f"\n## {title}\n")
    assert heading, title
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall("`([^`]+)`", row.split(" | ")[0])}


def variables():
    """Return the environment variables that the page names."""
    return {*re.findall(r"\b(?:environ\.)?([A-Z][A-Z_]+)\b", TEXT)}
