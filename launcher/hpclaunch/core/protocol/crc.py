"""Checksums of texts. Helpers without site-packages import this module."""

from __future__ import annotations

import zlib


def checksum(text: str) -> int:
    """Return the CRC-32 of a text; 0 for "". It replaces texts that are only compared."""
    return zlib.crc32(text.encode(errors="surrogateescape"))
