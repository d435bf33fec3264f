"""The search for the newest complete checkpoint. It writes nothing.
Each format is a file in `formats/`; the types that they share are in `candidates.py`.

The agent runs the search in a separate process (`service.py`, used through `client.py`): reading a
large checkpoint takes long, and a file system may hang, but the agent's loop must not wait. That
process has no site-packages, so this package needs no library but Python's own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hpclaunch.core.protocol.wording import some

NAMES = 4  # of files, in a message
READS = ("auto", "full")  # values of --verify that read bytes: as many as time allows, or all
ALL = (0, 1)  # share 0 of 1: everything
AHEAD = 2.0  # seconds of reading for each checkpoint with --verify auto


def split(where: str) -> tuple[str, str]:
    """Return the two parts of --checkpoint-dir: the directory, as an absolute path, and the pattern
    of directories below it, or "". A path that exists is no pattern.
    """
    import glob  # slow to import

    path = os.path.abspath(where)
    if os.path.isdir(path) or not glob.has_magic(path):
        return path, ""
    names = path.split(os.sep)
    first = next(i for i, name in enumerate(names) if glob.has_magic(name))
    return os.sep.join(names[:first]) or os.sep, os.path.join(*names[first:])


def nothing_known(where: str, names: Sequence[str]) -> str:
    """Return what --checkpoint-dir has if it has no checkpoint, and what may help; "" without any
    `names` of files there.
    """
    import glob

    if not names:
        return ""
    below = f"; --checkpoint-dir '{where}/**' also searches the directories below it"
    return (
        f"{where} has {some(names, NAMES)}, but nothing in a known format"
        f"{'' if glob.has_magic(where) else below}; for directories in a format of your own, "
        "--checkpoint-complete names the file that marks a complete one"
    )
