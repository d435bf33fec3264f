"""The agent's end of the process that looks for checkpoints. Nothing of that is imported here."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from hpclaunch.system.helper import Helper

PATIENCE = 5.0  # seconds in which it begins with a search, unless it hangs

Rounds = Iterable[tuple[int, int | None, int]]  # (begun, ended or None, ranks); wall clock, ns


class Found(NamedTuple):
    """A checkpoint, complete or not (`told` in service.py)."""

    path: str
    name: str
    format: str
    step: int | None
    unit: str | None
    rule: str  # by which it is where it is in the order
    identity: str  # differs for every save
    time: int
    size: int
    world: int | None
    lacks: str | None  # why it is not to be used
    quiet: bool  # which needs no word as long as there is another


class Searched(NamedTuple):
    """All up to the newest complete one, the newest first."""

    id: int
    found: tuple[Found, ...]
    disk: dict[str, Any]  # see `disk.look`


class Failed(NamedTuple):
    id: int
    why: str


class Verified(NamedTuple):
    id: int
    wrong: str  # "": as far as it was read
    read: int  # bytes
    left: int


class Begun(NamedTuple):
    """The search with this id: it may take long."""

    id: int


Reply = Begun | Searched | Failed | Verified


class Service(Helper):
    """Asks; its descriptor becomes readable when a reply is there, or it has ended."""

    def __init__(self, where: str, exclude: Iterable[str], complete: str, verify: str) -> None:
        settings = {"where": where, "exclude": tuple(exclude)}
        settings |= {"complete": complete, "verify": verify}
        module = "hpclaunch.system.checkpoints.service"
        super().__init__(module, str(os.getpid()), json.dumps(settings))
        self.deadline = math.inf  # if nothing is heard by then, it hangs: begin another

    def search(self, number: int, rounds: Rounds) -> None:
        self.deadline = time.monotonic() + PATIENCE
        self.ask(do="search", id=number, rounds=list(rounds))

    def verify(self, number: int, path: str, share: tuple[int, int] = (0, 1)) -> None:
        self.ask(do="verify", id=number, path=path, share=share)

    def watch(self, rounds: Rounds, *, on: bool) -> None:
        self.ask(do="watch", on=on, rounds=list(rounds))

    def replies(self) -> list[Reply]:
        """Those that are there; call it when the descriptor is readable."""
        found = [_reply(**told) for told in self.receive()]
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
            return Searched(id, tuple(Found(**f) for f in told["found"]), told["disk"])
        case "verified":
            return Verified(id, **told)
        case _:
            return Failed(id, told["why"])
