"""A record of what this launch has put on storage, or has restored from there: only that is deleted
on storage when the script deletes it. The record is a file beside the staging directory, for the
next stager in case this one is killed. With several nodes, each has a copy of the leader's.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Set

from hpclaunch.core.staging.files import StagedFile

from .contents import HERE, Contents, is_part
from .stage_directory import RECORD


class Record:
    """The checkpoints and the other files of this launch."""

    def __init__(self, own: str) -> None:
        self._path = os.path.join(own, RECORD)
        self.load()

    def load(self, text: str = "") -> None:
        """Take over the record of the stager that led before, or else what the file has."""
        self.moved: dict[str, list[str]] = {}  # what belongs to a checkpoint, by its key
        self.others: dict[str, tuple[int, ...]] = {}  # versions of the files that storage has
        # With several nodes, the checkpoints that the script has deleted in memory, and that may
        # still be on storage: their times, by key.
        self.deleted: dict[str, int] = {}
        self.newest = 0  # the latest time of a checkpoint of which storage may have a copy
        if not text:
            with (
                contextlib.suppress(FileNotFoundError),
                open(self._path, encoding="utf-8", errors="surrogateescape") as file,
            ):
                text = file.read()
        if text:
            self.moved, others, self.deleted, self.newest = json.loads(text)
            self.others = {name: tuple(version) for name, version in others.items()}

    @property
    def text(self) -> str:
        return json.dumps([self.moved, self.others, self.deleted, self.newest])

    def add(self, contents: Contents) -> None:
        is_root = contents.key == HERE
        self.moved[contents.key] = list(contents.essential if is_root else contents.moved)
        self.newest = max(self.newest, contents.time)
        if contents.time > self.deleted.get(contents.key, contents.time):
            del self.deleted[contents.key]  # the script has saved another one of this name
        self._write()

    def add_others(self, names: Iterable[str]) -> None:
        """Record that this launch may replace these files on storage."""
        if new := {name: () for name in names if name not in self.others}:
            self.others |= new
            self._write()

    def add_copied(self, items: Iterable[StagedFile]) -> None:
        """Record that storage has these files as they are in the staging directory."""
        if new := {each.name: each.version for each in items if not self.has(each)}:
            self.others |= new
            self._write()

    def has(self, each: StagedFile) -> bool:
        """Return whether a file was copied to storage, or restored from it, and is unchanged in
        memory. Storage may have changed meanwhile.
        """
        return self.others.get(each.name) == each.version

    def add_deleted(self, key: str, time: int) -> None:
        """Record that the script has deleted this checkpoint, which was saved at this time."""
        if self.deleted.get(key) != time:
            self.deleted[key] = time
            self._write()

    def forget_deleted(self, keys: Set[str]) -> None:
        """Forget that the script has deleted these, since they are in memory again, or no longer on
        storage.
        """
        if keys & self.deleted.keys():
            self.deleted = {key: t for key, t in self.deleted.items() if key not in keys}
            self._write()

    def forget(self, key: str) -> None:
        """Forget a checkpoint, also those of its files that were copied before it was one."""
        if moved := self.moved.pop(key, None):
            self.others = {n: v for n, v in self.others.items() if not is_part(n, moved)}
            self._write()

    def forget_others(self, names: Iterable[str]) -> None:
        """Forget files that are no longer on storage."""
        for name in names:
            del self.others[name]
        self._write()

    def _write(self) -> None:
        new = f"{self._path}.new"
        with contextlib.suppress(OSError):  # memory is full: then the next stager deletes less
            with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(self.text)
            os.replace(new, self._path)
