"""The requests of the agent to the stager, and the replies to it (`messages.py`)."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from hpclaunch.system.checkpoints.messages import RoundTimes
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode

from . import messages
from .copying import THREADS

Pending: TypeAlias = messages.Restore | messages.Search | messages.Flush


class Requests:
    """The channel to the agent. Requests to restore, search or flush are `pending` until the stager
    has time for them.
    """

    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._waking = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # ends `serve`: see `wake`
        self._poll = select.poll()
        for fd in (channel.fileno(), self._waking):
            self._poll.register(fd, select.POLLIN)
        self.pending: deque[Pending] = deque()
        # Takes a request at once, also in the middle of a copy.
        self.on_peers: Callable[[messages.Secret | messages.Lead | messages.Follow], None]
        self.rounds: RoundTimes = ()
        self.is_hurried = False
        self.is_gone = False  # the agent

    @property
    def has_pauses(self) -> bool:
        """Return whether copies should leave time to the workers, as far as the agent says."""
        return not (self.is_hurried or self.is_gone or self.has_flush)

    @property
    def has_flush(self) -> bool:
        """Return whether a flush is pending."""
        return any(isinstance(request, messages.Flush) for request in self.pending)

    def serve(self, seconds: float) -> None:
        """Read requests for some time; less if there is work to do or a copy becomes urgent."""
        until = time.monotonic() + seconds
        while not self.is_gone:
            left = max(0.0, until - time.monotonic())
            ready = dict(self._poll.poll(left * 1000))
            if self._waking in ready:
                os.eventfd_read(self._waking)
                until = 0.0
            if self._channel.fileno() not in ready:
                return
            had_pauses = self.has_pauses
            try:
                for request in self._channel.read():
                    self.take(decode(messages.REQUESTS, request))
            except AgentGoneError:
                self.is_gone = True
            if self.pending or had_pauses > self.has_pauses:
                until = 0.0

    def meanwhile(self, _done: int, _took: float) -> int:
        """Read the requests that have come: this is a `Between`."""
        self.serve(0.0)
        return THREADS

    def wake(self) -> None:
        """End `serve` early. Any thread may call this."""
        os.eventfd_write(self._waking, 1)

    def take(self, request: messages.Request) -> None:
        match request:
            case messages.Rounds(rounds=rounds, hurry=hurry):
                self.rounds, self.is_hurried = rounds, hurry
            case messages.Restore() | messages.Flush():
                self._append(request, messages.Restore, messages.Flush)
            case messages.Search():
                self._append(request, messages.Search)
            case _:
                self.on_peers(request)

    def _append(self, request: Pending, *replaced: type[Pending]) -> None:
        """Let a request replace pending ones of these kinds: the agent awaits only the newest."""
        for each in [each for each in self.pending if isinstance(each, replaced)]:
            self.pending.remove(each)
        self.pending.append(request)

    def send(self, reply: messages.Reply) -> None:
        """Send a reply. Any thread may call this."""
        with self._sending:
            if not self.is_gone:
                try:
                    self._channel.send(reply.encoded())
                except AgentGoneError:
                    self.is_gone = True
