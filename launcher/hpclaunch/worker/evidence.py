"""Where the workers of a round are: the stacks of their threads, their flight recorders, and the
states of their processes. This is found out only when somebody suspects a hang.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from .fork_server_messages import RankEvidence
from .processes import NS, is_stopped
from .progress_watch import ProgressWatch
from .shared_pages import WorkerPage
from .site import _hpclaunch_layout as layout
from .stack_questions import (
    APART,
    LONGEST,
    PATIENCE,
    Questioned,
    by_handlers,
    by_responder,
    is_answering,
    prints,
)
from .worker_processes import described, tree, wanted, work_of

GATHERING = 0.5  # seconds to find a moment in which a worker can be asked
ANSWERING = 0.2  # seconds for one that got SIGNAL: it does not report when it has answered
SPINNING = 0.2  # seconds in which it shows who uses the CPU all the time
SPUN = 0.25  # of that time; to answer takes less
FORKED = 1.0  # seconds for the processes that workers have forked

Asked: TypeAlias = list[tuple[int, Questioned]]  # processes of ranks


class Evidence:
    """The answers of workers that are asked where they are."""

    def __init__(self, progress: ProgressWatch) -> None:
        self._progress = progress
        # rank -> whether it used the CPU while it was asked
        self._busy: dict[int, bool] = {}
        # rank -> (pid, where its stacks begin in the file) of each process that got SIGNAL
        self._marks: dict[int, list[tuple[int, int]]] = {}

    def ask(self, pids: Mapping[int, int]) -> Iterator[float]:
        """Ask all workers where they are: `found` returns the answers in the end. Yield how many
        seconds to wait each time."""
        self._busy, self._marks = {}, {rank: [] for rank in pids}
        pages = self._progress.pages
        if not pages:
            return
        for its in pages.values():
            its.empty(stacks=True)
        self._progress.disregard()
        began, used = time.monotonic(), {rank: wanted(work_of(pid)) for rank, pid in pids.items()}
        waiting: dict[int, Questioned] = {}  # by rank, for their responders
        silent: Asked = []  # those that get SIGNAL
        forked: Asked = []  # the same, after the workers themselves
        for rank, pid in pids.items():
            its = pages[rank]
            answerer = its.number(layout.ANSWERER)
            for process in tree(pid) if answerer else ():
                if is_stopped(process):
                    continue
                is_own = process == answerer
                asked = Questioned(process, its.number(layout.RESPONDER) if is_own else 0)
                if asked.responder:
                    its.request(layout.ENTRIES)
                    waiting[rank] = asked
                elif prints(process, its.path_of_stacks):
                    (silent if is_own else forked).append((rank, asked))
        enough, elapsed = SPINNING, 0.0
        while elapsed < max(enough, LONGEST if waiting else 0.0, GATHERING if silent else 0.0):
            yield APART
            elapsed = self._progress.runs() - began
            late = [
                (rank, asked)
                for rank, asked in waiting.items()
                if elapsed >= PATIENCE and layout.BEGUN not in pages[rank].stacks()
            ]
            before = len(late) + len(silent)
            late, silent = self._signal(pages, late), self._signal(pages, silent)
            if len(late) + len(silent) < before:
                enough = elapsed + ANSWERING
            waiting = {
                rank: asked
                for rank, asked in waiting.items()
                if not (self._marks[rank] or pages[rank].answer("entries"))
            }
        for rank, pid in pids.items():
            self._busy[rank] = wanted(work_of(pid)) - used[rank] >= SPUN * elapsed
            self._progress.moved(last_begun(pages[rank].answer("entries")))
        left, since = silent + forked, began + elapsed
        now, limit = since, since + FORKED
        while (left or self._are_answering()) and now < min(limit, since + ANSWERING):
            unasked, left = left, self._signal(pages, left)
            yield APART
            now = self._progress.runs()
            since = since if left == unasked else now

    def _are_answering(self) -> bool:
        return any(marks and is_answering(marks[-1][0]) for marks in self._marks.values())

    def _signal(self, pages: Mapping[int, WorkerPage], processes: Asked) -> Asked:
        """Send SIGNAL to one process of each rank, if it can be asked so now. Return those that are
        still to be asked."""
        left: Asked = []
        ranks: set[int] = set()
        for rank, asked in processes:
            its, marks = pages[rank], self._marks[rank]
            if marks and rank not in ranks and is_answering(marks[-1][0]):
                ranks.add(rank)
            size = its.size_of_stacks
            if rank not in ranks and asked.signal(its.path_of_stacks):
                ranks.add(rank)
                marks.append((asked.pid, size))
            else:
                left.append((rank, asked))
        return left

    def found(self, pids: Mapping[int, int]) -> list[RankEvidence]:
        """Return what is known of each living worker."""
        pages = self._progress.pages
        return [self._of_rank(rank, pid, pages[rank]) for rank, pid in pids.items() if pages]

    def _of_rank(self, rank: int, pid: int, its: WorkerPage) -> RankEvidence:
        text, phase = its.stacks(), its.phase
        marks = self._marks.get(rank, [])
        sizes = [size for _, size in marks] + [len(text)]
        texts = {
            process: by_handlers(text[begin:end])
            for (process, begin), end in zip(marks, sizes[1:], strict=True)
        }
        own = texts.pop(its.number(layout.ANSWERER), "")
        return {
            "rank": rank,
            "pid": pid,
            "step": its.number(layout.NUMBER) or its.number(layout.STEP),
            "phase": layout.PHASES[phase] if phase < layout.OTHER else "",
            "busy": self._busy.get(rank, False),
            "stacks": by_responder(text) or own,
            "forked": [each for each in texts.items() if each[1]],
            "records": its.answer("entries"),
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
