"""A hypothesis strategy for damaged data."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import strategies as st

WORD = re.compile(rb"[^\s,:=\[\]{}()]+")
ODD_WORDS = (
    *(b"", b"-1", b"0", b"1", b"1e999", b"-1e308", b"nan", b"9" * 30, b"9" * 400, b"0x1", b"1K"),
    *(b"null", b"true", b"[]", b"{}", b'""', b'"\\ud800"', b"\xff", "²".encode(), "٣".encode()),
    *(b"[" * 50_000, b"\0", b"\n", b"..", b"/", b"2026-02-30T25:61:61", b"0001-01-01T00:00:00"),
)


@st.composite
def damaged(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draw a sample with changed words or bytes, or cut short; or just bytes."""
    data = bytearray(draw(st.sampled_from(samples) | st.binary(max_size=300)))
    for _ in range(draw(st.integers(0, 4))):
        words = [*WORD.finditer(data)]
        if words and draw(st.booleans()):
            word = draw(st.sampled_from(words))
            data[word.start() : word.end()] = draw(st.sampled_from(ODD_WORDS))
        elif data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.none() | st.integers(0, len(data)))])
