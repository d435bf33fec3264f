"""Checksums of texts. Helpers without site-packages import this module."""

from __future__ import annotations

import zlib


def checksum(text: str) -> int:
    """A few bytes in place of a text that is only compared, and goes to every agent; 0 for ""."""
    return zlib.crc32(text.encode(errors="surrogateescape"))
