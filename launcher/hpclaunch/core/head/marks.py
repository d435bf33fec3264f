"""What tells one save from another, in few bytes: it goes to every agent of the job."""

from __future__ import annotations

import zlib


def checksum(text: str) -> int:
    """0 for nothing."""
    return zlib.crc32(text.encode(errors="surrogateescape"))
