"""The agent's client of the stager (`service.py`). It imports the messages only."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.system.shared.helper import Helper, place_of
from hpclaunch.worker.messages import decode

from .messages import REPLIES, Reply


class StagingClient(Helper):
    """A client that sends requests and returns the replies.

    `storage` is the directory of checkpoints, and `stage` the staging directory that stands for it
    (`stage_directory.py`). If --checkpoint-dir is a pattern, `storage` is its beginning without
    wildcards, and `pattern` the rest. The other settings are those of the search. If the launch
    has several nodes, `launch` names it, and the first request is a `Secret`.

    If the process is `lost`, make another client with the same arguments: it continues, and removes
    what the lost one has left unfinished on storage.
    """

    kind = ProcessKind.STAGER

    def __init__(
        self,
        storage: str,
        stage: str,
        exclude: Iterable[str],
        complete: str,
        verify: str,
        *,
        pattern: str = "",
        launch: str = "",
    ) -> None:
        settings = {"storage": storage, "stage": stage, "pattern": pattern, "launch": launch}
        search = {"exclude": tuple(exclude), "complete": complete, "verify": verify}
        words = json.dumps(settings | search)
        paths = {place_of(library) for library in ("msgspec", "zmq") if launch}
        super().__init__("hpclaunch.system.staging.service", words, paths=paths)

    def replies(self) -> list[Reply]:
        """Return the replies that have arrived. Call this when the descriptor is readable."""
        return [decode(REPLIES, reply) for reply in self.receive()]

    def close(self) -> None:
        """Kill the process. Without this, it outlives its agent until all is on storage."""
        self.abandon()
