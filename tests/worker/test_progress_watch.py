"""The signs of life of real processes that the fork server finds."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import struct
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falling_asleep import until_asleep
from hpclaunch.worker import evidence, progress_watch, stack_questions
from hpclaunch.worker.evidence import Evidence
from hpclaunch.worker.fork_server_messages import Offered, Unhandled, Unheard
from hpclaunch.worker.progress_watch import ProgressWatch, Watched
from hpclaunch.worker.shared_pages import SharedPages
from hpclaunch.worker.site import _hpclaunch_layout as layout
from hpclaunch.worker.stack_reader import FoundWorker
from hpclaunch.worker.step_notices import StepNotices
from hpclaunch.worker.worker_processes import saves, tree, work_of
from hpclaunch.worker.workers import Workers

pytestmark = pytest.mark.starts

LIMIT = 60  # seconds; far more than any of this takes
QUIET = "import time; time.sleep(600)"
STARTED = "print('up', flush=True)"


class SteppedClock:
    """The module `time`, whose clocks show only the pauses that a test makes."""

    def __init__(self):
        self.now = time.monotonic()
        self._offset = time.time_ns() - self.monotonic_ns()

    def monotonic(self):
        return self.now

    def monotonic_ns(self):
        return int(self.now * 1e9)

    def time_ns(self):
        return self._offset + self.monotonic_ns()

    def __getattr__(self, name):
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of a watch, and of those who ask workers; request it before them."""
    clock = SteppedClock()
    for module in (evidence, progress_watch, stack_questions):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(progress_watch, "LOOK", 0.0)
    monkeypatch.setattr(progress_watch, "STILL_LOOK", 0.0)
    monkeypatch.setattr(progress_watch, "COSTLY_AFTER", 0.0)
    monkeypatch.setattr(progress_watch, "REPORT", 0.0)
    monkeypatch.setattr(progress_watch, "LATE", LIMIT)  # a busy machine suspends nothing
    watch = ProgressWatch()
    yield watch
    watch.end()


def left(watch):
    """Return the seconds until the next look is due."""
    return watch.due() - time.monotonic()


@pytest.fixture
def worker(watch):
    """Yield a function that starts the only worker and returns after it has begun, and is asleep
    if it does nothing else.
    """
    begun = []

    def start(text):
        watch.begin([0])
        process = subprocess.Popen(
            [sys.executable, "-c", f"{STARTED}\n{text}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        begun.append(process)
        process.stdout.readline()
        if text == QUIET:
            until_asleep(process.pid)
        return process

    yield start
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def looks(watch, process, number=6, pause=0.1):
    """Return the reports after each look except the first two, which have nothing to compare."""
    reports = []
    for _ in range(number):
        time.sleep(pause)
        reports.append(watch.look({0: process.pid}))
    return [each for each in reports[2:] if each is not None]


def until_reported(watch, process, holds, pause=0.1):
    """Return the first answer after the same two looks for which `holds` is true. It need not be
    the next one: on a busy machine a worker may not have run since the last look."""
    looks(watch, process, number=2, pause=pause)
    deadline = time.monotonic() + LIMIT
    while (report := watch.look({0: process.pid})) is None or not holds(report):
        assert time.monotonic() < deadline, report
        time.sleep(pause)
    return report


def test_a_process_that_sleeps_is_still(watch, worker):
    reports = looks(watch, worker(QUIET))
    stills = [each.still for each in reports]
    assert len(stills) == 4
    assert stills == sorted(stills)
    assert stills[0] > 0
    assert not any(each.busy or each.patient or each.trains for each in reports)


def test_without_files_for_it_nothing_is_looked_at(watch, monkeypatch):
    def refuse(_):
        raise OSError("too many open files")

    monkeypatch.setattr("os.memfd_create", refuse)
    assert watch.begin([0]) == {}
    watch.await_stillness([10.0])
    assert watch.due() == math.inf
    assert watch.look({0: os.getpid()}) is None
    assert watch.look({0: os.getpid()}, at_once=True) is None
    evidence = Evidence(watch)
    assert list(evidence.ask({0: 1})) == []
    assert evidence.found({0: 1}) == []


def test_an_awaited_stillness_is_reported_when_it_begins(watch, worker, monkeypatch):
    process = worker(QUIET)
    looks(watch, process)
    for name in ("LOOK", "STILL_LOOK", "REPORT"):
        monkeypatch.setattr(progress_watch, name, 600.0)
    still = watch.look({0: process.pid}).still
    assert watch.look({0: process.pid}) is None
    watch.await_stillness([still + 0.5, 500.0])
    assert left(watch) < 1
    time.sleep(max(0.0, left(watch)))
    assert watch.look({0: process.pid}).still >= still + 0.5
    assert 400 < left(watch) < 500


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("while True: print('a line', flush=True); time.sleep(0.02)", id="writes"),
        pytest.param("while True: open('/usr/bin/env','rb').read(); time.sleep(0.02)", id="reads"),
        pytest.param(
            "while True: subprocess.Popen(['sleep', '0.05']); time.sleep(0.02)", id="starts others"
        ),
        pytest.param(
            "import socket\na = socket.create_server(('127.0.0.1', 0))\n"
            "b = socket.create_connection(a.getsockname())\nc, _ = a.accept()\n"
            "while True: b.send(bytes(9999)); c.recv(9999); time.sleep(0.02)",
            id="has traffic",
        ),
    ],
)
def test_one_that_does_something_is_not(watch, worker, text):
    process = worker(f"import subprocess, time\n{text}")
    assert until_reported(watch, process, lambda each: each.still == 0)


def test_one_that_only_uses_the_cpu_is_still_and_busy(watch, worker):
    process = worker("while True: pass")
    assert until_reported(watch, process, lambda each: each.still > 0 and each.busy)


def test_one_that_waits_for_a_cpu_is_busy(watch, worker):
    """Otherwise it would count as hung on a machine with much to do."""
    pinned = f"import os\nos.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])\n"
    process = worker(f"{pinned}while True: pass")
    # In sessions of their own: the kernel shares the time between sessions, then in each of them.
    burns = f"{pinned}import signal\nsignal.alarm(60)\nprint(flush=True)\nwhile True: pass"
    command = [sys.executable, "-c", burns]
    how = {"stdout": subprocess.PIPE, "start_new_session": True}
    others = [subprocess.Popen(command, **how) for _ in range(15)]
    for other in others:
        other.stdout.readline()
    report = until_reported(watch, process, lambda each: each.busy, pause=0.5)
    for other in others:
        other.kill()
        other.communicate()
    assert report.still > 0
    assert report.busy


def test_one_that_the_kernel_takes_down_is_waited_for(watch, worker):
    """The kernel frees memory, perhaps a GPU's; here, a remaining thread has the same effect."""
    exits = (
        "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=[600]).start()"
    )
    process = worker(f"{exits}\nctypes.CDLL(None).pthread_exit(None)")
    assert until_reported(watch, process, lambda each: each.still > 0 and each.patient)


def test_one_that_only_looks_at_the_machine_now_and_then_is_still(watch, worker):
    process = worker("import time\nwhile True: open('/proc/uptime').read(); time.sleep(0.2)")
    assert looks(watch, process)[-1].still > 0


@pytest.mark.parametrize(
    ("size", "seconds", "is_still"),
    [(50.0, 600.0, True), (5000.0, 600.0, False), (50.0, 0.0, False), (0.5, 0.0, True)],
)
def test_how_much_one_reads_is_judged_by_the_time_since_the_last_look(
    watch, worker, size, seconds, is_still
):
    reads = "file.read(int(sys.stdin.readline())); time.sleep(600)"
    process = worker(f"import sys, time\nfile = open('/dev/zero', 'rb', buffering=0)\n{reads}")
    looks(watch, process)
    before = work_of(process.pid)[process.pid].read
    number = int(size * progress_watch.READ)
    process.stdin.write(f"{number}\n".encode())
    process.stdin.flush()
    deadline = time.monotonic() + LIMIT
    while work_of(process.pid)[process.pid].read < before + number:
        assert time.monotonic() < deadline
    watch._looked_at -= seconds
    assert (watch.look({0: process.pid}).still > 0) == is_still


def test_an_answer_is_no_sign_of_life(watch, worker):
    """Otherwise a worker that is asked again and again would never count as still."""
    process = worker("import sys\nfor _ in sys.stdin: print('an answer', flush=True)")
    before = looks(watch, process)[-1].still
    watch.ask_arrivals({0: process.pid})
    process.stdin.write(b"a question\n")
    process.stdin.flush()
    process.stdout.readline()
    until_asleep(process.pid)  # the kernel counts bytes only after it has passed them on
    watch.disregard()
    assert all(each.still > before for each in looks(watch, process))


def test_stacks_that_anybody_asks_for_are_no_sign_of_life(watch, worker):
    text = "import sys, time\nfile = open(sys.stdin.readline().strip(), 'ab', buffering=0)\n"
    writes = f"{text}while True:\n for _ in range(99): file.write(b'a stack'); time.sleep(0.02)"
    process = worker(f"{writes}\n file.truncate(0)")  # after many looks, as when it is long
    process.stdin.write(f"/proc/{os.getpid()}/fd/{watch.pages[0].place.stacks}\n".encode())
    process.stdin.flush()
    page, before = watch.pages[0], 1
    while page.size_of_answers < before:
        time.sleep(0.01)
    looks(watch, process, number=2)
    while (size := page.size_of_answers) >= before:
        before = size
        assert all(each.still > 0 for each in looks(watch, process, number=3))
    assert all(each.still > 0 for each in looks(watch, process))


def test_answers_that_are_removed_during_a_look_are_no_sign_of_life(watch, worker, monkeypatch):
    process = worker(QUIET)
    file, work_of = watch.pages[0].place.stacks, progress_watch.work_of
    os.pwrite(file, b"a stack", 0)
    looks(watch, process)

    def empty(pid):
        os.ftruncate(file, 0)
        return work_of(pid)

    monkeypatch.setattr(progress_watch, "work_of", empty)
    for _ in range(2):
        assert watch.look({0: process.pid}).still > 0


def test_what_its_children_do_counts(watch, worker):
    process = worker(
        "import os, time\nif os.fork():\n    time.sleep(600)\n"
        "while True: os.write(1, b'.'); time.sleep(0.02)"
    )
    assert until_reported(watch, process, lambda each: each.still == 0)


def test_steps_are_seen_with_the_longest_time_between_two(watch, worker):
    process = worker(QUIET)
    its, gaps, times = watch.pages[0], [], []
    for number, pause in ((1, 0.0), (2, 0.3), (4, 0.2)):
        time.sleep(pause)
        times.append(time.monotonic())
        its.numbers[layout.STEP], its.times[layout.TIME] = number, times[-1]
        report = watch.look({0: process.pid})
        assert report.steps == [number]
        gaps.append(report.gap)
    first, second, third = times
    assert gaps[0] == 0
    assert gaps[1] == second - first
    assert gaps[2] >= (third - second) / 2  # of two steps: the mean
    assert gaps[2] < third - second


def test_a_process_is_still_since_its_last_step(watch, worker):
    process = worker(QUIET)
    watch.look({0: process.pid})
    stepped_at = time.monotonic()
    its = watch.pages[0]
    its.numbers[layout.STEP], its.times[layout.TIME] = 1, stepped_at
    time.sleep(0.2)
    assert watch.look({0: process.pid}).still == 0
    before = time.monotonic()
    still = watch.look({0: process.pid}).still
    assert still >= before - stepped_at


def test_steps_count_that_one_has_made_between_the_last_look_and_its_end(watch):
    watch.begin([0, 1])
    process = subprocess.Popen(["sleep", "600"])
    for its in watch.pages.values():
        its.numbers[layout.STEP] = 9
    time.sleep(0.1)
    assert watch.look({0: process.pid}).steps == [9, 9]
    process.kill()
    process.wait()


def test_a_phase_that_may_take_long(watch, worker):
    process = worker(QUIET)
    numbers = watch.pages[0].numbers
    numbers[layout.PHASE], numbers[layout.WRITER] = layout.OTHER, process.pid
    assert looks(watch, process)[-1].patient


def test_a_program_that_has_ended_no_longer_trains(watch, worker):
    process = worker(QUIET)
    numbers = watch.pages[0].numbers
    numbers[layout.PHASE], numbers[layout.WRITER] = layout.STEPS, process.pid
    assert looks(watch, process)[-1].trains
    ended = subprocess.Popen(["true"])
    ended.wait()
    numbers[layout.WRITER] = ended.pid
    assert not looks(watch, process)[-1].trains


@pytest.mark.parametrize("pause", [0.0, 600.0])
def test_after_a_pause_of_the_fork_server_nothing_is_held_against_the_workers(
    watch, worker, monkeypatch, pause
):
    """This holds whether a look was due or not."""
    process = worker(QUIET)
    looks(watch, process)
    watch._next += pause
    monkeypatch.setattr(progress_watch, "LATE", 0.05)
    time.sleep(0.1)
    before = time.monotonic()
    assert watch.look({0: process.pid}) is None
    monkeypatch.undo()
    assert watch._moved_at >= before


def test_a_worker_that_waits_until_its_file_is_written_saves(tmp_path, worker):
    process = worker(
        f"import os\nf = os.open({str(tmp_path / 'data')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "while True: os.write(f, bytes(1 << 20)); os.fsync(f); os.ftruncate(f, 0)"
    )
    deadline = time.monotonic() + LIMIT
    while not saves(process.pid):
        assert time.monotonic() < deadline


def test_a_full_pipe_is_no_file(worker):
    process = worker("import os\nr, w = os.pipe()\nwhile True: os.write(w, bytes(1 << 16))")
    time.sleep(0.3)
    assert not saves(process.pid)


def test_the_tree_of_a_process_that_has_ended_is_itself():
    process = subprocess.Popen(["true"])
    process.wait()
    assert tree(process.pid) == [process.pid]


def test_a_question_without_an_answer_is_no_sign_of_life(clock, watch, worker, monkeypatch):
    monkeypatch.setattr(progress_watch, "LATE", 1.0)
    process = worker("while True: pass")
    for _ in range(6):
        clock.now += 0.1
        before = watch.look({0: process.pid}).still
    numbers = watch.pages[0].numbers
    numbers[layout.RESPONDER] = numbers[layout.ANSWERER] = process.pid
    for pause in Evidence(watch).ask({0: process.pid}):
        clock.now += pause
    assert watch.look({0: process.pid}, at_once=True).still >= before + 1


@pytest.mark.parametrize(
    ("ago", "moved"), [(0.0, True), (1.0, True), (600.0, False), (-60.0, False), ("?", False)]
)
def test_a_collective_that_has_begun_is_a_sign_of_life(clock, watch, worker, ago, moved):
    """One of NCCL within a node moves nothing else that is seen."""
    process = worker(QUIET)
    for _ in range(6):
        clock.now += 0.5
        still = watch.look({0: process.pid}).still
    before = clock.now - still
    created = "?" if ago == "?" else clock.time_ns() - int(ago * 1e9)
    line = json.dumps({"entries": [{"time_created_ns": 1}, {"time_created_ns": created}]})
    for pause in Evidence(watch).ask({0: process.pid}):
        with open(watch.pages[0].place.records, "ab", closefd=False) as records:
            records.write(f"{line}\n".encode())
        clock.now += pause
    for _ in range(2):
        after = clock.now - watch.look({0: process.pid}, at_once=True).still
        assert (after > before + 0.1) == moved


def test_an_answer_that_nobody_could_pass_on_is_none(watch):
    watch.begin([0])
    nested = "[" * 500 + "]" * 500
    with open(watch.pages[0].place.records, "ab", closefd=False) as records:
        records.write(f'{{"arrivals": {nested}}}\n{{"entries": {nested}}}\n'.encode())
    (found,) = Evidence(watch).found({0: os.getpid()})
    assert found["records"] is None
    assert watch.arrivals_of(0) == {"arrivals": {}, "steps": {}, "blind": False}


def test_evidence_of_programs_that_are_not_python(watch):
    watch.begin([3])
    process = subprocess.Popen(["sleep", "600"])
    evidence = Evidence(watch)
    list(evidence.ask({3: process.pid}))
    (found,) = evidence.found({3: process.pid})
    assert (found["rank"], found["stacks"], found["records"]) == (3, "", None)
    assert [p["name"] for p in found["processes"]] == ["sleep"]
    process.kill()
    process.wait()


def test_a_phase_of_the_scripts_own_has_the_same_name_wherever_it_is_shown(watch):
    watch.begin([0])
    page = watch.pages[0]
    page.numbers[layout.PHASE] = layout.OTHER
    page.numbers[layout.WRITER] = os.getpid()
    (found,) = Evidence(watch).found({0: os.getpid()})
    report = FoundWorker("71.0", os.getpid(), page).report()
    assert found["phase"] == report["phase"] == watch.whereabouts(0)[0] == "other"


@pytest.mark.parametrize(
    ("has_failed", "seconds", "kind"),
    [
        (False, 10, layout.TRAINING),
        (True, 10, layout.IMPORTS),
        (True, 10_000, layout.TRAINING),
    ],
)
def test_time_without_torch_is_training_unless_a_worker_fails_early(
    watch, has_failed, seconds, kind
):
    watch.begin([0, 1])
    for rank, page in watch.pages.items():
        watch.started(rank, os.getpid())
        page.times[layout.SINCE] -= seconds
    watch.ended(1, has_failed=has_failed)
    times, doing = watch.spent()
    assert doing == kind
    assert [round(each / 1000) for each in times] == [
        seconds if each == kind else 0 for each in range(len(layout.SPENDING))
    ]


@pytest.mark.parametrize("number", [-1, -(1 << 63), 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_a_worker_may_write_anything_to_its_slot(watch, worker, number, seconds):
    process = worker(QUIET)
    looks(watch, process, pause=0.0)
    doubles = (layout.TIME, layout.SINCE, *(layout.SPENT + i for i in range(len(layout.SPENDING))))
    with open(watch.pages[0].place.memory, "r+b", closefd=False, buffering=0) as slot:
        for field in range(layout.SLOT // 8):
            slot.seek(8 * field)
            value = ("d", seconds) if field in doubles else ("q", number)
            slot.write(struct.pack(*value))
    report = watch.look({0: process.pid}, at_once=True)
    json.dumps(report.fields(), allow_nan=False)
    assert report.steps == [0]
    assert max(report.spent) < 1e12
    json.dumps(Evidence(watch).found({0: process.pid}), allow_nan=False)
    workers = Workers(set)
    workers.started(0, 1 << 30, [])
    reports = []
    notices = StepNotices(watch, workers, reports.append)
    assert notices.offer(1, 5, 0) == Offered(1, accepted=True, busy=False, steps=[])
    notices.give(1)
    assert not any(isinstance(r, Unhandled | Unheard) for r in reports)


@pytest.mark.fuzz
@given(st.binary(min_size=layout.SLOT, max_size=layout.SLOT))
def test_any_slot(data):
    """The fork server reads it, and so does `hpclaunch stacks`."""
    shared = SharedPages([0])
    its = shared.by_rank[0]
    os.pwrite(its.place.memory, data, 0)
    json.dumps([its.spent(), Watched(its).read()], allow_nan=False)
    shared.close()
    slot = layout.Slot(memoryview(bytearray(data)))
    slot.numbers[layout.WORKER] = os.getpid()
    json.dumps(FoundWorker("job 1.0", os.getpid(), slot).report(), allow_nan=False)


def test_a_slot_that_changes_all_the_time_is_read_nevertheless(monkeypatch):
    shared = SharedPages([0])
    times = itertools.count(1.0)
    monkeypatch.setattr(shared.by_rank[0], "seconds", lambda *_: next(times))
    shared.by_rank[0].spent()
    shared.close()
