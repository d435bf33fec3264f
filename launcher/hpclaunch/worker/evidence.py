"""The whereabouts of the workers of a round: the stacks of their threads, their flight recorders,
and the states of their processes. This is found out only when somebody suspects a hang.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any

from .fork_server_messages import RankEvidence
from .processes import NS, is_stopped
from .progress_watch import ProgressWatch
from .shared_pages import PHASES, WorkerPage
from .site import _hpclaunch_layout as layout
from .stack_questions import APART, LONGEST, TRYING, Questioned, ask, prints
from .worker_processes import described, tree, wanted, work_of

LIMIT = 3.0  # seconds for all answers
FORKED = 0.2  # seconds to find a moment in which a process that a worker has forked can be asked
SPINNING = 0.2  # seconds for which the use of CPUs is measured, to find workers that spin
SPUN = 0.25  # share of that time from which a worker counts as busy; an answer takes less


class Evidence:
    """The answers of workers that are asked where they are."""

    def __init__(self, progress: ProgressWatch) -> None:
        self._progress = progress
        # By rank: whether it used the CPU while it was asked, and the stacks of its processes
        self._busy: dict[int, bool] = {}
        self._stacks: dict[int, dict[int, str]] = {}

    def ask(self, pids: Mapping[int, int]) -> Iterator[float]:
        """Ask all workers where they are: `found` returns the answers in the end. Yield how many
        seconds to wait each time."""
        self._busy, self._stacks = {}, {rank: {} for rank in pids}
        pages = self._progress.pages
        if not pages:
            return
        for page in pages.values():
            page.empty(stacks=True)
        self._progress.disregard()
        began, used = time.monotonic(), {rank: wanted(work_of(pid)) for rank, pid in pids.items()}
        asking = [self._ask(pid, pages[rank], self._stacks[rank]) for rank, pid in pids.items()]
        elapsed = 0.0
        while elapsed < SPINNING or (asking and elapsed < LIMIT):
            asking = [each for each in asking if next(each, True) is None]
            yield APART
            elapsed = self._progress.runs() - began
        for rank, pid in pids.items():
            self._busy[rank] = wanted(work_of(pid)) - used[rank] >= SPUN * elapsed
            self._progress.moved(last_begun(pages[rank].answer("entries")))

    def _ask(self, pid: int, page: WorkerPage, stacks: dict[int, str]) -> Iterator[None]:
        """Ask the processes of a worker one after the other, since they write to the same file,
        and ANSWERER first. Yield None while waiting."""
        own, file = page.number(layout.ANSWERER), page.place.stacks
        for process in sorted(tree(pid), key=lambda each: each != own) if own else ():
            asked = Questioned(process, page.number(layout.RESPONDER) if process == own else 0)
            able = asked.responder or prints(process, f"/proc/self/fd/{file}")
            if able and not is_stopped(process):
                request = functools.partial(page.request, layout.ENTRIES)
                trying = TRYING if process == own else FORKED
                stacks[process] = yield from ask(asked, file, request, trying)
            until = time.monotonic() + LONGEST
            while asked.has_responded and page.answer("entries") is None:
                if time.monotonic() >= until:
                    break
                yield

    def found(self, pids: Mapping[int, int]) -> list[RankEvidence]:
        """Return what is known of each living worker."""
        pages = self._progress.pages
        return [self._of_rank(rank, pid, pages[rank]) for rank, pid in pids.items() if pages]

    def _of_rank(self, rank: int, pid: int, page: WorkerPage) -> RankEvidence:
        stacks = {**self._stacks.get(rank, {})}
        return {
            "rank": rank,
            "pid": pid,
            "step": page.number(layout.NUMBER) or page.number(layout.STEP),
            "phase": PHASES[page.phase],
            "busy": self._busy.get(rank, False),
            "stacks": stacks.pop(page.number(layout.ANSWERER), ""),
            "forked": [each for each in stacks.items() if each[1]],
            "records": page.answer("entries"),
            "processes": [described(process) for process in tree(pid)],
        }


def last_begun(records: Mapping[str, Any] | None) -> float:
    """Return when a worker began its last collective, by torch's recorder; 0.0 if it is not known.

    The recorder goes by the time of day. A time in the future means that the clock was set.
    """
    found = {} if records is None else records["entries"]
    entries = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    times = [each.get("time_created_ns") for each in entries]
    now = time.monotonic_ns()
    began = max((t for t in times if isinstance(t, int)), default=0) - time.time_ns() + now
    return began / NS if 0 < began <= now else 0.0
