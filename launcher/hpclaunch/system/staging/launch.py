"""The directories of a launch, and the searches for checkpoints in them."""

from __future__ import annotations

import os
from collections.abc import Collection

from hpclaunch.system.checkpoints.candidates import CheckpointCandidate
from hpclaunch.system.checkpoints.messages import RoundTimes
from hpclaunch.system.checkpoints.service import CheckpointService

from .copying import StorageThread
from .messages import Settings
from .record import Record


class Launch:
    """The launch of a stager: `here` searches in the staging directory, and `there` on storage.

    Its checkpoints are looked for in the directory `root`, by `seen`. With one node, that is the
    staging directory; with several, a view of all of them (`view.py`).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.storage, self.stage = map(os.path.abspath, (settings.storage, settings.stage))
        self.own = os.path.dirname(self.stage)  # HASH: see stage_directory.py
        self.has_several_nodes = settings.has_several_nodes
        self.name = settings.launch  # a part of the names of its drafts on storage
        self.here, self.there = self._searching(self.stage), self._searching(self.storage)
        self.root, self.seen = self.stage, self.here
        self.record = Record(self.own)
        self.storage_thread = StorageThread()

    def look_into(self, root: str) -> None:
        """Look for checkpoints in this directory from now on."""
        if root != self.root:
            self.root, self.seen = root, self._searching(root)

    def _searching(self, root: str) -> CheckpointService:
        settings = self._settings
        where = os.path.normpath(os.path.join(root, settings.pattern))
        return CheckpointService(where, settings.exclude, settings.complete, settings.verify)

    def newest_on_storage(
        self, avoid: Collection[str] = (), rounds: RoundTimes = ()
    ) -> CheckpointCandidate | None:
        """Return the newest complete checkpoint on storage that is at none of the paths `avoid`.
        Raises OSError.
        """
        for found in self.there.examine(rounds):
            if found.lacks is None and found.candidate.path not in avoid:
                return found.candidate
        return None

    def on_storage(self, key: str) -> str:
        return os.path.normpath(os.path.join(self.storage, key))
