"""Assertions on the lines of a text."""


def only(text: str, having: str = "") -> str:
    """Return the single line of the text, or the single one with `having` in it; where there are
    none or several, fail with the whole text."""
    found = [line for line in text.splitlines() if having in line]
    what = f"line with {having!r}" if having else "line"
    assert len(found) == 1, f"not one {what}, but {len(found)}, in:\n{text}"
    return found[0]
