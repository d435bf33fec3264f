"""Notices, on the fork server's side: all ranks of a round take one before the same step, or none.

The worker's side is in `site/_hpclaunch_progress.py`. A notice is offered first: its step is
written to the slots of the workers. It is accepted unless one of them has begun that step. From
then on, a worker that reaches this step waits. Once the agents of all ranks have accepted the
notice, it is given, and the workers take it; otherwise it is withdrawn, and they continue.

A worker that makes no steps of a torch optimizer takes the notice as soon as it is given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .fork_server_messages import Event, Offered, Taken, Unhandled, Unheard
from .processes import catches, foreground, signal_all
from .progress_watch import ProgressWatch
from .shared_pages import WorkerPage
from .site import _hpclaunch_layout as layout
from .workers import Workers

# A worker writes which step it begins, and then reads the step of the notice. This process writes
# that step, and waits for this time before it reads the worker's: on any processor, at least one of
# the two then sees what the other has written.
SETTLED = 0.001  # seconds


class StepNotices:
    """The notices of the current round."""

    def __init__(
        self, progress: ProgressWatch, workers: Workers, report: Callable[[Event], None]
    ) -> None:
        """`progress` has the pages of the workers."""
        self._progress, self._workers, self._report = progress, workers, report
        self._signum = 0  # of the last notice that was offered
        self._step = 0  # of the same
        # The number of the last notice that was given; 0: none, or `report_end` reported it.
        self._given = 0
        self._given_step = 0  # its step
        self._given_to: set[int] = set()  # the ranks that had not ended by then
        self._is_awaited = False  # not all have taken it yet

    def offer(self, number: int, step: int, signum: int) -> Offered:
        """Offer a notice before `step`, or with 0 before the next step of each rank."""
        pages = self._progress.pages
        stepping = [page for page in pages.values() if makes_steps(page)]
        busy = any(map(is_on_its_way, stepping))
        if not busy:
            self._signum, self._step = signum, step
            for page in pages.values():
                page.numbers[layout.STEP_OF_NOTICE] = layout.NEVER
                page.numbers[layout.NOTICE] = number
                page.numbers[layout.SIGNUM] = signum
                page.numbers[layout.STEP_OF_NOTICE] = step
            time.sleep(SETTLED)
        begun = [page.number(layout.ENTERED) for page in stepping]
        accepted = not busy and all(entered < step or not step for entered in begun)
        if not accepted and not busy:
            self.withdraw()
        return Offered(number, accepted, busy, [min(begun), max(begun)] if begun else [])

    def withdraw(self) -> None:
        for page in self._progress.pages.values():
            if page.number(layout.GIVEN) != page.number(layout.NOTICE):
                page.numbers[layout.STEP_OF_NOTICE] = layout.NEVER

    def give(self, number: int) -> None:
        """Give the notice. Report the ranks that cannot take it: they have no handler for the
        signal that it names, and do not ask for notices."""
        pages, pids = self._progress.pages, self._workers.pids()
        self._given, self._given_step, self._given_to = number, self._step, set(pids)
        for page in pages.values():
            page.numbers[layout.GIVEN] = number
            if not makes_steps(page):
                page.numbers[layout.STEP_OF_NOTICE] = 0  # it has the notice from now on
        without = [
            rank for rank, pid in pids.items() if not self._inform(pid, number, pages.get(rank))
        ]
        if without:
            self._report(Unhandled(self._signum, without))
        if len(without) == len(pids):
            self._report(Unheard(number))
        self._is_awaited = True
        self.look()

    def _inform(self, pid: int, number: int, page: WorkerPage | None) -> bool:
        """Send the signal to a worker that does not raise it itself. Return False if the worker
        has no handler for the signal that the notice names, and does not ask for notices.

        A program for which a shell waits gets a signal only if the notice names it. Many programs
        handle SIGTERM just to end in order: a default notice must not end a compiler or a copy.

        A worker that is ending, perhaps because of that signal, has no handlers any longer. So a
        handler that it had before counts, too."""
        if page is not None and alive(page.number(layout.WRITER)):
            pid = page.number(layout.WRITER)
        elif self._signum:
            below = foreground(pid, self._signum)
            pid = next((p for p in below if catches(p, self._signum, ignored=False)), pid)
        if self._signum and not catches(pid, self._signum):
            asks = page is not None and page.number(layout.ASKS)
            return bool(asks) or (page is not None and had_handler(page, self._signum))
        if page is not None and makes_steps(page):
            return True
        signum = self._signum or handled(pid)
        if signum:
            if page is not None:
                page.numbers[layout.TAKEN] = number
            # The process need not be a child of the fork server, and may have just ended.
            signal_all((pid,), signum)
        return True

    def look(self) -> None:
        """Report it if all workers have taken the notice."""
        if self._is_awaited and self.is_taken:
            self._report(Taken(self._given, last=False))
            self._is_awaited = False

    def report_end(self) -> None:
        """Report it if no worker has begun a step after that of the notice. Call this once all
        workers have ended, and before their leftovers are looked at."""
        self.look()
        if self._given and self.was_last:
            self._report(Taken(self._given, last=True))
            self._given = 0

    def end(self) -> None:
        """End the round."""
        self._given, self._is_awaited = 0, False

    @property
    def is_taken(self) -> bool:
        """Whether all workers that make steps have taken the last notice that was given, also those
        that have ended since; False if all had ended before."""
        able, had_ended = self._stepping()
        taken = all(page.number(layout.TAKEN) == self._given for page in able)
        return taken and bool(able or not had_ended)

    @property
    def was_last(self) -> bool:
        """Whether the last notice that was given was taken, and no worker has begun a step after
        that of the notice."""
        able, _ = self._stepping()
        last = all(page.number(layout.ENTERED) <= self._given_step for page in able)
        return bool(able) and last and self.is_taken

    def _stepping(self) -> tuple[list[WorkerPage], list[WorkerPage]]:
        """Return the pages of workers that make steps: of those that could take the last notice
        that was given, and of those that had ended."""
        stepping = {r: p for r, p in self._progress.pages.items() if p.number(layout.ENTERED)}
        able = [page for rank, page in stepping.items() if rank in self._given_to]
        return able, [page for rank, page in stepping.items() if rank not in self._given_to]


def makes_steps(page: WorkerPage) -> bool:
    """Return whether a living process has an optimizer of torch, or counts its steps itself."""
    makes = page.number(layout.MAKES) or page.number(layout.ENTERED)
    return bool(makes) and alive(page.number(layout.WRITER))


def had_handler(page: WorkerPage, signum: int) -> bool:
    """Return whether a script that has ended handled or ignored this signal at its end."""
    return bool(page.number(layout.HANDLED) >> signum & 1)


def is_on_its_way(page: WorkerPage) -> bool:
    """Return whether a notice was given, and the worker has not reached its step yet."""
    notice = page.number(layout.NOTICE)
    return bool(notice) and page.number(layout.GIVEN) == notice != page.number(layout.TAKEN)


def handled(pid: int) -> int:
    """Return the first of NOTICE_SIGNALS for which a process has a handler; 0 if it has none."""
    return next((s for s in layout.NOTICE_SIGNALS if catches(pid, s, ignored=False)), 0)


def alive(pid: int) -> bool:
    return bool(pid) and os.path.exists(f"/proc/{pid}")
