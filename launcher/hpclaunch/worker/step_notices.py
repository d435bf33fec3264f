"""Notices: all ranks of a round are told something before the same step, or none is.

The fork server's side; the worker's is in `site/_hpclaunch_progress.py`. A notice is offered first:
its step is written to the slots of the workers, and is accepted unless one of them has begun that
step. From then on, a worker that comes to this step waits. Once the agents of all ranks have
accepted it, it is given, and the workers take it; otherwise it is withdrawn, and they go on.

A worker that makes no steps of a torch optimizer takes it as soon as it is given.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TypedDict

from .processes import catches, signal_all
from .progress_watch import ProgressWatch, Slot
from .site import _hpclaunch_progress as page

# A worker writes which step it begins, and then reads the step of the notice. What it has written
# before this process wrote that step is seen here after this time, whatever the processor.
SETTLED = 0.001  # seconds


class Answer(TypedDict):
    """The answer to an offer: fields of fork_server_messages.Offered."""

    accepted: bool
    busy: bool
    steps: list[int]


class StepNotices:
    """Of the workers of one round; `progress` is the ProgressWatch that has their slots."""

    def __init__(self, progress: ProgressWatch) -> None:
        self._progress = progress
        self.signum = 0  # of the last one that was offered
        self._step = 0  # of the same
        self._given_step = 0  # of the last one that was given
        self._given_to: set[int] = set()  # the ranks that had not ended by then

    def offer(self, number: int, step: int, signum: int) -> Answer:
        """Answer a notice before `step`, or with 0 before the next step of each rank.

        "steps" are the fewest and the most steps that workers have begun, of those that make any.
        """
        pages = self._progress.pages()
        stepping = [slot for slot in pages.values() if makes_steps(slot)]
        busy = any(map(is_on_its_way, stepping))
        if not busy:
            self.signum, self._step = signum, step
            for slot in pages.values():
                slot.put(page.STEP_OF_NOTICE, page.NEVER)
                slot.put(page.NOTICE, number)
                slot.put(page.SIGNUM, signum)
                slot.put(page.STEP_OF_NOTICE, step)
            time.sleep(SETTLED)
        begun = [slot.get(page.ENTERED) for slot in stepping]
        accepted = not busy and all(entered < step or not step for entered in begun)
        if not accepted and not busy:
            self.withdraw()
        steps = [min(begun), max(begun)] if begun else []
        return {"accepted": accepted, "busy": busy, "steps": steps}

    def withdraw(self) -> None:
        for slot in self._progress.pages().values():
            if slot.get(page.GIVEN) != slot.get(page.NOTICE):
                slot.put(page.STEP_OF_NOTICE, page.NEVER)

    def give(self, pids: Mapping[int, int], number: int) -> list[int]:
        """Returns the ranks that have no handler for its signal, if it names one, and do not ask
        for it either; `pids` are the living workers', by rank."""
        pages = self._progress.pages()
        self._given_step, self._given_to = self._step, set(pids)
        for slot in pages.values():
            slot.put(page.GIVEN, number)
            if not makes_steps(slot):
                slot.put(page.STEP_OF_NOTICE, 0)  # it has it from now on
        return [rank for rank, pid in pids.items() if not self._tell(pid, number, pages.get(rank))]

    def _tell(self, pid: int, number: int, slot: Slot | None) -> bool:
        """Send the signal to a worker that does not raise it itself. Returns False if it has no
        handler for the one that the notice names, and does not ask. A worker at its end has no
        handlers any more, and may be leaving because it has received that signal: if it had one,
        this returns True."""
        if slot is not None and alive(slot.get(page.WRITER)):
            pid = slot.get(page.WRITER)
        if self.signum and not catches(pid, self.signum):
            return slot is not None and bool(slot.get(page.ASKS) or had_handler(slot, self.signum))
        if slot is not None and makes_steps(slot):
            return True
        signum = self.signum or handled(pid)
        if signum:
            if slot is not None:
                slot.put(page.TAKEN, number)
            signal_all((pid,), signum)  # it may be no child of this process, and have just ended
        return True

    def is_taken(self, number: int) -> bool:
        """Whether all workers that make steps have taken it, those too that have ended since it was
        given. False if all had ended before."""
        able, had_ended = self._stepping()
        return all(slot.get(page.TAKEN) == number for slot in able) and bool(able or not had_ended)

    def was_last(self, number: int) -> bool:
        """Whether it was taken, and no worker has begun a step after that of the notice. `number`
        is that of the last one that was given."""
        able, _ = self._stepping()
        last = all(slot.get(page.ENTERED) <= self._given_step for slot in able)
        return bool(able) and last and self.is_taken(number)

    def _stepping(self) -> tuple[list[Slot], list[Slot]]:
        """Return the slots of workers that make steps: of those that could take the last notice
        that was given, and of those that had ended."""
        pages = self._progress.pages()
        stepping = [rank for rank, slot in pages.items() if slot.get(page.ENTERED)]
        able = [pages[rank] for rank in stepping if rank in self._given_to]
        return able, [pages[rank] for rank in stepping if rank not in self._given_to]


def makes_steps(slot: Slot) -> bool:
    """Whether there is an optimizer of torch, or the script counts, and a process tells of it."""
    return bool(slot.get(page.MAKES) or slot.get(page.ENTERED)) and alive(slot.get(page.WRITER))


def had_handler(slot: Slot, signum: int) -> bool:
    """Return whether the script has ended, and had a handler for a signal, or ignored it."""
    return bool(slot.get(page.HANDLED) >> signum & 1)


def is_on_its_way(slot: Slot) -> bool:
    """Whether a notice was given, and the worker has not come to its step yet."""
    notice = slot.get(page.NOTICE)
    return bool(notice) and slot.get(page.GIVEN) == notice != slot.get(page.TAKEN)


def handled(pid: int) -> int:
    """The first of the signals of a notice that a process has a handler for; 0 without one."""
    return next((s for s in page.NOTICE_SIGNALS if catches(pid, s, ignored=False)), 0)


def alive(pid: int) -> bool:
    return bool(pid) and os.path.exists(f"/proc/{pid}")
