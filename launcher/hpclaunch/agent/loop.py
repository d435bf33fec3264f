"""The agent's loop: a registry of adapters, one thread, and one poll.

Adapters make events for the core of what happens outside, and perform its effects. The loop decides
nothing, and has no rule for any single adapter.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import get_args

import zmq

from ..core.consensus.awake_clock import LATE
from ..core.control import Control
from ..core.protocol.effects import Effect, Exit
from ..core.protocol.events import Event, Tick
from ..system.logs.journal import Journal
from .adapter import Adapter, Fd, Performs

PATIENCE = 3.0  # seconds that helpers have to answer after this process was suspended


class Loop:
    """Runs a core until it exits. `adapters` are in the order in which they were opened, which is
    also the order in which they read and update.
    """

    def __init__(self, control: Control, journal: Journal, adapters: Sequence[Adapter]) -> None:
        self._control, self._journal, self._adapters = control, journal, adapters
        self._performers = performers(adapters, {Exit: self._exit})
        self._events: deque[Event] = deque()
        self._end: Exit | None = None
        self._checked_at = time.monotonic()  # when deadlines were checked last
        self._patient_until = -math.inf  # no helper counts as late before this time

    def run(self, first: Iterable[Event]) -> Exit:
        """Deliver the events `first`, run until the core exits, and return its last effect."""
        self._deliver(first)
        while self._end is None:
            self._turn()
        return self._end

    def conclude(self, end: Exit) -> None:
        """Have all adapters finish what users see of the job."""
        for adapter in self._adapters:
            adapter.conclude(end)

    def close(self, last: Sequence[Adapter]) -> None:
        """Close all adapters, even if one fails: in the reverse of the order in which they were
        opened, and then those of `last`, in this order.
        """
        order = [*(each for each in reversed(self._adapters) if each not in last), *last]
        with ExitStack() as ends:
            for adapter in reversed(order):
                ends.callback(adapter.close)

    def _turn(self) -> None:
        deadline = self._deadline()
        ready = self._poll(deadline)
        now = time.monotonic()
        # Read messages before checking deadlines: after a pause of this process, messages that
        # arrived meanwhile prove that the other agents were not silent.
        for adapter, fds in zip(self._adapters, ready, strict=True):
            self._deliver(adapter.ready(fds, now) or ())
        now = time.monotonic()
        # A deadline may be past already: what only a head does is due once an agent leads.
        if (late := now - max(deadline, self._checked_at)) >= LATE:
            self._patient_until = now + PATIENCE
            self._journal.note("late", {"seconds": round(late, 3)})
        self._checked_at = now
        if now >= self._control.next_deadline():
            self._deliver([Tick()])
        # A deadline that passes from here on is checked in the next turn.
        for adapter in self._adapters:
            if not adapter.limits_helper or now >= self._patient_until:
                self._deliver(adapter.update(now) or ())

    def _deadline(self) -> float:
        """Return the time of the next turn if nothing arrives before."""
        earliest = self._control.next_deadline()
        for adapter in self._adapters:
            at = adapter.deadline()
            earliest = min(earliest, max(at, self._patient_until) if adapter.limits_helper else at)
        return earliest

    def _poll(self, deadline: float) -> list[set[Fd]]:
        """Wait for a descriptor or the deadline. Return the ready descriptors of each adapter: one
        that another adapter opens in this turn may have the number of one that is closed in it.
        """
        reading = [[*adapter.fds()] for adapter in self._adapters]
        writing = [[*adapter.fds_to_write()] for adapter in self._adapters]
        polled = [(fd, zmq.POLLIN) for fd in chain(*reading)]
        polled += [(fd, zmq.POLLOUT) for fd in chain(*writing)]
        # Round up: if woken a moment too early, the loop would spin until the deadline.
        left = max(0.0, deadline - time.monotonic()) * 1000
        limit = -1 if deadline == math.inf else math.ceil(left)
        ready: set[Fd] = {fd for fd, _ in zmq.zmq_poll(polled, timeout=limit)}
        return [ready & {*fds} for fds in map(chain, reading, writing)]

    def _deliver(self, events: Iterable[Event]) -> None:
        """Give events to the core and perform its effects, until no further event follows."""
        for each in events:
            self._events.append(each)
            while self._events:
                event = self._events.popleft()
                now = time.monotonic()
                self._journal.event(event, now)
                effects = self._control.handle(event, now)
                self._journal.effects(effects, self._control)
                for effect in effects:
                    self._events += self._performers[type(effect)](effect) or ()

    def _exit(self, end: Exit) -> None:
        self._end = end


def performers(adapters: Iterable[Adapter], own: Performs) -> Performs:
    """Return the function for each kind of effect. Raises TypeError unless each has exactly one."""
    table = dict(own)
    for adapter in adapters:
        for kind, perform in adapter.performs().items():
            if kind in table:
                raise TypeError(f"{kind.__name__} is performed twice")
            table[kind] = perform
    if missing := [kind.__name__ for kind in get_args(Effect) if kind not in table]:
        raise TypeError(f"no adapter performs {', '.join(missing)}")
    return table
