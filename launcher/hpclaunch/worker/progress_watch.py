"""How far the workers of a round have come, whether they do anything at all, and where they are.

A worker tells how far it has come in shared memory (`site/_hpclaunch_progress.py`). As long as that
moves, nothing else is looked at. While it does not, a sign of life is whatever a hanging
worker does not do: its processes write, but for answers to us, or read more than a little, from a
connection too, or one of them has started or ended, or the worker has allocated memory of a GPU.
CPU time is a weaker sign, counted apart: ranks that wait for others, or for a GPU, may use it too.

Where they are is asked only when it is needed: the stacks of their threads, their flight recorders,
and the states of their processes.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from .connections import connections_of
from .processes import (
    NS,
    STATE,
    VIRTUAL_MEMORY,
    io_of,
    is_stopped,
    queued,
    read_small,
    stat,
    status_of,
    tracer_of,
)
from .site import _hpclaunch_progress as page
from .stack_questions import (
    APART,
    LONGEST,
    PATIENCE,
    Questioned,
    heard,
    is_answering,
    prints,
    unheard,
)

LOOK = 1.0  # seconds between two looks
# While nothing moves, it is this share of the time for which nothing has, or all of that time if
# nobody awaits stillness, but no more than STILL_LOOK: a look at processes costs much more than one
# at the shared memory.
PACE, STILL_LOOK = 0.25, 5.0
LATE = 2.0  # seconds: every LOOK this process notes that it runs; so late, it was suspended
TELL = 5.0  # seconds from one message to the next, while all goes on as before
SAVES = 1 << 20  # bytes written in a second by a worker that makes no step
READ = 1 << 12  # bytes in a second; some programs watch the machine, and read a little now and then
BUSY = 0.1  # of one CPU
# What costs most to find out is asked once nothing has moved for this share of the shortest time
# that somebody awaits, or for so many seconds if nobody does.
COSTLY_SHARE, COSTLY_AFTER = 0.2, 5.0
GATHERING = 0.5  # seconds to find a moment in which a worker can be asked
ANSWERING = 0.2  # seconds for one that got SIGNAL: it tells nobody when it has answered
SPINNING = 0.2  # seconds in which it shows who uses the CPU all the time
SPUN = 0.25  # of that time; to answer takes less
FORKED = 1.0  # seconds for the processes that workers have forked
MOST = 1 << 20  # bytes of a worker's stacks, or of its recorder
MOST_PROCESSES = 32  # of one worker
LARGEST = 1 << 60  # number in a slot; sums of some of them still fit into 64 bits
LATEST = 1e9  # seconds, on the monotonic clock
LEVELS = 10  # of lists and objects in each other; torch's recorder has 5
MOST_READS = 100  # of a slot that changes while it is read
CPU_TIMES = slice(11, 13)  # fields of /proc/PID/stat after the name
SAMPLER = b"py-spy"

# What is the same of all workers, and is reported as soon as it changes.
STATE_OF_ALL: tuple[Literal["busy", "traced", "patient", "trains", "meets", "doing"], ...]
STATE_OF_ALL = ("busy", "traced", "patient", "trains", "meets", "doing")
SAVE = page.PHASES.index("save")
MACHINE = os.uname().machine
# The numbers of system calls that write to a file, or wait until it is written: write, pwrite,
# writev, pwritev, sendfile, copy_file_range, fallocate, ftruncate, fsync, fdatasync, syncfs,
# sync_file_range, close.
WRITING = {
    "x86_64": {1, 3, 18, 20, 40, 74, 75, 77, 277, 285, 296, 306, 326, 328},
    "aarch64": {46, 47, 57, 64, 66, 68, 70, 71, 82, 83, 84, 267, 285, 287},
}.get(MACHINE, set())
# The same without a descriptor as the first argument: rename, renameat2, sync, msync.
RENAMING = {"x86_64": {26, 82, 162, 264, 316}, "aarch64": {38, 81, 227, 276}}.get(MACHINE, set())


class Found(NamedTuple):
    """What the processes of workers that do not move do."""

    busy: bool  # they use the CPU
    traced: bool  # they are being debugged
    patient: bool  # they write to files, or the kernel takes them down


class Seen(TypedDict):
    """What `ProgressWatch.look` reports: the fields of fork_server_messages.Progress."""

    steps: list[int]
    still: float
    gap: float
    save: float
    spent: list[int]
    busy: bool
    traced: bool
    patient: bool
    trains: bool
    meets: bool
    doing: int


class Arrivals(TypedDict):
    """When a worker began its last collectives. All of it is empty if it has not answered."""

    arrivals: Any  # {process group: {number: when}}, as the worker has written it
    steps: Any  # {number: when}, on GPUs, likewise
    blind: bool  # torch records none


class Written(NamedTuple):
    """What a worker has written to its slot."""

    steps: int
    at: float  # the time of the last step
    phase: int
    number: int  # the script's own one of the step


class Watched:
    """One worker of the round, as it was at the last look."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.told: Written | None = None
        self.work: Works | None = None
        self.written = 0  # bytes, by all of its processes, without what they have told us
        self.told_us = 0  # bytes
        self.step = 0
        self.stepped_at = 0.0
        self.saves = False  # has written much since its last step, or says so
        self.spent: list[float] | None = None  # what it has spent its time on, once it has ended


class ProgressWatch:
    """Begun anew with every round. Times are on the monotonic clock."""

    def __init__(self) -> None:
        self._files: SharedFiles | None = None
        self._workers: dict[int, Watched] = {}  # by rank
        self._living = 0  # workers at the last look
        self._traffic: dict[int, int] | None = (
            None  # inode of a connection -> bytes, at the last look at them
        )
        self._allocated: dict[int, int] | None = None  # rank -> page.ALLOCATED, likewise
        self._moved_at = 0.0
        self._looked_at = 0.0
        self._ran_at = 0.0  # when this process last came here, be it to look or not
        self._anew_at = 0.0  # when it began to look, or began anew
        self._awaited: tuple[float, ...] = ()  # seconds of stillness for which somebody waits
        self._told_at = 0.0
        self._told: tuple[object, list[bool]] | None = None
        self._gap = 0.0  # the longest between two steps, since the last message
        self._save = 0.0  # the longest between two steps in which a worker has saved
        self._next = math.inf
        self._busy: dict[
            int, bool
        ] = {}  # rank -> whether it used the CPU while it was asked where it is
        self._marks: dict[
            int, list[tuple[int, int]]
        ] = {}  # rank -> (pid, where its stacks begin) of each that was

    def begin(self, ranks: Iterable[int]) -> dict[int, dict[str, str]]:
        """Give each of these ranks its slot. Return {rank: variables by which it finds that}."""
        self.end()
        self._workers = {rank: Watched(slot) for slot, rank in enumerate(ranks)}
        try:
            self._files = SharedFiles([*self._workers])
        except OSError:  # too many open files: continue without a watch
            self._workers = {}
            return {}
        for worker in self._workers.values():
            # While a worker waits for the template, that imports for it.
            self._files.put_time(worker.slot, page.SINCE, time.monotonic())
        self._told = None
        self._gap = self._save = 0.0
        self._awaited = ()
        self.go_on()
        files = self._files
        return {r: {page.VARIABLE: files.variable(w.slot)} for r, w in self._workers.items()}

    def born(self, rank: int, pid: int) -> None:
        if self._files is not None:
            self._files.put(self._workers[rank].slot, page.WORKER, pid)

    def ended(self, rank: int) -> None:
        if self._files is not None:
            worker = self._workers[rank]
            worker.spent, _ = self._files.spent(worker.slot)

    def go_on(self) -> None:
        """Begin to look, or begin anew: nothing was looked at while the workers stood still."""
        if self._files is None:
            return
        now = time.monotonic()
        self._moved_at = self._looked_at = self._told_at = self._anew_at = self._ran_at = now
        self._next = now + LOOK
        for worker in self._workers.values():
            worker.told = worker.work = None

    def await_stillness(self, seconds: Iterable[float]) -> None:
        """Have `look` report as soon as nothing has moved for one of these times, in seconds."""
        self._awaited = tuple(seconds)
        if self._files is not None:
            self._schedule(self._next, time.monotonic())

    def _schedule(self, latest: float, now: float) -> None:
        """Look again at this time, or when an awaited stillness begins."""
        ends = (self._moved_at + still for still in self._awaited)
        self._next = min([latest, *(end for end in ends if end > now)])

    def end(self) -> None:
        self._next = math.inf
        if self._files is not None:
            self._files.close()
            self._files = None

    def due(self) -> float:
        """Return when `look` is to be called again."""
        return self._next if self._next == math.inf else min(self._next, self._ran_at + LOOK)

    # How far they have come

    def look(self, pids: Mapping[int, int], *, at_once: bool = False) -> Seen | None:
        """Return what to report, if anything; `pids` are the living workers', by rank."""
        if self._files is None:
            return None
        now = time.monotonic()
        was_suspended = now > self._ran_at + LOOK + LATE
        self._ran_at = now
        if was_suspended:  # and so perhaps were they
            self.go_on()
            return None
        if now < self._next and not at_once:
            return None
        elapsed, self._looked_at = now - self._looked_at, now
        if not pids:
            self.go_on()
            return None
        files = self._files
        steps = (self._step(files, self._workers[rank], elapsed) for rank in pids)
        moments = [moment for moment in steps if moment is not None]
        if len(pids) < self._living:
            moments.append(now)
        self._living = len(pids)
        if moments:
            self._moved_at, self._allocated = max(moments), None
            self.disregard()
        found = None if moments else self._look_at_processes(files, pids, elapsed)
        still = 0.0 if found is None else now - self._moved_at
        pause = PACE * still if self._awaited else still
        self._schedule(now + min(STILL_LOOK, max(LOOK, pause)), now)
        return self._news(files, pids, found, still, at_once=at_once)

    def _news(
        self,
        files: SharedFiles,
        pids: Mapping[int, int],
        found: Found | None,
        still: float,
        *,
        at_once: bool,
    ) -> Seen | None:
        """Return the message to the agent; None if nothing but the steps has changed lately."""
        now = self._looked_at
        found = found or Found(busy=False, traced=False, patient=False)
        spent, doing = self.spent()
        phases = {self._phase(files, rank) for rank in pids}
        seen: Seen = {
            "steps": [],
            "still": still,
            "gap": self._gap,
            "save": self._save,
            "spent": list(spent),
            "busy": found.busy,
            "traced": found.traced,
            "patient": found.patient or bool(phases & page.LONG),
            "trains": bool(phases - {page.START, page.RENDEZVOUS}),
            "meets": page.RENDEZVOUS in phases,
            "doing": doing,
        }
        state = [seen[name] for name in STATE_OF_ALL]
        told = (state, [still >= each for each in (TELL, *self._awaited)])
        if told == self._told and not at_once and now < self._told_at + TELL:
            return None
        self._told, self._told_at = told, now
        self._gap = 0.0
        for rank in self._workers.keys() - pids.keys():  # it has ended since it was looked at
            ended = self._workers[rank]
            ended.step = max(ended.step, files.slot(ended.slot).steps)
        seen["steps"] = [self._workers[rank].step for rank in sorted(self._workers)]
        return seen

    def spent(self) -> tuple[tuple[int, ...], int]:
        """(milliseconds since their birth that the workers have spent on each of page.SPENDING, as
        a mean of them; on which of it they do so now)

        If they do different things, the others wait for those that have not come as far, or save.
        """
        if (files := self._files) is None or not self._workers:
            return (0,) * len(page.SPENDING), page.TRAINING
        found = [self._spent_by(files, worker) for worker in self._workers.values()]
        lists = zip(*(seconds for seconds, _ in found), strict=True)
        means = [round(1000 * sum(each) / len(found)) for each in lists]
        doing = {d for _, d in found}
        now = page.SAVING if page.SAVING in doing else min(doing)
        return tuple(means), now

    def _spent_by(self, files: SharedFiles, worker: Watched) -> tuple[list[float], int]:
        if worker.spent is not None:
            return worker.spent, page.UNCOUNTED
        return files.spent(worker.slot)

    def _processes(self) -> list[int]:
        """Those of the workers that have not moved, as this look has found them."""
        return [process for worker in self._workers.values() for process in worker.work or ()]

    def _has_traffic(self, elapsed: float) -> bool:
        """Whether more than a little has gone over one of their connections since the last look."""
        known = connections_of(self._processes())
        before, self._traffic = self._traffic, {inode: c.bytes for inode, c in known.items()}
        if before is None:
            return False
        least = in_time(READ, elapsed)
        return any(now - before.get(inode, now) >= least for inode, now in self._traffic.items())

    def _allocates(self, files: SharedFiles, ranks: Iterable[int]) -> bool:
        """Whether one has allocated memory of a GPU since the last look, as whoever begins
        something there does: it may wait for the GPU whenever it is looked at, and yet go on.
        """
        slots = {rank: self._workers[rank].slot for rank in ranks}
        before, now = self._allocated, {}
        for rank, slot in slots.items():
            if before is None:
                files.put(slot, page.ALLOCATED, 0)  # what an earlier answer said
            now[rank] = files.get(slot, page.ALLOCATED)
            files.request(slot, page.ALLOCATIONS)
        known, self._allocated = before or {}, now
        return any(allocated > known.get(rank, 0) > 0 for rank, allocated in now.items())

    def _phase(self, files: SharedFiles, rank: int) -> int:
        worker = self._workers[rank]
        if worker.told is None or not os.path.exists(f"/proc/{files.writer(worker.slot)}"):
            return page.START  # or the worker has gone on to another program
        return worker.told.phase

    def _step(self, files: SharedFiles, worker: Watched, elapsed: float) -> float | None:
        """Return when a worker has made a step, or said what it does; None if not since the last
        look.
        """
        told = files.slot(worker.slot)
        if told == worker.told:
            return None
        if told.steps > worker.step and worker.step:
            since = max(worker.stepped_at, self._anew_at)  # or it stood still in between
            each = (told.at - since) / (told.steps - worker.step)
            self._gap = max(self._gap, each, self._looked_at - elapsed - since)
            if worker.saves:
                self._save = max(self._save, told.at - since)
        # As it was at its last step, if it is still at that one.
        worker.saves = told.phase == SAVE or (worker.saves and told.steps == worker.step)
        worker.step, worker.stepped_at = told.steps, told.at
        worker.told = told
        # Of a step since the last look, unless the worker's clock is another.
        since_last = self._looked_at - elapsed <= told.at <= self._looked_at
        return told.at if since_last else self._looked_at

    def _look_at_processes(
        self, files: SharedFiles, pids: Mapping[int, int], elapsed: float
    ) -> Found | None:
        """Return what the processes of workers that make no step do; None for a sign of life, the
        time of which is recorded.
        """
        now = self._looked_at
        seen = [self._work(files, self._workers[rank], pid, elapsed) for rank, pid in pids.items()]
        after = COSTLY_SHARE * min(self._awaited) if self._awaited else COSTLY_AFTER
        is_long = now >= self._moved_at + after
        moved = any(moved for moved, _ in seen)
        moved = moved or (is_long and self._has_traffic(elapsed) | self._allocates(files, pids))
        if moved or not is_long:  # the next look compares with nothing that is older than this one
            self._traffic = self._allocated = None
        if moved:
            self._moved_at = now
            return None
        processes = self._processes()
        return Found(
            busy=any(busy for _, busy in seen),
            traced=any(map(is_traced, processes)),
            patient=any(map(is_exiting, pids.values())) or (is_long and any(map(saves, processes))),
        )

    def _work(
        self, files: SharedFiles, worker: Watched, pid: int, elapsed: float
    ) -> tuple[bool, bool]:
        """Return whether the processes of a worker have done something since the last look, and
        whether they use the CPU.
        """
        told_us, told_us_before = files.sizes(worker.slot), worker.told_us
        before, work = worker.work, work_of(pid)
        worker.work = work
        known, written = worker.written, sum(each.written for each in work.values())
        # What is told in between is no sign of life, now or at the next look.
        worker.told_us = files.sizes(worker.slot)
        if before is None or worker.told_us < told_us_before:
            worker.written = written - told_us
            return False, False
        if before.keys() != work.keys():
            worker.written = written - told_us
            return True, False
        worker.written = max(known, written - worker.told_us)
        moved = worker.written > known
        for process, now in work.items():
            worker.saves |= now.written - before[process].written >= in_time(SAVES, elapsed)
            moved |= now.read - before[process].read >= in_time(READ, elapsed)
        return moved, wanted(work) - wanted(before) >= BUSY * elapsed

    # How they keep pace

    def disregard(self) -> None:
        """Look again soon. What they have done since the last look, they may have done because they
        were asked.
        """
        self._traffic = None
        for worker in self._workers.values():
            worker.work = None
        if self._files is not None:
            self._next = min(self._next, time.monotonic() + LOOK)

    def ask_arrivals(self, pids: Iterable[int]) -> None:
        """Have all of them tell when they began their last collectives: `arrivals_of` has it. The
        caller calls `disregard` once they have answered."""
        self.disregard()
        if self._files is not None:
            self._files.empty_answers()
            for rank in pids:
                self._files.request(self._workers[rank].slot, page.ARRIVALS)

    def arrivals_of(self, rank: int) -> Arrivals:
        answer = None if self._files is None else self._answer(self._files, rank, "arrivals")
        found: dict[str, Any] = {"arrivals": {}} if answer is None else answer
        blind = bool(found.get("blind"))
        return {"arrivals": found["arrivals"], "steps": found.get("steps", {}), "blind": blind}

    def steps_of(self, rank: int) -> tuple[int, float]:
        """(steps so far, the time of the last one)"""
        return (0, 0.0) if self._files is None else self._files.slot(self._workers[rank].slot)[:2]

    def whereabouts(self, rank: int) -> tuple[str, int, int]:
        """(the name of its phase, steps so far, the script's own number of the step)"""
        if self._files is None:
            return "", 0, 0
        slot = self._workers[rank].slot
        step, _, phase, number = self._files.slot(slot)
        if not self._files.writer(slot):
            phase = page.START
        return page.PHASES[phase] if phase < page.OTHER else "other", step, number

    # Notices

    def pages(self) -> dict[int, Slot]:
        """Return the slots of the workers, by rank."""
        if (files := self._files) is None:
            return {}
        slots = {rank: worker.slot for rank, worker in self._workers.items()}
        return {rank: Slot(files, slot) for rank, slot in slots.items()}

    # Where they are

    def ask(self, pids: Mapping[int, int]) -> Iterator[float]:
        """Have all of them tell where they are: `evidence` has the answers in the end. Yields how
        many seconds to wait each time."""
        self._busy, self._marks = {}, {rank: [] for rank in pids}
        if (files := self._files) is None:
            return
        files.empty_stacks()
        files.empty_answers()
        self.disregard()
        began, used = time.monotonic(), {rank: wanted(work_of(pid)) for rank, pid in pids.items()}
        hearing: dict[int, Questioned] = {}  # by rank
        deaf: Asked = []  # those that get SIGNAL
        forked: Asked = []  # the same, after the workers themselves
        for rank, pid in pids.items():
            slot = self._workers[rank].slot
            answerer, stacks = files.answerer(slot), files.path_of_stacks(slot)
            for process in tree(pid) if answerer else ():
                if is_stopped(process):
                    continue
                asked = Questioned(process, files.hearer(slot) if process == answerer else 0)
                if asked.hearer:
                    files.request(slot, page.ENTRIES)
                    hearing[rank] = asked
                elif prints(process, stacks):
                    (deaf if process == answerer else forked).append((rank, asked))
        enough, elapsed = SPINNING, 0.0
        while elapsed < max(enough, LONGEST if hearing else 0.0, GATHERING if deaf else 0.0):
            yield APART
            self._ran_at = time.monotonic()
            elapsed = self._ran_at - began
            late = [
                (r, a)
                for r, a in hearing.items()
                if elapsed >= PATIENCE and self._is_mute(files, r)
            ]
            before = len(late) + len(deaf)
            late, deaf = self._signal(files, late), self._signal(files, deaf)
            if len(late) + len(deaf) < before:
                enough = elapsed + ANSWERING
            hearing = {
                rank: asked
                for rank, asked in hearing.items()
                if not (self._marks[rank] or self._has_answered(files, rank))
            }
        for rank, pid in pids.items():
            self._busy[rank] = wanted(work_of(pid)) - used[rank] >= SPUN * elapsed
        begun = [last_begun(self._answer(files, rank, "entries")) for rank in pids]
        self._moved_at = max([self._moved_at, *begun])
        left, since = deaf + forked, self._ran_at
        limit = since + FORKED
        while (left or self._are_answering()) and self._ran_at < min(limit, since + ANSWERING):
            unasked, left = left, self._signal(files, left)
            yield APART
            self._ran_at = time.monotonic()
            since = since if left == unasked else self._ran_at

    def _are_answering(self) -> bool:
        return any(marks and is_answering(marks[-1][0]) for marks in self._marks.values())

    def _is_mute(self, files: SharedFiles, rank: int) -> bool:
        """Its hearer has not begun to answer."""
        return page.BEGUN not in files.stacks(self._workers[rank].slot)

    def _has_answered(self, files: SharedFiles, rank: int) -> bool:
        return self._answer(files, rank, "entries") is not None

    def _answer(self, files: SharedFiles, rank: int, name: str) -> dict[str, Any] | None:
        return files.answer(self._workers[rank].slot, name)

    def _signal(self, files: SharedFiles, processes: Asked) -> Asked:
        """Send SIGNAL to one process of each rank, which may be asked so now. Those that are still
        to be asked."""
        left: Asked = []
        ranks: set[int] = set()
        for rank, asked in processes:
            slot, marks = self._workers[rank].slot, self._marks[rank]
            if marks and rank not in ranks and is_answering(marks[-1][0]):
                ranks.add(rank)
            size = files.size_of_stacks(slot)
            if rank not in ranks and asked.signal(files.path_of_stacks(slot)):
                ranks.add(rank)
                marks.append((asked.pid, size))
            else:
                left.append((rank, asked))
        return left

    def evidence(self, pids: Mapping[int, int]) -> list[dict[str, Any]]:
        """Return what is known of each: texts, and how far it has come."""
        files = self._files
        return [self._evidence_of(files, *each) for each in pids.items()] if files else []

    def _evidence_of(self, files: SharedFiles, rank: int, pid: int) -> dict[str, Any]:
        worker = self._workers[rank]
        step, _, phase, number = files.slot(worker.slot)
        text = files.stacks(worker.slot)
        marks = self._marks.get(rank, [])
        sizes = [size for _, size in marks] + [len(text)]
        texts = {
            process: unheard(text[begin:end])
            for (process, begin), end in zip(marks, sizes[1:], strict=True)
        }
        own = texts.pop(files.answerer(worker.slot), "")
        own = heard(text) or own
        return {
            "rank": rank,
            "pid": pid,
            "step": number or step,
            "phase": page.PHASES[phase] if phase < page.OTHER else "",
            "busy": self._busy.get(rank, False),
            "stacks": own,
            "forked": [each for each in texts.items() if each[1]],
            "records": self._answer(files, rank, "entries"),
            "processes": [described(process) for process in tree(pid)],
        }


class SharedFiles:
    """Memory that only this process keeps open; the workers open it by its descriptors.

    A broken worker may write anything there, so what is read is checked here.
    """

    def __init__(self, ranks: list[int]) -> None:
        with contextlib.ExitStack() as stack:

            def opened(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            memory, stacks, records = page.NAMES
            self._page = opened(os.memfd_create(memory))
            os.ftruncate(self._page, max(1, len(ranks)) * page.SLOT)
            self._stacks = [opened(os.memfd_create(stacks)) for _ in ranks]
            self._records = [opened(os.memfd_create(records)) for _ in ranks]
            self._pipes: list[tuple[int, int]] = []
            for _ in ranks:
                reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._pipes.append((opened(reading), opened(writing)))
            self._memory = stack.enter_context(mmap.mmap(self._page, 0))
            self.close = stack.pop_all().close
        for slot, rank in enumerate(ranks):
            self.put(slot, page.STEP_OF_NOTICE, page.NEVER)
            self.put(slot, page.RANK, rank)
            self.put(slot, page.STACKS, self._stacks[slot])
            self.put(slot, page.ASKED_AT, self._pipes[slot][1])

    def variable(self, slot: int) -> str:
        names = (self._stacks[slot], self._pipes[slot][0], self._records[slot])
        return ":".join(map(str, (os.getpid(), self._page, slot, *names)))

    def put(self, slot: int, field: int, value: int) -> None:
        struct.pack_into("q", self._memory, slot * page.SLOT + 8 * field, value)

    def put_time(self, slot: int, field: int, value: float) -> None:
        struct.pack_into("d", self._memory, slot * page.SLOT + 8 * field, value)

    def spent(self, slot: int) -> tuple[list[float], int]:
        """(seconds spent on each of page.SPENDING, what the worker spends its time on now)"""
        for _ in range(MOST_READS):
            since = self._time(slot, page.SINCE)
            seconds = [self._time(slot, page.SPENT + i) for i in range(len(page.SPENDING))]
            phase = self._phase(slot)
            if since == self._time(slot, page.SINCE):  # else it changes just now
                break
        doing = page.counted_as(phase, seconds[page.MEETING])
        if self.get(slot, page.WORKER) and not self.writer(slot):
            doing = page.TRAINING  # as far as can be told: it is not seen to use torch
        if doing != page.UNCOUNTED:
            seconds[doing] += time.monotonic() - since
        return seconds, doing

    def _time(self, slot: int, field: int) -> float:
        """Return a time or a duration, in seconds; 0.0 for what is neither."""
        value: float = struct.unpack_from("d", self._memory, slot * page.SLOT + 8 * field)[0]
        return value if 0 <= value < LATEST else 0.0

    def _phase(self, slot: int) -> int:
        return min(self.get(slot, page.PHASE), page.OTHER)

    def slot(self, number: int) -> Written:
        steps, own = self.get(number, page.STEP), self.get(number, page.NUMBER)
        return Written(steps, self._time(number, page.TIME), self._phase(number), own)

    def answerer(self, slot: int) -> int:
        return self.get(slot, page.ANSWERER)

    def hearer(self, slot: int) -> int:
        return self.get(slot, page.HEARER)

    def writer(self, slot: int) -> int:
        return self.get(slot, page.WRITER)

    def get(self, slot: int, field: int) -> int:
        """Return a number that is never negative; 0 for what no number of ours can be."""
        value: int = struct.unpack_from("q", self._memory, slot * page.SLOT + 8 * field)[0]
        return value if 0 <= value < LARGEST else 0

    def empty_stacks(self) -> None:
        for fd in self._stacks:
            os.ftruncate(fd, 0)

    def empty_answers(self) -> None:
        for fd in self._records:
            os.ftruncate(fd, 0)

    def request(self, slot: int, what: bytes) -> None:
        try:
            os.write(self._pipes[slot][1], what)
        except BlockingIOError:
            pass  # nobody answers there

    def path_of_stacks(self, slot: int) -> str:
        return f"/proc/self/fd/{self._stacks[slot]}"

    def size_of_stacks(self, slot: int) -> int:
        return os.fstat(self._stacks[slot]).st_size

    def sizes(self, slot: int) -> int:
        """Bytes that the worker has told us."""
        return self.size_of_stacks(slot) + os.fstat(self._records[slot]).st_size

    def stacks(self, slot: int) -> bytes:
        return os.pread(self._stacks[slot], MOST, 0)

    def answer(self, slot: int, name: str) -> dict[str, Any] | None:
        """The newest line that has this; None if there is none, or only half of it."""
        for line in reversed(os.pread(self._records[slot], MOST, 0).splitlines()):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and name in found and is_shallow(found):
                return found
        return None


class Slot(NamedTuple):
    """The fields of one worker."""

    files: SharedFiles
    number: int

    def get(self, field: int) -> int:
        return self.files.get(self.number, field)

    def put(self, field: int, value: int) -> None:
        self.files.put(self.number, field, value)


def is_shallow(value: object, levels: int = LEVELS) -> bool:
    """Return whether a value has few enough levels to be passed on as JSON."""
    parts: Iterable[object] = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return levels > 0 and all(is_shallow(part, levels - 1) for part in parts)


def last_begun(records: dict[str, Any] | None) -> float:
    """When a worker has begun its last collective, as torch's recorder tells; 0.0 if it does not.

    The recorder goes by the time of day. What is still to come then is of no use: that was set.
    """
    found = {} if records is None else records["entries"]
    entries = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    times = [each.get("time_created_ns") for each in entries]
    now = time.monotonic_ns()
    began = max((t for t in times if isinstance(t, int)), default=0) - time.time_ns() + now
    return began / NS if 0 < began <= now else 0.0


def tree(pid: int) -> list[int]:
    """A worker's process, and what has descended from it."""
    found = [pid]
    for process in found:
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                children = read_small(f"/proc/{process}/task/{thread}/children")
                found += map(int, children.split())
        except OSError:
            pass  # it has ended, or the kernel was built without CONFIG_PROC_CHILDREN
        if len(found) >= MOST_PROCESSES:
            break
    return found[:MOST_PROCESSES]


class Described(TypedDict):
    """What people want to know of a process that does nothing."""

    pid: int
    name: str
    state: str
    wchan: str
    threads: int


class Work(NamedTuple):
    """What a process has done so far."""

    read: int  # bytes
    written: int
    cpu: float  # seconds
    queued: float  # seconds for which its main thread could have run, but had no CPU


Works: TypeAlias = dict[int, Work]  # by pid, of a worker and what has descended from it
Asked: TypeAlias = list[tuple[int, Questioned]]  # processes of ranks


def work_of(pid: int) -> Works:
    """{pid: Work} of a worker's process and what has descended from it."""
    found = {}
    for process in tree(pid):
        fields = stat(process)
        if not fields:
            continue
        cpu = sum(map(int, fields[CPU_TIMES])) / os.sysconf("SC_CLK_TCK")
        try:
            counts = io_of(process)
        except OSError:
            counts = {b"rchar": 0, b"wchar": 0}
        found[process] = Work(counts[b"rchar"], counts[b"wchar"], cpu, queued(process) or 0.0)
    return found


def cpu_of(pid: int) -> float:
    return sum(each.cpu for each in work_of(pid).values())


def in_time(rate: float, seconds: float) -> float:
    """Return how much this rate, per second, comes to. No time is too short for what a second has:
    else a look that follows another at once would find much in little.
    """
    return rate * max(1.0, seconds)


def wanted(work: Works) -> float:
    """CPU time that they have used or waited for: on a machine with too much to do, one that comes
    to its end gets little of it for long."""
    return sum(each.cpu + each.queued for each in work.values())


def is_traced(pid: int) -> bool:
    """Whether a debugger has it. A sampler, which the agent may start, has it for moments only."""
    tracer = tracer_of(pid)
    return bool(tracer) and status_of(tracer).get(b"Name") != SAMPLER


def is_exiting(pid: int) -> bool:
    """Whether the kernel is about to take it down, which no signal would make it do faster."""
    fields = stat(pid)
    return bool(fields) and fields[VIRTUAL_MEMORY] == b"0"


def saves(pid: int) -> bool:
    """Whether a thread writes to a file, or waits until it is written."""
    try:
        return any(_writes(pid, thread) for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False


def _writes(pid: int, thread: str) -> bool:
    try:
        call, *arguments = read_small(f"/proc/{pid}/task/{thread}/syscall").split()
        if call == b"running":
            return False
        if int(call) in WRITING:
            file = os.readlink(f"/proc/{pid}/fd/{int(arguments[0], 16)}".encode())
            return file.startswith(b"/") and not file.startswith(b"/dev/")
        return int(call) in RENAMING
    except (OSError, ValueError, IndexError):
        return False  # it has just ended, or may not be seen


def described(pid: int) -> Described:
    """What people want to know of a process that does nothing."""
    status = status_of(pid)
    name = status.get(b"Name", b"?").decode(errors="replace")
    fields = stat(pid)
    state = fields[STATE].decode() if fields else "gone"
    try:
        with open(f"/proc/{pid}/wchan", "rb") as f:
            where = f.read().decode(errors="replace")
    except OSError:
        where = ""
    threads = int(status.get(b"Threads", b"0"))
    return {"pid": pid, "name": name, "state": state, "wchan": where, "threads": threads}
