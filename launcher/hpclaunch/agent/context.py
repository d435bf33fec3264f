"""The things that most adapters of an agent use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.protocol.facts import Fact
from ..core.protocol.values import value
from ..system.shared.steady_date import SteadyDate
from .config import Config
from .errands import Errands
from .logs import Logs


@value(frozen=True)
class Context:
    config: Config
    environ: Mapping[str, str]
    logs: Logs
    errands: Errands
    date: SteadyDate
    incarnation: str
    record: Callable[[Fact], None]
    note: Callable[[str, Any], None]  # write a note into the journal

    @property
    def host(self) -> str:
        return self.config.host
