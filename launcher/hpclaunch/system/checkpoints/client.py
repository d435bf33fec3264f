"""The agent's end of the process that looks for checkpoints. Nothing of that is imported here."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hpclaunch.core.model import Look
from hpclaunch.system.helper import Helper

ALL = (0, 1)  # the only one of one share
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
    is_read: bool  # every byte, or none is to be
    world: int | None
    lacks: str | None  # why it is not to be used
    quiet: bool  # which needs no word as long as there is another


class Searched(NamedTuple):
    """All up to the newest complete one, the newest first."""

    id: int
    found: tuple[Found, ...]
    disk: dict[str, Any]  # see `disk.look`
    others: tuple[str, ...]  # what is there, where no checkpoint is


class Failed(NamedTuple):
    id: int
    why: str


class Looked(NamedTuple):
    id: int
    missing: str  # why it is not the same here
    damage: str  # what is wrong with its bytes


class Suggested(NamedTuple):
    id: int
    where: str  # as --checkpoint-dir takes it
    path: str  # what is there


class Begun(NamedTuple):
    """The search with this id: it may take long."""

    id: int


Reply = Begun | Searched | Failed | Looked | Suggested


class Service(Helper):
    """Asks; its descriptor becomes readable when a reply is there, or it has ended."""

    def __init__(self, where: str, exclude: Iterable[str], complete: str, verify: str) -> None:
        settings = {"where": where, "exclude": tuple(exclude)}
        settings |= {"complete": complete, "verify": verify}
        module = "hpclaunch.system.checkpoints.service"
        super().__init__(module, str(os.getpid()), json.dumps(settings))
        self.deadline = math.inf  # if nothing is heard by then, it hangs: begin another

    def search(self, number: int, rounds: Rounds, avoid: Mapping[int, str]) -> None:
        self.deadline = time.monotonic() + PATIENCE
        self.ask(do="search", id=number, rounds=list(rounds), avoid=list(avoid.items()))

    def look(self, number: int, look: Look, rounds: Rounds, *, local: bool = False) -> None:
        """`local`: it is another file than that of the head, of the same name."""
        size = -1 if local else look.size
        share = ALL if local and look.share[1] else look.share
        of = (look.path, size, look.time)
        self.ask(do="look", id=number, rounds=list(rounds), of=of, share=share)

    def suggest(self, number: int, arguments: Iterable[str], since: int) -> None:
        """Not answered where there is nothing to suggest."""
        self.ask(do="suggest", id=number, arguments=list(arguments), since=since)

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
            found = tuple(Found(**f) for f in told["found"])
            return Searched(id, found, told["disk"], tuple(told["others"]))
        case "suggested":
            return Suggested(id, **told)
        case "seen":
            return Looked(id, **told)
        case _:
            return Failed(id, told["why"])
