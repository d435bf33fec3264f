"""The deletion of checkpoints: on storage, of those that the script has deleted in the staging
directory; in the staging directory, of old ones that are on storage, if memory gets short.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence, Set

from hpclaunch.system.checkpoints.messages import RoundTimes

from .contents import HERE, Contents
from .launch import Launch
from .memory import Memory
from .publishing import remove


class Deletion:
    """The deletions of one launch."""

    def __init__(self, launch: Launch, memory: Memory) -> None:
        self._launch, self._memory = launch, memory
        self._storage, self._record = launch.storage, launch.record
        self._kept: set[str] = set()  # deleted by the script, but still needed on storage
        self._drains = 0  # as of the last look at storage

    def rotate(
        self, rounds: RoundTimes, drains: int, waiting: Callable[[], Set[int]]
    ) -> Iterator[str]:
        """Delete on storage what the script has deleted, if storage has a later checkpoint of this
        launch that is complete. Yield the keys of what is deleted. `drains` is the number of
        drains so far: nothing is done until that or the deleted ones change. `waiting` returns the
        times of the checkpoints in memory that are not on storage yet: one of them may be a deleted
        one that was renamed.
        """
        if not os.path.isdir(self._launch.root):  # somebody has deleted all of it
            return
        moved = self._record.moved
        vanished = {key for key in moved.keys() - {HERE} if self._has_vanished(key)}
        deleted = self._memory.deleted(vanished)
        if deleted <= self._kept and drains == self._drains:
            return
        self._kept, self._drains = deleted, drains
        owners = {name: key for key, names in moved.items() for name in names}
        with contextlib.suppress(OSError):  # tried again after the next drain
            run = self._launch.storage_thread.run
            found = [
                (owners.get(name := os.path.relpath(f.candidate.path, self._storage), name), f)
                for f in run(lambda: list(self._launch.there.examine(rounds)))
            ]
            staying = moved.keys() - deleted
            times = (f.candidate.time for key, f in found if key in staying and f.lacks is None)
            latest = max(times, default=0)  # not by step: steps may begin again at 0
            renamed = waiting() if deleted else set()
            for key, each in found:
                is_older = each.candidate.time < latest and each.candidate.time not in renamed
                # A restore meanwhile may have brought it back.
                if key in deleted and is_older and self._has_vanished(key):
                    run(self._remove, moved[key])
                    self._record.forget(key)
                    deleted.remove(key)
                    yield key

    def _remove(self, names: Sequence[str]) -> None:
        for path in (os.path.join(self._storage, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                remove(path, self._storage, self._launch.name)

    def _has_vanished(self, key: str) -> bool:
        """Return whether a checkpoint of this launch is no longer in memory."""
        names = self._record.moved.get(key)
        root = self._launch.root
        return names is not None and not any(os.path.lexists(os.path.join(root, n)) for n in names)

    def make_room(
        self, complete: Sequence[Contents], is_on_storage: Callable[[Contents], bool]
    ) -> None:
        """Delete the oldest checkpoints in the staging directory that are on storage, where they
        stay, until another one like the newest fits: a script may keep all that it saves.
        """
        with contextlib.suppress(OSError):  # tried again after the next look
            for contents in reversed(complete[1:]):
                if not self._memory.lack(complete[0])[0]:
                    return
                if contents.key == HERE or not is_on_storage(contents):
                    continue
                # During a drain, the script may have saved under its name again.
                if contents.is_unchanged(self._launch.root):
                    self._record.forget(contents.key)
                    self._record.add_others(set(contents.moved))  # a new one may replace it there
                    self._memory.delete(contents)
