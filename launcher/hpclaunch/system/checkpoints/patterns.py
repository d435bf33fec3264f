"""The two parts of --checkpoint-dir: a directory, and perhaps a pattern of directories below it."""

from __future__ import annotations

import os


def split(where: str) -> tuple[str, str]:
    """Return the directory, as an absolute path, and the pattern below it, or "". A path that
    exists is no pattern.
    """
    import glob  # slow to import

    path = os.path.abspath(where)
    if os.path.isdir(path) or not glob.has_magic(path):
        return path, ""
    names = path.split(os.sep)
    first = next(i for i, name in enumerate(names) if glob.has_magic(name))
    return os.sep.join(names[:first]) or os.sep, os.path.join(*names[first:])
