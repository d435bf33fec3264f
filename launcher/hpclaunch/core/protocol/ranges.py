"""Lists of numbers as the kernel and Slurm write them: "0-3,8"."""

from __future__ import annotations

from collections.abc import Iterable


def written(numbers: Iterable[int]) -> str:
    """Write the numbers in order, each once; "" for none."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in spans)


def parsed(text: str) -> frozenset[int]:
    """Parse such a list. Raises ValueError if the text is not one."""
    numbers: set[int] = set()
    for span in filter(None, map(str.strip, text.split(","))):
        first, _, last = span.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)
