"""--notify: the agent that leads has the user's command run for each event, one after the other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..core.protocol import events
from ..core.protocol.facts import Fact, JobEnded
from ..core.protocol.node_facts import NotifyFailed, NotifyTrouble
from ..core.protocol.wording import harmless
from ..observe.notifications import Detail, Notification, Notifications
from ..system.shared.errands import Answer, Notified, Notify
from .adapter import Adapter
from .context import Context

FORMAT = 1  # of an event
MOST = 64  # waiting events, beyond which the oldest are dropped
END_LIMIT = 10.0  # seconds for the events that are left at the end


class Notifying(Adapter):
    """Sends notifications of facts. `goodput` is called once the job is over."""

    def __init__(self, context: Context, goodput: Callable[[], float | None]) -> None:
        self._config, self._errands, self._record = context.config, context.errands, context.record
        self._host, self._goodput = context.host, goodput
        self._notifications = Notifications()
        self._waiting: deque[dict[str, Any]] = deque()
        self._is_busy = False
        self._dropped = 0
        self._has_failed = False  # a failure of the command is recorded

    def note(self, fact: Fact, at: float) -> None:
        """Send the notifications that follow from this fact."""
        if not self._config.notify:
            return
        for notification in self._notifications.note(fact, time.monotonic()):
            so_far = self._goodput() if isinstance(fact, JobEnded) else None
            self._send(notification, so_far)

    def _send(self, notification: Notification, goodput: float | None) -> None:
        allocation, job = self._config.allocation, self._config.job
        event: dict[str, Detail] = {
            "format": FORMAT,
            "event": notification.topic.value,
            "job": allocation.name,
            "slurm_id": job.slurm_id,
            "time": round(time.time(), 3),
            "host": self._host,
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
        self._is_busy = True
        event = self._waiting.popleft()
        self._errands.run(Notify(self._config.notify, event), self._done)

    def _done(self, answer: Answer | None) -> list[events.Event]:
        self._is_busy = False
        if not isinstance(answer, Notified):
            self._record(NotifyFailed(self._host, NotifyTrouble.INTERRUPTED))
        elif answer.why and not self._has_failed:  # later ones would differ only in their text
            self._has_failed = True
            self._record(NotifyFailed(self._host, NotifyTrouble.FAILED, answer.why))
        self._hand_over()
        return []

    def close(self) -> None:
        """Return once the command has been run for the last event, or after END_LIMIT."""
        until = time.monotonic() + END_LIMIT
        while self._is_busy:
            left = until - time.monotonic()
            if left <= 0:
                self._dropped += len(self._waiting)
                self._record(NotifyFailed(self._host, NotifyTrouble.UNFINISHED, limit=END_LIMIT))
                break
            self._errands.wait(left)
        if self._dropped:
            self._record(NotifyFailed(self._host, NotifyTrouble.SLOW, dropped=self._dropped))


def _readable(value: Detail) -> Detail:
    """Make a text safe to show on a terminal: it may contain text of a worker."""
    if not isinstance(value, str):
        return value
    lines = "\n".join(map(harmless, value.split("\n")))
    return lines.encode(errors="replace").decode()
