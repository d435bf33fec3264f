"""The agent's client of the stager (`service.py`). It imports the messages only."""

from __future__ import annotations

import json
from importlib.util import find_spec

from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.system.shared.helper import Helper, place_of
from hpclaunch.worker.messages import decode

from .messages import REPLIES, Reply, Settings

# With several nodes. The last one is a part of cryptography that not all versions have.
LIBRARIES = "msgspec", "zmq", "cryptography", "_cffi_backend"


class StagingClient(Helper):
    """A client that sends requests and returns the replies.

    If the launch has several nodes, the first request is a `Secret`.

    If the process is `lost`, make another client with the same settings: it continues, and removes
    what the lost one has left unfinished on storage.
    """

    kind = ProcessKind.STAGER

    def __init__(self, settings: Settings) -> None:
        words = json.dumps(settings._asdict())
        needed = filter(find_spec, LIBRARIES) if settings.has_several_nodes else ()
        paths = {place_of(library) for library in needed}
        super().__init__("hpclaunch.system.staging.service", words, paths=paths)

    def replies(self) -> list[Reply]:
        """Return the replies that have arrived. Call this when the descriptor is readable."""
        return [decode(REPLIES, reply) for reply in self.receive()]

    def close(self) -> None:
        """Kill the process. Without this, it outlives its agent until all is on storage."""
        self.abandon()
