"""Waits for the stager, and how far its copies are (--stage). All paths are those on storage."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from typing import TypeAlias

from ..core.protocol import effects, events
from ..core.protocol.model import Job
from ..system.staging import messages

FIRST_NOTICE, NEXT_NOTICE = 5.0, 60.0  # seconds of a wait until a message about it

Search: TypeAlias = Callable[[], list[events.Event]]


class Wait:
    """A wait for the stager, until it listens or until `search` can find all checkpoints."""

    def __init__(self, search: Search | None = None) -> None:
        self.search = search
        self.until = math.inf
        self.since = time.monotonic()
        self._notice_at = self.since + FIRST_NOTICE

    def deadline(self) -> float:
        return min(self.until, self._notice_at)

    def needs_notice(self, now: float) -> bool:
        """Return whether a message is due. The next one follows later."""
        if now < self._notice_at:
            return False
        self._notice_at = now + NEXT_NOTICE
        return True


class EndWait(Wait):
    """The wait at the end of the job until everything is on storage."""

    def __init__(self, effect: effects.FlushStage, job: Job) -> None:
        super().__init__()
        self.number, self.until, self._job = effect.number, effect.until, job

    def is_ended_by(self, signum: int) -> bool:
        """Return whether the user ends the wait by this signal. After Slurm's SIGTERM, SIGKILL
        follows, which limits the wait. A SIGINT, or a SIGTERM without Slurm, ends it once the
        user has seen a message about it: earlier signals were for the workers.
        """
        now, timing = time.monotonic(), self._job.timing
        if signum == signal.SIGTERM and self._job.slurm_id:
            self.until = min(self.until, now + timing.grace + timing.flush)
            return False
        return signum in (signal.SIGINT, signal.SIGTERM) and now >= self.since + FIRST_NOTICE


class Copies:
    """The state of the copies to storage."""

    def __init__(self) -> None:
        self.current: messages.DrainProgress | None = None  # the progress of the copy that runs
        self._newest = ""  # the newest checkpoint, perhaps only in memory
        self._stored = ""  # the checkpoint that was copied to storage last, or from it
        self._names: set[str] = set()  # of all checkpoints that were copied to storage, or from it
        self._failed: messages.DrainFailed | None = None  # since the last successful copy

    def note_saved(self, path: str) -> None:
        """Note that a checkpoint was saved. If its path is that of the last one, the copy on
        storage is out of date.
        """
        if path == self._newest:
            self._stored = ""
        self._newest = path

    def note_stored(self, path: str) -> None:
        """Note a checkpoint that was copied to storage, or from it."""
        self._stored = path
        self._names.add(path)

    def note_drained(self, path: str) -> None:
        self.current = self._failed = None
        self.note_stored(path)

    def has_stored(self, path: str) -> bool:
        """Return whether storage has had a checkpoint of this name."""
        return path in self._names

    def note_failed(self, failed: messages.DrainFailed) -> bool:
        """Note a failure. Return whether it is new: the last copy did not fail for this reason."""
        is_new = self._failed is None or self._failed.why != failed.why
        self.current, self._failed = None, failed
        return is_new

    def given_up(self, where: str, why: str) -> messages.Flushed:
        """Return the answer to a flush that ends now: what storage lacks in `where` is lost."""
        pending = self.current or self._failed
        if pending is None and self._stored and self._stored == self._newest:
            lost, path = f"other files in {where}", ""
        else:
            lost = path = pending.path if pending is not None else self._newest or where
        why = why if self._failed is None else self._failed.why
        return messages.Flushed(0, (lost,), why, path)
