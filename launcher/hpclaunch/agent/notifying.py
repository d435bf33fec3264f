"""Events that the user's command is told of (--notify): how an agent that leads hands them over to
the process that runs it, one at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import zmq

from ..core.protocol.facts import Fact, JobEnded
from ..core.protocol.wording import count, harmless, plain
from ..system.notifier import NotifierClient
from .config import Config

if TYPE_CHECKING:
    from ..observe.notifications import Detail, Notification, Notifications

FORMAT = 1  # of an event
MOST = 64  # events that wait; beyond that, the oldest are dropped
END_LIMIT = 10.0  # seconds for what is left at the end


class Notifying:
    def __init__(
        self,
        config: Config,
        poller: zmq.Poller,
        say: Callable[[str], None],
        is_replaced: Callable[[NotifierClient], bool],
    ) -> None:
        self._config, self._poller, self._say = config, poller, say
        self._is_replaced = is_replaced
        self._notifications: Notifications | None = None  # None: the user asks for none
        self._client: NotifierClient | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._is_busy = False
        self._dropped = 0
        self._has_failed = False  # and the user knows

    def note(self, fact: Fact, goodput: Callable[[], float | None]) -> None:
        """Send what this fact gives reason for. `goodput` is asked once the job is over."""
        if not self._config.notify:
            return
        if self._notifications is None:
            from ..observe.notifications import Notifications  # no other job's start pays for it

            self._notifications = Notifications()
        for notification in self._notifications.note(fact, time.monotonic()):
            so_far = goodput() if isinstance(fact, JobEnded) else None
            self._send(notification, so_far)

    def _send(self, notification: Notification, goodput: float | None) -> None:
        allocation, job = self._config.allocation, self._config.job
        event: dict[str, Detail] = {
            "format": FORMAT,
            "event": notification.topic.value,
            "job": allocation.name,
            "slurm_id": job.slurm_id,
            "time": round(time.time(), 3),
            "host": job.places[allocation.index].host,
            "round": notification.round,
            "text": notification.text,
        }
        event |= notification.details
        if goodput is not None:
            event["goodput"] = round(goodput, 4)
        self._waiting.append({k: _readable(v) for k, v in event.items()})
        if len(self._waiting) > MOST:
            self._waiting.popleft()
            self._dropped += 1
        self._hand_over()

    def _hand_over(self) -> None:
        if self._is_busy or not self._waiting:
            return
        if self._client is None:
            self._start()
        if self._client is not None:
            self._client.ask(event=self._waiting.popleft())
            self._is_busy = True

    def _start(self) -> None:
        try:
            self._client = NotifierClient(self._config.notify)
        except OSError as e:
            self._waiting.clear()
            self._fail(f"cannot be run: {e.strerror}")
            return
        self._poller.register(self._client.fileno(), zmq.POLLIN)

    def receive(self, ready: Mapping[Any, int]) -> None:
        client = self._client
        if client is not None and client.fileno() in ready:
            self._hear(client, client.receive())

    def _hear(self, client: NotifierClient, replies: list[dict[str, Any]]) -> None:
        for reply in replies:
            self._is_busy = False
            if reply["why"]:
                self._fail(reply["why"])
        if client.lost:
            self._end()
            if self._is_replaced(client):
                self._start()
        self._hand_over()

    def close(self) -> None:
        """Returns once the last event is told, or after a while."""
        until = time.monotonic() + END_LIMIT
        while (client := self._client) is not None and self._is_busy:
            left = until - time.monotonic()
            if left <= 0:
                self._dropped += len(self._waiting)
                self._complain(f"took longer than {END_LIMIT:g} s at the end of the job")
                break
            self._hear(client, client.wait(left))
        if self._dropped:
            self._complain(f"was too slow for {count(self._dropped, 'event')}")
        self._end()

    def _end(self) -> None:
        if self._client is not None:
            self._poller.unregister(self._client.fileno())
            self._client.end(0.0)
            self._client = None
        self._is_busy = False

    def _fail(self, how: str) -> None:
        """Said once: it may fail at every event, and never in the same words."""
        if not self._has_failed:
            self._has_failed = True
            self._complain(how)

    def _complain(self, what: str) -> None:
        self._say(f"the command of --notify {plain(what)}")


def _readable(value: Detail) -> Detail:
    """It may be shown on a terminal in the end, and comes from a worker or a name of others."""
    if not isinstance(value, str):
        return value
    lines = "\n".join(map(harmless, value.split("\n")))
    return lines.encode(errors="replace").decode()
