"""Assertions about the lines of a text."""


def only(text: str, having: str = "") -> str:
    """Return the only line of the text, or the only one that contains `having`.

    Fail with the whole text if there are none or several.
    """
    found = [line for line in text.splitlines() if having in line]
    what = f"line with {having!r}" if having else "line"
    assert len(found) == 1, f"not one {what}, but {len(found)}, in:\n{text}"
    return found[0]
