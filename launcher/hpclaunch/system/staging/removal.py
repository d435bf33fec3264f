"""The removal of directories that a script has filled, perhaps with read-only ones."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable


def rmtree(root: str) -> None:
    """Remove a directory and all that is in it, as far as that is possible."""

    def retry(remove: Callable[[str], None], path: str, _error: object) -> None:
        if path != root and remove in (os.unlink, os.rmdir):
            with contextlib.suppress(OSError):
                os.chmod(os.path.dirname(path), 0o700)
                remove(path)

    shutil.rmtree(root, onerror=retry)
