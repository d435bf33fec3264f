"""Checksums of texts. Helpers without site-packages import this module."""

from __future__ import annotations

import zlib


def checksum(text: str) -> int:
    """Return the CRC-32 of a text, to send instead of one that is only compared; 0 for ""."""
    return zlib.crc32(text.encode(errors="surrogateescape"))
