"""Tells where the workers on this node are, without their agents: for `hpclaunch stacks`.

    python -I -S -c ... PATH MARK JOB WHOLE

prints them as JSON, in lines that srun does not break, each after MARK and the host's name. JOB is
"job" for the workers of this process's own Slurm job, or "" for all of this user's. They are found
in the memory that their fork servers share with them (`progress_watch.py`).

WHOLE is "all" to ask every process of every worker, a rank to do so for that rank only, or "" to
ask one process of each.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from typing import TypedDict

from .json_lines import in_pieces
from .processes import PARENT, all_pids, stat, status_of
from .progress_watch import MOST, Described, described, tree
from .site import _hpclaunch_progress as page
from .stack_questions import LONGEST, PATIENCE, Questioned, heard, is_answering, prints, unheard

LIMIT = 3.0  # seconds for all answers
TRYING = 0.3  # seconds to find a moment in which a process without a hearer can be asked
POLL = 0.005
FORK_SERVER = b"hpclaunch.worker.fork_server"
STOPPED = ("T", "t")
FIELDS = f"{page.SLOT // 8}q"


def main(mark: str, job: str, whole: str) -> None:
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    workers = list(workers_of(os.environ.get("SLURM_JOB_ID") if job else None))
    asking = [worker.ask(every=whole in ("all", str(worker.rank))) for worker in workers]
    limit = time.monotonic() + LIMIT
    while asking and time.monotonic() < limit:
        asking = [each for each in asking if next(each, True) is None]
        time.sleep(POLL)
    text = json.dumps([worker.told() for worker in workers])
    sys.stdout.writelines(in_pieces(f"{mark} {host} ", text))


class Process(Described):
    """A process of a worker, and its answer."""

    tells: bool  # it can be asked
    stacks: str | None  # None: it was not asked


class Report(TypedDict):
    """What is printed of a worker."""

    launch: str
    rank: int
    pid: int
    step: int
    phase: str
    processes: list[Process]


class Found:
    """A worker, and what its processes answer."""

    def __init__(self, launch: str, server: int, fields: Sequence[int]) -> None:
        self.launch = launch
        self.fields = fields
        self.rank, self.pid = fields[page.RANK], fields[page.WORKER]
        self.server = server
        self.file = f"/proc/{server}/fd/{fields[page.STACKS]}"
        self.processes: list[Process] = [
            {**described(pid), "tells": prints(pid, self.file), "stacks": None}
            for pid in tree(self.pid)
        ]

    def told(self) -> Report:
        phase = self.fields[page.PHASE] if self.fields[page.WRITER] else page.START
        return {
            "launch": self.launch,
            "rank": self.rank,
            "pid": self.pid,
            "step": self.fields[page.NUMBER] or self.fields[page.STEP],
            "phase": page.PHASES[phase] if 0 <= phase < page.OTHER else "other",
            "processes": self.processes,
        }

    def ask(self, every: bool) -> Iterator[None]:
        """Yields None while it waits for an answer.

        One process after the other: they write to the same file. After one that has got SIGNAL and
        does not answer, none is asked any more.
        """
        able = [process for process in self.processes if process["tells"]]
        able = [
            process for process in able[: None if every else 1] if process["state"] not in STOPPED
        ]
        try:
            with (
                page.Opened(self.server, self.fields[page.STACKS]) as fd,
                open(fd, "r+b", buffering=0, closefd=False) as file,
            ):
                while not locked(file):
                    yield
                for process in able:
                    yield from self._ask(process, file)
        except OSError:
            pass  # it has ended

    def _ask(self, process: Process, file: FileIO) -> Iterator[None]:
        pid = process["pid"]
        process["stacks"] = ""
        while is_answering(pid):  # the fork server, or an earlier question
            yield
        begin = os.fstat(file.fileno()).st_size
        if begin > MOST:
            file.truncate(begin := 0)
        hearer = self.fields[page.HEARER] if pid == self.fields[page.ANSWERER] else 0
        asked = Questioned(pid, hearer)
        late = time.monotonic()
        limit = late + TRYING
        if asked.hearer:
            self._request()
            late, limit = late + PATIENCE, late + LONGEST
        text, signalled = b"", False
        while not (signalled and unheard(text)):
            if asked.hearer and heard(text) is not None:
                break
            if not signalled and time.monotonic() >= late and page.BEGUN not in text:
                signalled = asked.signal(self.file)
                if not signalled and time.monotonic() >= limit:
                    return
            yield
            while signalled and is_answering(pid):
                yield
            if not os.path.exists(f"/proc/{pid}"):
                return
            if os.fstat(file.fileno()).st_size < begin:
                begin = 0  # the fork server has emptied it, to ask for itself
            text = os.pread(file.fileno(), MOST, begin)
        process["stacks"] = heard(text) or unheard(text)

    def _request(self) -> None:
        with page.Opened(
            self.server, self.fields[page.ASKED_AT], os.O_WRONLY | os.O_NONBLOCK
        ) as fd:
            os.write(fd, page.STACKS_ONLY)


def locked(file: FileIO) -> bool:
    """For two that ask at once: with two signals, two threads would write at the same time."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def workers_of(job: str | None) -> Iterator[Found]:
    """This user's; of one job, or of all for None."""
    for server in all_pids():
        try:
            if not _is_own(server):
                continue
            if FORK_SERVER not in _words(server, "cmdline"):
                continue
            parts = (word.partition(b"=") for word in _words(server, "environ"))
            environ = {name: value for name, _, value in parts}
            if job is not None and environ.get(b"SLURM_JOB_ID") != os.fsencode(job):
                continue
            slots = _slots(server)
        except OSError:
            continue  # it has just ended
        for fields in slots:
            found = stat(fields[page.WORKER]) if fields[page.WORKER] else []
            if found and int(found[PARENT]) == server:
                yield Found(_launch(server, environ), server, fields)


def _is_own(pid: int) -> bool:
    """Return whether a process belongs to this user alone.

    A set-user-ID program, such as su, has only the effective uid of its owner. Whoever has called
    it may have given it any descriptors.
    """
    return {*status_of(pid).get(b"Uid", b"").split()} == {b"%d" % os.geteuid()}


def _words(pid: int, file: str) -> list[bytes]:
    with open(f"/proc/{pid}/{file}", "rb") as f:
        return f.read().split(b"\0")


def _slots(server: int) -> list[tuple[int, ...]]:
    """The fields of each slot, as whole numbers; none if no round runs, or for other slots than
    those of this version.
    """
    for fd in os.listdir(f"/proc/{server}/fd"):
        path = f"/proc/{server}/fd/{fd}"
        if os.readlink(path).startswith(f"/memfd:{page.NAMES[0]} "):
            with open(path, "rb") as f:
                slots = f.read(MOST)
            return list(struct.iter_unpack(FIELDS, slots)) if len(slots) % page.SLOT == 0 else []
    return []


def _launch(server: int, environ: Mapping[bytes, bytes]) -> str:
    """The same for all agents of a step."""
    if b"SLURM_JOB_ID" in environ and b"SLURM_STEP_ID" in environ:
        job, step = environ[b"SLURM_JOB_ID"], environ[b"SLURM_STEP_ID"]
        return f"job {job.decode(errors='replace')}.{step.decode(errors='replace')}"
    return f"hpclaunch with pid {int(stat(server)[PARENT])}"
