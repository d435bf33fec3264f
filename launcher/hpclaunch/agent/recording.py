"""The journal and the facts of an agent, on their way to files, the console and other observers."""

from __future__ import annotations

from collections.abc import Callable

from ..core.protocol import effects
from ..core.protocol.facts import Fact
from ..observe.console import Console
from ..system.logs.fact_files import FactFile
from ..system.logs.journal import Journal
from ..system.shared.steady_date import SteadyDate
from .adapter import Adapter, Performs
from .config import Config
from .logs import Logs


class Recording(Adapter):
    """Calls `observers` with each fact and its time, in seconds since the epoch."""

    def __init__(self, config: Config, logs: Logs, date: SteadyDate, incarnation: str) -> None:
        self._logs, self._date = logs, date
        directory, label, launch = config.directory, config.allocation.label, config.allocation.name
        self.journal = Journal(directory, label)
        self._facts = FactFile(directory, label, launch, config.host, incarnation)
        self._console = Console()
        self.observers: list[Callable[[Fact, float], None]] = [self._facts.record, self._show]

    def performs(self) -> Performs:
        return {effects.Record: lambda effect: self.record(effect.fact, effect.ago)}

    def record(self, fact: Fact, ago: float = 0.0) -> None:
        """Have all observers note a fact, which happened so many seconds ago."""
        at = round(self._date.now() - ago, 3)
        for note in self.observers:
            note(fact, at)

    def _show(self, fact: Fact, _at: float) -> None:
        for line in self._console.lines(fact):
            self._logs.service.say(line)

    def update(self, now: float) -> None:
        self.journal.lines.flush(self._logs.service)
        self._facts.lines.flush(self._logs.service)

    def close(self) -> None:
        self._facts.lines.finish(self._logs.service)
        self.journal.finish(self._logs.service)
