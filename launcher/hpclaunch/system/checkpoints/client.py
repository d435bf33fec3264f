"""The agent's client of the process that searches for checkpoints (`service.py`).

Nothing that only that process needs is imported here.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hpclaunch.core.protocol.model import Look, Rounds
from hpclaunch.system.shared.helper import Helper

from . import ALL

PATIENCE = 5.0  # seconds after which a process that has not begun a search counts as hung


class FoundCheckpoint(NamedTuple):
    """A checkpoint, complete or not (`told` in service.py)."""

    path: str
    name: str
    format: str
    step: int | None
    unit: str | None
    rule: str  # that decided its position in the order
    identity: str  # differs for every save
    time: int
    size: int
    took: float  # seconds, at least; 0 for a single file
    is_read: bool  # every byte was read, or none is to be
    world: int | None
    lacks: str | None  # why it is not to be used
    quiet: bool  # not worth a line to the user as long as there is another checkpoint


class Searched(NamedTuple):
    """The newest first, up to the first that is complete."""

    id: int
    found: tuple[FoundCheckpoint, ...]
    disk: dict[str, Any]  # see `disk.look`
    others: tuple[str, ...]  # the names that are there instead, where there is no checkpoint


class Failed(NamedTuple):
    id: int
    why: str


class Looked(NamedTuple):
    id: int
    missing: str  # why it is not here, or not the same
    damage: str  # what is wrong with its bytes


class Suggested(NamedTuple):
    id: int
    where: str  # as --checkpoint-dir takes it
    path: str  # what is there


class Begun(NamedTuple):
    """The search or look with this id has begun, and may take long."""

    id: int


Reply = Begun | Searched | Failed | Looked | Suggested


class CheckpointServiceClient(Helper):
    """Requests out, replies in. The descriptor is readable when a reply is there, or the process
    has ended."""

    has_children = True  # confinement.py
    does = "searches for checkpoints"

    def __init__(self, where: str, exclude: Iterable[str], complete: str, verify: str) -> None:
        settings = {"where": where, "exclude": tuple(exclude)}
        settings |= {"complete": complete, "verify": verify}
        module = "hpclaunch.system.checkpoints.service"
        super().__init__(module, str(os.getpid()), json.dumps(settings))
        self._reads = False  # it was asked to look at a checkpoint, which may take long
        self.deadline = math.inf  # when nothing is heard by then, it hangs: start another

    def search(self, number: int, rounds: Rounds, avoid: Mapping[int, str]) -> None:
        if not self._reads:  # else it may take long to get to this request
            self.deadline = time.monotonic() + PATIENCE
        self.ask(do="search", id=number, rounds=rounds, avoid=list(avoid.items()))

    def look(self, number: int, look: Look, *, local: bool = False) -> None:
        """`local`: this node has its own file, which only has the name of the head's."""
        self.deadline = time.monotonic() + PATIENCE
        self._reads = True
        of = (look.path, -1 if local else look.size, look.time)
        share = ALL if local and look.share[1] else look.share
        self.ask(do="look", id=number, rounds=look.rounds, of=of, share=share)

    def suggest(self, number: int, arguments: Iterable[str], since: int) -> None:
        """Ask what --checkpoint-dir could be. No reply if there is nothing to suggest."""
        self.ask(do="suggest", id=number, arguments=list(arguments), since=since)

    def watch(self, rounds: Rounds, *, on: bool) -> None:
        self.ask(do="watch", on=on, rounds=rounds)

    def replies(self) -> list[Reply]:
        """Those that are there; call it when the descriptor is readable."""
        found = [_reply(**told) for told in self.receive()]
        self._reads = self._reads and not any(isinstance(reply, Looked) for reply in found)
        if found:
            self.deadline = math.inf
        return found

    def close(self) -> None:
        """Also ends a search that is still running."""
        self.abandon()


def _reply(event: str, id: int, **told: Any) -> Reply:  # noqa: A002 - the protocol's word
    match event:
        case "begun":
            return Begun(id)
        case "found":
            found = tuple(FoundCheckpoint(**f) for f in told["found"])
            return Searched(id, found, told["disk"], tuple(told["others"]))
        case "suggested":
            return Suggested(id, **told)
        case "seen":
            return Looked(id, **told)
        case _:
            return Failed(id, told["why"])
