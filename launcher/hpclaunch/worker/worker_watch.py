"""Progress, evidence, samples and vital signs of the workers of a round.

Their progress is looked at again and again (`progress_watch.py`). The rest is found out when there
is a query for it: where they are (evidence), a sample, or vital signs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from .evidence import Evidence
from .fork_server_messages import (
    EVIDENCE,
    HISTORY,
    SAMPLE,
    VITALS,
    Answer,
    Event,
    RankVitals,
)
from .processes import CPU_TIMES, STARTED, TICKS, read_proc, stat
from .progress_watch import ProgressWatch
from .sampler import Sampler
from .worker_processes import tree
from .workers import Workers

RESIDENT = 1  # fields of /proc/PID/statm: pages
PAGE = os.sysconf("SC_PAGE_SIZE")

# The steps to an answer: each yields the seconds to wait until the next one; the last yields the
# body of the answer.
Steps: TypeAlias = Iterator[float | dict[str, Any]]


class Answering(NamedTuple):
    """A query that is being answered."""

    number: int
    next_at: float  # the time of the next step
    steps: Steps


class WorkerWatch:
    """A watch that begins anew with every round."""

    def __init__(
        self, workers: Workers, report: Callable[[Event], None], is_paused: Callable[[], bool]
    ) -> None:
        """`is_paused` returns whether the workers are held or stopped, and make no progress."""
        self._workers = workers
        self._report = report
        self._is_paused = is_paused
        self.progress = ProgressWatch()
        self._evidence = Evidence(self.progress)
        self._sampler = Sampler(self.progress)
        # The head and the history each learn what was used since their own last query.
        vitals = {kind: VitalSigns(self.progress) for kind in (VITALS, HISTORY)}
        self._finders: dict[str, Callable[[], Steps]] = {
            EVIDENCE: self._find_evidence,
            SAMPLE: lambda: self._sampler.take(self._workers.pids),
            VITALS: lambda: self._find_vitals(vitals[VITALS]),
            HISTORY: lambda: self._find_vitals(vitals[HISTORY]),
        }
        self._queries: dict[str, Answering] = {}  # by kind

    def begin(self, ranks: Iterable[int]) -> dict[int, dict[str, str]]:
        """Begin a round. Return what each rank needs in its environment to report its progress."""
        self._sampler.begin()
        return self.progress.begin(ranks)

    def end(self) -> list[int]:
        """End the round. Return on what the workers spent their time, in milliseconds."""
        self._queries.clear()
        spent, _ = self.progress.spent()
        self.progress.end()
        return spent

    # Queries

    def ask(self, kind: str, number: int) -> None:
        """Begin to answer a query, instead of an earlier one of its kind. For evidence and for a
        sample, workers write to the same file: a sample begins, or begins anew, after evidence."""
        if kind == EVIDENCE and SAMPLE in self._queries:
            self._begin(SAMPLE, self._queries[SAMPLE].number)
        self._begin(kind, number)
        if kind != SAMPLE or EVIDENCE not in self._queries:
            self._continue(kind)

    def _begin(self, kind: str, number: int) -> None:
        self._queries[kind] = Answering(number, 0.0, self._finders[kind]())

    def _continue(self, kind: str) -> None:
        """Take the next step to an answer, if it is time."""
        query = self._queries[kind]
        if time.monotonic() < query.next_at:
            return
        found = next(query.steps)
        if isinstance(found, float):
            self._queries[kind] = query._replace(next_at=time.monotonic() + found)
        else:
            del self._queries[kind]
            self._report(Answer(kind, query.number, found))

    def _find_evidence(self) -> Steps:
        yield from self._evidence.ask(self._workers.pids())
        if not self._is_paused():
            self._look_at_workers(at_once=True)  # some may have moved meanwhile
        yield {"ranks": self._evidence.found(self._workers.pids())}

    def _find_vitals(self, vitals: VitalSigns) -> Steps:
        yield {"ranks": vitals.of(self._workers.pids())}

    # Looks

    def due(self) -> float:
        """Return when `look` is to be called again."""
        if EVIDENCE in self._queries:
            return self._queries[EVIDENCE].next_at
        if self._is_paused():
            return math.inf
        return min([self.progress.due(), *(query.next_at for query in self._queries.values())])

    def look(self) -> None:
        """Look at the workers, if it is time. While they are paused, only evidence is collected.
        While evidence is collected, nothing else is."""
        if EVIDENCE in self._queries:
            self._continue(EVIDENCE)
        elif not self._is_paused():
            self._look_at_workers()
            for kind in [*self._queries]:
                self._continue(kind)

    def _look_at_workers(self, *, at_once: bool = False) -> None:
        progress = self.progress.look(self._workers.pids(), at_once=at_once)
        if progress is not None:
            self._report(progress)


class VitalSigns:
    """The use of CPUs and memory by workers, as the difference to the last reading."""

    def __init__(self, progress: ProgressWatch) -> None:
        self._progress = progress
        # pid -> (when it was read, seconds of CPU time until then)
        self._used: dict[int, tuple[float, float]] = {}

    def of(self, pids: Mapping[int, int]) -> list[RankVitals]:
        """Return the vitals of each living worker; `pids` are by rank."""
        before, self._used = self._used, {}
        return [self._of_rank(rank, pid, before) for rank, pid in sorted(pids.items())]

    def _of_rank(
        self, rank: int, pid: int, before: Mapping[int, tuple[float, float]]
    ) -> RankVitals:
        phase, steps, step = self._progress.whereabouts(rank)
        processes = [(process, fields) for process in tree(pid) if (fields := stat(process))]
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        used = sum(sum(map(int, fields[CPU_TIMES])) for _, fields in processes) / TICKS
        own = dict(processes).get(pid)
        begun = now if own is None else int(own[STARTED]) / TICKS
        since, used_before = before.get(pid, (begun, 0.0))
        self._used[pid] = (now, used)
        return {
            "rank": rank,
            "phase": phase,
            "steps": steps,
            "step": step,
            "cpu": round(max(0.0, used - used_before) / max(1 / TICKS, now - since), 3),
            "memory": sum(resident(process) for process, _ in processes),
        }


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    fields = read_proc(f"{pid}/statm").split()
    return int(fields[RESIDENT]) * PAGE if fields else 0
