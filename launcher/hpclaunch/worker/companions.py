"""The fork server's own processes, which are no workers: template, store process and copier."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from .fork_server_messages import Continued, Event
from .processes import is_stopped
from .stop_watch import STOPPED_LIMIT, StopWatch
from .store import Store
from .template_client import TemplateClient
from .terminals import Terminals


class Companions:
    """A watch over these processes, which continues those that somebody has stopped."""

    def __init__(
        self,
        template: TemplateClient,
        store: Store,
        terminals: Terminals,
        report: Callable[[Event], None],
    ) -> None:
        self._template = template
        self._store = store
        self._terminals = terminals
        self._report = report
        self._stop_watch = StopWatch(STOPPED_LIMIT)

    def pids(self) -> set[int]:
        """Return the pids of the companions; 0 stands for one that does not run."""
        successors = {successor.pid for successor in self._template.successors()}
        return {self._terminals.pid, self._store.pid, self._template.pid} | successors

    def due(self) -> float:
        """Return when `look` is to be called again, if no child changes before."""
        return self._stop_watch.due

    def look(self) -> None:
        """Send SIGCONT to companions that have been stopped for too long."""
        known = {self._terminals.pid: "copier", self._store.pid: "store"}
        stopped = filter(is_stopped, self.pids() - {0})
        for pid in self._stop_watch.look(stopped, time.monotonic()):
            os.kill(pid, signal.SIGCONT)
            self._report(Continued(known.get(pid, "template")))
