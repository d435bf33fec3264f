"""Parse JSON from untrusted files, with bounded size and depth.

Standard library only, for processes without site-packages.
"""

from __future__ import annotations

import json
from typing import Any

MOST = 64 << 20  # bytes


def loads(data: bytes | str, most: int = MOST) -> Any:
    """Return the value of a JSON text. Raises ValueError for whatever is wrong with it."""
    if len(data) > most:
        raise ValueError(f"longer than {most} bytes")
    try:
        return json.loads(data)
    except (RecursionError, MemoryError) as e:
        raise ValueError("nested too deeply, or too large") from e
