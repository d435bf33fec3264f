"""The ledger of the agent that leads: the facts that it has recorded, after those of earlier heads
and of an earlier start of the first agent.

The log service reads the earlier facts from the log directory. No decision depends on the ledger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from ..core.control import Control
from ..core.protocol.effects import Exit
from ..core.protocol.facts import Fact, HeadChanged, NodesAllocated, RoundEnded
from ..core.protocol.wording import harmless_json
from ..observe.head_facts import DatedFact
from ..observe.job_report import report
from ..observe.launches import Launch, account
from ..observe.ledger import KINDS, Ledger, ledger_of
from ..system.logs import fact_files
from ..system.logs.fact_files import AgentFacts
from ..system.shared import packing
from .adapter import Adapter
from .context import Context
from .end_watch import EndWatch

SHORTEST, LONGEST = 30.0, 300.0  # seconds between two records of the use of the seats
PER_AGE = 100  # within these limits, the period is the job's age divided by this
MOST_KEPT = 1000  # facts kept until they are folded, or until those of earlier heads are known


class LedgerKeeping(Adapter):
    """Folds facts, which `note` receives, and records facts of its own."""

    def __init__(self, context: Context, control: Control, end_watch: EndWatch) -> None:
        config = context.config
        self._directory, self._launch = config.directory, config.allocation.name
        self._date, self._incarnation = context.date, context.incarnation
        self._record, self._logs = context.record, context.logs
        self._control, self._end_watch = control, end_watch
        self._began = time.monotonic()
        self._due = self._began + SHORTEST
        self._ledger: Ledger | None = None  # None: not needed yet
        self._new: list[DatedFact] = []  # facts that are not in the ledger yet
        self._is_whole = not config.anew  # the ledger has the facts of all heads
        # All facts of this head, until those of earlier ones arrive. None: they have arrived, or
        # there are too many.
        self._own: list[DatedFact] | None = [] if config.anew else None
        self._term = 0  # in which this head began to lead
        self._is_asked = False  # the log service was asked for the facts of earlier heads
        self._is_allocated = False  # NodesAllocated is recorded

    def deadline(self) -> float:
        return self._due if self._control.leads else math.inf

    def note(self, fact: Fact, at: float) -> None:
        """Note a fact that this agent has recorded at this time, in seconds since the epoch."""
        if isinstance(fact, HeadChanged):
            self._ledger, self._new, self._own, self._term = None, [], [], fact.term
            self._is_whole = self._is_asked = False
        self._new.append((at, fact))
        if len(self._new) > MOST_KEPT:
            self._folded()
        if self._own is not None:
            self._own.append((at, fact))
            self._own = self._own if len(self._own) <= MOST_KEPT else None

    def update(self, now: float) -> None:
        began = self._end_watch.began  # the start of the job, if it is known
        is_new = not self._is_allocated and self._control.leads
        # A fact recorded before HeadChanged counts for no head.
        if began is not None and is_new and self._control.seat_use(now) is not None:
            self._is_allocated = True
            self._record(NodesAllocated(began - self._date.now()))
        if now >= self._due and self._control.leads:
            age = now - self._began
            self._due = now + min(LONGEST, max(SHORTEST, age / PER_AGE))
            self._is_asked = False
            if (use := self._control.seat_use(now)) is not None:
                self._record(use)
        is_wanted = self._own is not None and not self._is_asked and self._control.leads
        if is_wanted and self._directory is not None:
            self._is_asked = True  # asked again when due: the answer may be lost with its process
            kinds = [kind.__name__ for kind in KINDS]
            self._logs.read_facts(self._directory, self._launch, kinds, self._take_earlier)

    def _take_earlier(self, lines: str) -> None:
        """Insert the earlier facts, which the log service has read, before this head's own."""
        if self._own is None:
            return
        earlier = ledger_of(map(self._before, fact_files.of_lines(lines)))
        # In the first term, the earlier start of the first agent may have recorded nothing yet.
        if earlier.since > 0 or not self._term:
            self._ledger, self._new, self._own = earlier, self._own, None
            self._is_whole = True

    def _before(self, run: AgentFacts) -> Sequence[DatedFact]:
        """Return the facts of an agent that were recorded before this head began to lead."""
        if run.incarnation != self._incarnation:
            return run.facts
        own = [isinstance(fact, HeadChanged) and fact.term == self._term for _, fact in run.facts]
        return run.facts[: own.index(True)] if self._term and True in own else []

    def launch(self) -> Launch | None:
        """Return the launch until now, or None if this agent does not lead or lacks facts of it."""
        use = self._control.seat_use(time.monotonic())
        if use is None or not self._is_whole:
            return None
        return self._folded().launch(self._launch, use, self._date.now())

    def ends(self) -> list[RoundEnded]:
        """Return the known rounds that have ended early."""
        return self._folded().ends

    def goodput(self) -> float | None:
        """Return the goodput of the launch so far, or None if it is not known here."""
        launch = self.launch()
        return None if launch is None else account([launch]).goodput

    def packed(self) -> bytes:
        """Return the launch until now for another process, or b"" if it is not known here."""
        launch = self.launch()
        return b"" if launch is None else packing.pack(launch)

    def conclude(self, end: Exit) -> None:
        """At a head, record the use of the seats, and write the report if no fact of the
        launch is missing.
        """
        if (use := self._control.seat_use(time.monotonic())) is None:
            return
        self._record(use)
        launch = self._folded().launch(self._launch)
        if self._directory is None or launch is None or not self._is_whole:
            return
        text = harmless_json(packing.to_json(report([launch])).decode())
        self._logs.service.keep(self._directory, {"report.json": text})

    def _folded(self) -> Ledger:
        """Return the ledger with all facts so far."""
        if self._ledger is None:
            self._ledger = Ledger()
        for at, fact in self._new:
            self._ledger.note(fact, at)
        self._new.clear()
        return self._ledger
