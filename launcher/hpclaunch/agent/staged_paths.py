"""The paths of checkpoints that the script saves in memory, and of their copies on storage.

The core, facts and messages have only the paths on storage. The path in memory is for the workers,
and for the process that searches for checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..core.protocol.values import value


def aliases(storage: str, words: Iterable[str]) -> tuple[str, ...]:
    """Return the other absolute paths of `storage` that these words of the script's arguments use;
    they differ from it by symbolic links. This asks the file system.
    """
    real = os.path.realpath(storage)
    found: set[str] = set()
    for word in words:
        for path in (word, word.partition("=")[2]):
            absolute = Path(_absolute(path))
            found.update(
                str(each)
                for each in (absolute, *absolute.parents)
                if path and str(each) != storage and os.path.realpath(each) == real
            )
    return tuple(sorted(found))


@value(frozen=True)
class StagedPaths:
    """The two directories, as absolute paths."""

    storage: str  # --checkpoint-dir, without a pattern
    stage: str  # in memory
    pattern: str = ""  # of the directories below them
    aliases: tuple[str, ...] = ()  # other paths of `storage`

    @property
    def medium(self) -> str:
        """Where the staging directory is, in words."""
        is_memory = self.stage.startswith("/dev/shm/")  # noqa: S108 - a private directory in it
        return "in memory" if is_memory else "on a local disk"

    @property
    def where(self) -> str:
        """The directory in memory, or the pattern of directories, in which checkpoints are."""
        return os.path.join(self.stage, self.pattern) if self.pattern else self.stage

    def staged(self, path: str) -> str:
        """Return the path in memory for one on storage, and other paths as they are."""
        return _moved(path, self.storage, self.stage)

    def stored(self, path: str) -> str:
        """Return the path on storage for one in memory, and other paths as they are."""
        return _moved(path, self.stage, self.storage)

    def with_stored(self, text: str) -> str:
        """Return a text of a worker with the paths on storage."""
        return text.replace(self.stage, self.storage)

    def word(self, word: str) -> str:
        """Return a word of the script's arguments with the path in memory if it is the checkpoint
        directory, or a path below it, or `NAME=` with such a path.
        """
        for name, equals, path in (("", "", word), word.partition("=")):
            for storage in (self.storage, *self.aliases) if path else ():
                staged = _moved(_absolute(path), storage, self.stage)
                if staged.startswith(self.stage):
                    end = os.sep if path.endswith(os.sep) else ""
                    return f"{name}{equals}{staged}{end}"
        return word


def _absolute(path: str) -> str:
    """Return the path that a script means. A shell leaves the ~ of --dir=~/ckpt to the program."""
    return os.path.abspath(os.path.expanduser(path))


def _moved(path: str, old: str, new: str) -> str:
    is_below = path == old or path.startswith(f"{old}{os.sep}")
    return new + path[len(old) :] if is_below else path
