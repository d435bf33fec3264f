"""The progress of the workers of a round, and whether they do anything at all.

A worker writes its progress to shared memory (`shared_pages.py`). As long as that changes, nothing
else is read. Otherwise, these are signs of life: its processes write (but not answers to this
process), or read more than a little, also from a connection; one of them has started or ended; or
the worker has allocated memory of a GPU. CPU time is a weaker sign, which is reported separately:
ranks that wait for others, or for a GPU, may use it too.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .fork_server_messages import Arrivals, Progress
from .shared_pages import PHASES, SharedPages, WorkerPage
from .site import _hpclaunch_layout as layout
from .sock_diag import connections_of
from .worker_processes import Works, is_exiting, is_traced, saves, wanted, work_of

LOOK = 1.0  # seconds between two looks
# While nothing moves, looks become rarer, since processes cost much more to read than the shared
# memory: the pause is PACE times the seconds of stillness, or all of them if nobody awaits
# stillness, but at most STILL_LOOK.
PACE, STILL_LOOK = 0.25, 5.0
LATE = 2.0  # seconds; a look that is as late as this means that this process was suspended
REPORT = 5.0  # seconds between two reports while nothing changes but the steps
SAVES = 1 << 20  # bytes written in a second by a worker that makes no step
READ = 1 << 12  # bytes in a second; some programs watch the machine, and read a little now and then
BUSY = 0.1  # of one CPU
EARLY = 300.0  # seconds; a worker that fails by then without torch may not have trained
# Costly signs are looked for once nothing has moved for this share of the shortest awaited time, or
# for so many seconds if nobody awaits stillness.
COSTLY_SHARE, COSTLY_AFTER = 0.2, 5.0


class WeakSigns(NamedTuple):
    """The weaker signs of life, of workers that make no progress."""

    busy: bool = False  # they use the CPU
    traced: bool = False  # they are being debugged
    patient: bool = False  # they write to files, or the kernel takes them down


class Written(NamedTuple):
    """The fields of its slot that a worker writes."""

    steps: int
    at: float  # the time of the last step
    phase: int
    number: int  # the script's own number of the step


class Watched:
    """One worker of the round, as it was at the last look."""

    def __init__(self, page: WorkerPage) -> None:
        self.page = page
        self.written: Written | None = None
        self.work: Works | None = None
        self.bytes = 0  # written by all of its processes, without answers to us
        self.answer_bytes = 0
        self.step = 0
        self.stepped_at = 0.0
        self.saves = False  # has written much since its last step, or is in the phase "save"
        self.spent: list[float] | None = None  # what it has spent its time on, once it has ended

    def read(self) -> Written:
        page = self.page
        steps, number = page.number(layout.STEP), page.number(layout.NUMBER)
        return Written(steps, page.seconds(layout.TIME), page.phase, number)

    @property
    def phase(self) -> int:
        """The phase at the last look; START before it, or if the process that writes it is gone."""
        if self.written is None or not os.path.exists(f"/proc/{self.page.number(layout.WRITER)}"):
            return layout.START
        return self.written.phase


class ProgressWatch:
    """A watch that begins anew with every round. Times are on the monotonic clock."""

    def __init__(self) -> None:
        self._shared: SharedPages | None = None
        self._workers: dict[int, Watched] = {}  # by rank; none without shared pages
        self._without_torch = layout.TRAINING  # what workers do that are not seen to use torch
        self._living = 0  # workers at the last look
        # At the last costly look: bytes by inode of a connection, layout.ALLOCATED by rank
        self._traffic: dict[int, int] | None = None
        self._allocated: dict[int, int] | None = None
        self._moved_at = 0.0
        self._looked_at = 0.0
        self._ran_at = 0.0  # when this process was last known not to be suspended
        self._anew_at = 0.0  # the time of the last `begin_anew`
        self._awaited: tuple[float, ...] = ()  # seconds of stillness for which somebody waits
        self._reported_at = 0.0
        self._reported: object = None
        self._gap = 0.0  # the longest between two steps, since the last report
        self._save = 0.0  # the longest between two steps in which a worker has saved
        self._next = math.inf

    def begin(self, ranks: Iterable[int]) -> dict[int, dict[str, str]]:
        """Give each of these ranks a page. Return {rank: variables by which it finds its page}."""
        self.end()
        try:
            self._shared = SharedPages([*ranks])
        except OSError:  # too many open files: continue without a watch
            return {}
        self._workers = {rank: Watched(page) for rank, page in self._shared.by_rank.items()}
        self._reported = None
        self._without_torch = layout.TRAINING
        self._gap = self._save = 0.0
        self._awaited = ()
        self.begin_anew()
        return {rank: page.place.variable() for rank, page in self.pages.items()}

    def started(self, rank: int, pid: int) -> None:
        if rank in self._workers:
            self._workers[rank].page.numbers[layout.WORKER] = pid

    def ended(self, rank: int, *, has_failed: bool) -> None:
        """Note what a worker has spent its time on. Without torch, nothing but training is known of
        it; if such a worker fails early, this time was spent to get as far as that.
        """
        if rank in self._workers:
            worker = self._workers[rank]
            is_early = time.monotonic() - worker.page.seconds(layout.SINCE) < EARLY
            if has_failed and is_early and not worker.page.number(layout.WRITER):
                self._without_torch = layout.IMPORTS
            worker.spent, _ = worker.page.spent(without_torch=self._without_torch)

    def begin_anew(self) -> None:
        """Begin the watch, also after the workers or this process were suspended."""
        if not self._workers:
            return
        now = time.monotonic()
        self._moved_at = self._looked_at = self._reported_at = self._anew_at = self._ran_at = now
        self._next = now + LOOK
        for worker in self._workers.values():
            worker.written = worker.work = None

    def await_stillness(self, seconds: Iterable[float]) -> None:
        """Have `look` report as soon as nothing has moved for one of these times, in seconds."""
        self._awaited = tuple(seconds)
        if self._workers:
            self._schedule(self._next, time.monotonic())

    def _schedule(self, latest: float, now: float) -> None:
        """Look again at this time, or earlier, when nothing has moved for an awaited time."""
        ends = (self._moved_at + still for still in self._awaited)
        self._next = min([latest, *(end for end in ends if end > now)])

    def end(self) -> None:
        self._next = math.inf
        self._workers = {}
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def due(self) -> float:
        """Return when `look` is to be called again."""
        return self._next if self._next == math.inf else min(self._next, self._ran_at + LOOK)

    def runs(self) -> float:
        """Record that this process is not suspended. Return the time."""
        self._ran_at = time.monotonic()
        return self._ran_at

    def moved(self, at: float) -> None:
        """Record a sign of life that was found elsewhere."""
        self._moved_at = max(self._moved_at, at)

    # A look

    def look(self, pids: Mapping[int, int], *, at_once: bool = False) -> Progress | None:
        """Return what to report, if anything; `pids` are the living workers', by rank."""
        if not self._workers:
            return None
        ran_at, now = self._ran_at, self.runs()
        if now > ran_at + LOOK + LATE:  # this process was suspended, and perhaps the workers
            self.begin_anew()
            return None
        if now < self._next and not at_once:
            return None
        elapsed, self._looked_at = now - self._looked_at, now
        if not pids:
            self.begin_anew()
            return None
        steps = (self._step(self._workers[rank], elapsed) for rank in pids)
        moments = [moment for moment in steps if moment is not None]
        if len(pids) < self._living:
            moments.append(now)
        self._living = len(pids)
        signs = None
        if moments:
            self._moved_at, self._allocated = max(moments), None
            self.disregard()
        else:
            signs = self._look_at_processes(pids, elapsed)
        still = 0.0 if signs is None else now - self._moved_at
        pause = PACE * still if self._awaited else still
        self._schedule(now + min(STILL_LOOK, max(LOOK, pause)), now)
        return self._report(pids, signs or WeakSigns(), still, at_once=at_once)

    def _report(
        self, pids: Mapping[int, int], signs: WeakSigns, still: float, *, at_once: bool
    ) -> Progress | None:
        """Return the report; None if nothing but the steps has changed lately."""
        spent, doing = self.spent()
        phases = {self._workers[rank].phase for rank in pids}
        patient = signs.patient or bool(phases & layout.LONG)
        trains = bool(phases - {layout.START, layout.RENDEZVOUS})
        meets = layout.RENDEZVOUS in phases
        # All but the steps is reported as soon as it changes.
        state = (signs.busy, signs.traced, patient, trains, meets, doing)
        reported = (state, [still >= each for each in (REPORT, *self._awaited)])
        is_new = reported != self._reported or self._looked_at >= self._reported_at + REPORT
        if not (is_new or at_once):
            return None
        self._reported, self._reported_at = reported, self._looked_at
        for rank in self._workers.keys() - pids.keys():  # it has ended since it was looked at
            ended = self._workers[rank]
            ended.step = max(ended.step, ended.page.number(layout.STEP))
        gap, self._gap = self._gap, 0.0
        return Progress(
            steps=[self._workers[rank].step for rank in sorted(self._workers)],
            still=still,
            gap=gap,
            save=self._save,
            spent=spent,
            busy=signs.busy,
            traced=signs.traced,
            patient=patient,
            trains=trains,
            meets=meets,
            doing=doing,
        )

    def spent(self) -> tuple[list[int], int]:
        """Return (milliseconds that a worker has spent on each of layout.SPENDING, on average;
        which of these the workers do now).

        If they differ, SAVING counts, or else the earliest one: those that are ahead wait for it.
        """
        if not self._workers:
            return [0] * len(layout.SPENDING), layout.TRAINING
        found = [
            worker.page.spent(without_torch=self._without_torch)
            if worker.spent is None
            else (worker.spent, layout.UNCOUNTED)
            for worker in self._workers.values()
        ]
        lists = zip(*(seconds for seconds, _ in found), strict=True)
        means = [round(1000 * sum(each) / len(found)) for each in lists]
        doing = {d for _, d in found}
        return means, layout.SAVING if layout.SAVING in doing else min(doing)

    def _step(self, worker: Watched, elapsed: float) -> float | None:
        """Return when a worker has made a step or begun a phase; None if it has not since the last
        look."""
        new = worker.read()
        if new == worker.written:
            return None
        if new.steps > worker.step and worker.step:
            since = max(worker.stepped_at, self._anew_at)  # a pause does not count
            each = (new.at - since) / (new.steps - worker.step)
            self._gap = max(self._gap, each, self._looked_at - elapsed - since)
            if worker.saves:
                self._save = max(self._save, new.at - since)
        # A save counts until the next step.
        worker.saves = new.phase == layout.SAVE or (worker.saves and new.steps == worker.step)
        worker.step, worker.stepped_at = new.steps, new.at
        worker.written = new
        # A time outside of the interval since the last look is replaced by that of this look.
        since_last = self._looked_at - elapsed <= new.at <= self._looked_at
        return new.at if since_last else self._looked_at

    def _look_at_processes(self, pids: Mapping[int, int], elapsed: float) -> WeakSigns | None:
        """Return what the processes of workers that make no step do; None for a sign of life, the
        time of which is recorded.
        """
        now = self._looked_at
        seen = [self._work(self._workers[rank], pid, elapsed) for rank, pid in pids.items()]
        after = COSTLY_SHARE * min(self._awaited) if self._awaited else COSTLY_AFTER
        is_long = now >= self._moved_at + after
        processes = [each for worker in self._workers.values() for each in worker.work or ()]
        moved = any(moved for moved, _ in seen)
        if is_long and not moved:
            moved = self._has_traffic(processes, elapsed) | self._allocates(pids)
        if moved or not is_long:  # costly signs need a new baseline
            self._traffic = self._allocated = None
        if moved:
            self._moved_at = now
            return None
        return WeakSigns(
            busy=any(busy for _, busy in seen),
            traced=any(map(is_traced, processes)),
            patient=any(map(is_exiting, pids.values())) or (is_long and any(map(saves, processes))),
        )

    def _work(self, worker: Watched, pid: int, elapsed: float) -> tuple[bool, bool]:
        """Return whether the processes of a worker have done something since the last look, and
        whether they use the CPU.
        """
        before, answers_before = worker.work, worker.answer_bytes
        # An answer that is written in between is no sign of life, now or at the next look.
        answers, work = worker.page.size_of_answers, work_of(pid)
        while (size := worker.page.size_of_answers) < answers:  # they were removed just now
            answers, work = size, work_of(pid)
        worker.work, worker.answer_bytes = work, size
        known, written = worker.bytes, sum(each.written for each in work.values())
        if before is None or worker.answer_bytes < answers_before:
            worker.bytes = written - answers
            return False, False
        if before.keys() != work.keys():
            worker.bytes = written - answers
            return True, False
        worker.bytes = max(known, written - worker.answer_bytes)
        moved = worker.bytes > known
        for process, now in work.items():
            worker.saves |= now.written - before[process].written >= in_time(SAVES, elapsed)
            moved |= now.read - before[process].read >= in_time(READ, elapsed)
        return moved, wanted(work) - wanted(before) >= BUSY * elapsed

    def _has_traffic(self, processes: Iterable[int], elapsed: float) -> bool:
        """Return whether one of their connections has carried more than a little since the last
        look."""
        known = connections_of(processes)
        before, self._traffic = self._traffic, {inode: c.bytes for inode, c in known.items()}
        if before is None:
            return False
        least = in_time(READ, elapsed)
        return any(now - before.get(inode, now) >= least for inode, now in self._traffic.items())

    def _allocates(self, ranks: Iterable[int]) -> bool:
        """Return whether a worker has allocated memory of a GPU since the last look. A worker that
        waits for the GPU at every look may still make progress."""
        before, now = self._allocated, {}
        for rank in ranks:
            page = self._workers[rank].page
            if before is None:
                page.numbers[layout.ALLOCATED] = 0  # discards an earlier answer
            now[rank] = page.number(layout.ALLOCATED)
            page.request(layout.ALLOCATIONS)
        known, self._allocated = before or {}, now
        return any(allocated > known.get(rank, 0) > 0 for rank, allocated in now.items())

    # For samples, vitals, evidence and notices

    @property
    def pages(self) -> dict[int, WorkerPage]:
        """The pages of the workers, by rank."""
        return {rank: worker.page for rank, worker in self._workers.items()}

    def disregard(self) -> None:
        """Look again soon, and disregard what the workers have done since the last look: they may
        have done it because they were asked."""
        self._traffic = None
        for worker in self._workers.values():
            worker.work = None
        if self._workers:
            self._next = min(self._next, time.monotonic() + LOOK)

    def ask_arrivals(self, pids: Iterable[int]) -> None:
        """Ask workers when they began their last collectives: `arrivals_of` returns it. The caller
        calls `disregard` once they have answered."""
        self.disregard()
        for page in self.pages.values():
            page.empty(stacks=False)
        for rank in pids:
            if rank in self._workers:
                self._workers[rank].page.request(layout.ARRIVALS)

    def arrivals_of(self, rank: int) -> Arrivals:
        page = self.pages.get(rank)
        found = (page and page.answer("arrivals")) or {"arrivals": {}}
        blind = bool(found.get("blind"))
        return {"arrivals": found["arrivals"], "steps": found.get("steps", {}), "blind": blind}

    def steps_of(self, rank: int) -> tuple[int, float]:
        """Return (the number of steps so far, the time of the last one)."""
        worker = self._workers.get(rank)
        return (0, 0.0) if worker is None else worker.read()[:2]

    def whereabouts(self, rank: int) -> tuple[str, int, int]:
        """Return (the name of the phase, the number of steps so far, the script's own number)."""
        worker = self._workers.get(rank)
        if worker is None:
            return "", 0, 0
        steps, _, phase, number = worker.read()
        return PHASES[phase], steps, number


def in_time(rate: float, seconds: float) -> float:
    """Return the amount of a rate, per second, in these seconds, but in one second at least: two
    looks in quick succession would otherwise find much in little time.
    """
    return rate * max(1.0, seconds)
