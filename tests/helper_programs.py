"""Programs of helpers that run statements of a test first, for example to set limits and clocks."""

from __future__ import annotations

from pathlib import Path

from hpclaunch.system.shared.helper import _PROGRAM

HERE = str(Path(__file__).parent)


def program_after(*statements: str) -> str:
    """Return what replaces `helper._PROGRAM`. The statements can import this package, and the files
    beside this one.
    """
    paths = f"import json, sys; sys.path += [*json.loads(sys.argv[1]), {HERE!r}]"
    return "; ".join((paths, *statements, _PROGRAM))
