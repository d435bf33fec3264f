"""The checkpoint to resume from: asks the process that looks for them, and has the newest read.

It also notes how many ranks each round had and how long it lasted, since that tells whether what
was saved then is complete.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import zmq

from .config import Checkpoints, Config
from .core import events
from .core.model import EXIT_LOST, Assignment, Trouble
from .system.checkpoints.client import Begun, Failed, Found, Reply, Searched, Service, Verified

READS = ("auto", "full")  # of --verify: every byte, or as many as there is time for
MOST_ROUNDS = 256  # that are remembered
TRIES = 2  # of a search whose process has ended


class Resuming:
    """One search at a time; `choose` begins it, and it is answered by an event."""

    def __init__(
        self,
        config: Config,
        poller: zmq.Poller,
        look_at_disk: Callable[[dict[str, Any]], None],
        note: Callable[[str, Any], None],
    ) -> None:
        self._settings = config.checkpoints
        self._poller = poller
        self._look_at_disk = look_at_disk
        self._note = note
        self._service: Service | None = None
        self._number = 0  # of the newest request
        self._waits = False  # for its reply
        self._left = 0  # more times that it may be asked
        self._found: tuple[Found, ...] = ()
        self._rounds: list[tuple[int, int | None, int]] = []  # begun, ended, ranks

    def close(self) -> None:
        if self._service is not None:
            self._poller.unregister(self._service.fileno())
            self._service.close()
            self._service = None

    # What this agent sees of the rounds

    def began(self, part: Assignment) -> None:
        if part.preflight:
            return
        self.ended()
        self._rounds = [*self._rounds[-MOST_ROUNDS:], (time.time_ns(), None, part.world_size)]
        self._watch(on=True)

    def ended(self) -> None:
        """From now on no worker is known to be alive; what it had begun to save is not finished."""
        if self._rounds and self._rounds[-1][1] is None:
            begun, _, world = self._rounds[-1]
            self._rounds[-1] = (begun, time.time_ns(), world)
            self._watch(on=False)

    def _watch(self, *, on: bool) -> None:
        """What is saved while the workers run is read as soon as it is there."""
        if self._service is not None and self._settings and self._settings.verify in READS:
            self._service.watch(self._rounds, on=on)

    # The search

    def choose(self) -> list[events.Event]:
        """Answered by CheckpointChosen or SearchFailed, here or later."""
        if self._settings is None:
            return [events.CheckpointChosen("")]
        self._left = TRIES
        return self._search(self._settings)

    def _search(self, settings: Checkpoints) -> list[events.Event]:
        self._left -= 1
        self._number += 1
        try:
            if self._service is None:
                self._service = Service(
                    settings.where, settings.exclude, settings.complete, settings.verify
                )
                self._poller.register(self._service.fileno(), zmq.POLLIN)
        except OSError as e:
            return [self._failed(str(e))]
        self._waits = True
        self._service.search(self._number, self._rounds)
        return []

    def next_deadline(self) -> float:
        return math.inf if self._service is None else self._service.deadline

    def expire(self, now: float) -> list[events.Event]:
        """Call it after `receive`. One that hangs in what it does by itself is replaced."""
        service = self._service
        if service is None or now < service.deadline:
            return []
        if not self._left or self._settings is None:
            service.deadline = math.inf  # another would hang as well: it is waited for
            return []
        self.close()
        return self._search(self._settings)

    def receive(self, ready: Mapping[Any, int]) -> list[events.Event]:
        service = self._service
        if service is None or service.fileno() not in ready:
            return []
        told: list[events.Event] = []
        for reply in service.replies():
            if self._waits and reply.id == self._number:
                told += self._on_reply(service, reply)
        if service.lost:
            self.close()
            if self._waits and self._settings is not None:
                if self._left:
                    told += self._search(self._settings)
                else:
                    told.append(self._failed("the process that looks for them was ended"))
        return told

    def _on_reply(self, service: Service, reply: Reply) -> list[events.Event]:
        match reply:
            case Begun():
                return []
            case Failed(why=why):
                return [self._failed(why)]
            case Searched(found=found, disk=disk):
                self._look_at_disk(disk)
                self._found = found
                newest = self._newest
                if newest is None or self._settings is None or self._settings.verify not in READS:
                    return [self._chosen()]
                service.verify(self._number, newest.path)
                return []
            case Verified(wrong=wrong, read=read, left=left):
                self._note("verified", {"wrong": wrong, "read": read, "left": left})
                if wrong:  # the process knows that now: the next older one
                    self._number += 1
                    service.search(self._number, self._rounds)
                    return []
                return [self._chosen()]

    @property
    def _newest(self) -> Found | None:
        """The newest complete one, which is the last of those that were found."""
        return self._found[-1] if self._found and self._found[-1].lacks is None else None

    def _chosen(self) -> events.CheckpointChosen:
        self._waits = False
        newest = self._newest
        loud = [f for f in self._found if f.lacks and not (f.quiet and newest)]
        passed_over = tuple(f"{f.name}: {f.lacks}" for f in loud)
        if newest is None:
            return events.CheckpointChosen("", passed_over)
        rule = f"{newest.format}, {newest.rule}"
        return events.CheckpointChosen(newest.path, passed_over, newest.identity, rule)

    def _failed(self, why: str) -> events.SearchFailed:
        self._waits = False
        where = self._settings.where if self._settings else ""
        reason = f"cannot look for checkpoints in {where}: {why}"
        return events.SearchFailed(Trouble(EXIT_LOST, reason))
