"""A record of what this launch has put on storage, or has restored from there: only that is deleted
on storage when the script deletes it. The record is a file beside the staging directory, for the
next stager in case this one is killed.
"""

from __future__ import annotations

import contextlib
import json
import os

from .contents import HERE, Contents


class Record:
    """The checkpoints and the other files of this launch."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.moved: dict[str, list[str]] = {}  # what belongs to a checkpoint, by its key
        self.others: set[str] = set()
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                self.moved, others = json.load(file)
            self.others.update(others)

    def add(self, contents: Contents) -> None:
        is_root = contents.key == HERE
        self.moved[contents.key] = list(contents.essential if is_root else contents.moved)
        self._write()

    def add_others(self, names: set[str]) -> None:
        if names - self.others:
            self.others |= names
            self._write()

    def forget(self, key: str) -> None:
        if self.moved.pop(key, None):
            self._write()

    def _write(self) -> None:
        new = f"{self._path}.new"
        with contextlib.suppress(OSError):  # memory is full: then the next stager deletes less
            with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
                json.dump([self.moved, sorted(self.others)], file)
            os.replace(new, self._path)
