"""Finds out where the workers on this node are, without their agents: for `hpclaunch stacks`.

    python -I -S -c ... PATH MARK JOB WHOLE

prints it as JSON, in lines that srun does not break, each after MARK and the host's name. JOB is
"job" for the workers of this process's own Slurm job, or "" for all of this user. They are found in
the memory that their fork servers share with them (`shared_pages.py`).

WHOLE is "all" to ask every process of every worker, a rank to do so for that rank only, or "" to
ask one process of each.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import TypedDict

from .fork_server_messages import Described
from .json_lines import in_pieces
from .processes import PARENT, all_pids, command_line, file_of, stat, status_of, variable
from .shared_pages import PHASES
from .site import _hpclaunch_layout as layout
from .stack_questions import Questioned, ask, prints
from .worker_processes import described, tree

LIMIT = 3.0  # seconds for all answers
POLL = 0.005
FORK_SERVER = "hpclaunch.worker.fork_server"
STOPPED = ("T", "t")


def main(mark: str, job: str, whole: str) -> None:
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    workers = list(workers_of(os.environ.get("SLURM_JOB_ID") if job else None))
    asking = [worker.ask(every=whole in ("all", str(worker.rank))) for worker in workers]
    limit = time.monotonic() + LIMIT
    while asking and time.monotonic() < limit:
        asking = [each for each in asking if next(each, True) is None]
        time.sleep(POLL)
    text = json.dumps([worker.report() for worker in workers])
    sys.stdout.writelines(in_pieces(f"{mark} {host} ", text))


class Process(Described):
    """A process of a worker, and its answer."""

    can_answer: bool  # it can be asked
    stacks: str | None  # None: it was not asked


class Report(TypedDict):
    """A worker as it is printed."""

    launch: str
    rank: int
    pid: int
    step: int
    phase: str
    processes: list[Process]


class FoundWorker:
    """A worker, and what its processes answer."""

    def __init__(self, launch: str, server: int, slot: layout.Slot) -> None:
        self.launch = launch
        self.slot = slot
        self.rank, self.pid = slot.number(layout.RANK), slot.number(layout.WORKER)
        self.server = server
        self.file = f"/proc/{server}/fd/{slot.number(layout.STACKS)}"
        self.processes: list[Process] = [
            {**described(pid), "can_answer": prints(pid, self.file), "stacks": None}
            for pid in tree(self.pid)
        ]

    def report(self) -> Report:
        return {
            "launch": self.launch,
            "rank": self.rank,
            "pid": self.pid,
            "step": self.slot.number(layout.NUMBER) or self.slot.number(layout.STEP),
            "phase": PHASES[self.slot.phase],
            "processes": self.processes,
        }

    def ask(self, every: bool) -> Iterator[None]:
        """Ask the processes one after the other, since they write to the same file. Yield None
        while waiting for an answer. After one that has got SIGNAL and does not answer, no other is
        asked.
        """
        able = [process for process in self.processes if process["can_answer"]]
        try:
            with layout.Opened(self.server, self.slot.number(layout.STACKS)) as fd:
                while not locked(fd):
                    yield
                for process in able if every else able[:1]:
                    if process["state"] in STOPPED:
                        continue
                    process["stacks"] = ""
                    is_own = process["pid"] == self.slot.number(layout.ANSWERER)
                    responder = self.slot.number(layout.RESPONDER) if is_own else 0
                    asked = Questioned(process["pid"], responder)
                    process["stacks"] = yield from ask(asked, fd, self._request)
        except OSError:
            pass  # it has ended

    def _request(self) -> None:
        pipe = self.slot.number(layout.ASKED_AT)
        with layout.Opened(self.server, pipe, os.O_WRONLY | os.O_NONBLOCK) as fd:
            os.write(fd, layout.STACKS_ONLY)


def locked(fd: int) -> bool:
    """Lock a file for stacks, and return whether that worked: if two asked at once, two threads
    would write at the same time."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def workers_of(job: str | None) -> Iterator[FoundWorker]:
    """Yield the workers of this user in a job, or in all jobs if that is None."""
    for server in all_pids():
        if not _is_own(server) or FORK_SERVER not in command_line(server):
            continue
        if job is not None and variable(server, "SLURM_JOB_ID") != job:
            continue
        try:
            launch, slots = _launch(server), _slots(server)
        except (OSError, IndexError):
            continue  # it has just ended
        for slot in slots:
            worker = slot.number(layout.WORKER)
            found = stat(worker) if worker else []
            if found and int(found[PARENT]) == server:
                yield FoundWorker(launch, server, slot)


def _is_own(pid: int) -> bool:
    """Return whether a process belongs to this user alone.

    A set-user-ID program, such as su, has only the effective uid of its owner. Whoever has called
    it may have given it any descriptors.
    """
    return {*status_of(pid).get(b"Uid", b"").split()} == {b"%d" % os.geteuid()}


def _slots(server: int) -> list[layout.Slot]:
    """Return the slots of a fork server; none if no round runs, or for slots of another version."""
    for fd in os.listdir(f"/proc/{server}/fd"):
        if file_of(server, fd).startswith(b"/memfd:%s " % layout.NAMES[0].encode()):
            with open(f"/proc/{server}/fd/{fd}", "rb") as f:
                data = memoryview(f.read(layout.MOST))
            if len(data) % layout.SLOT:
                return []
            begins = range(0, len(data), layout.SLOT)
            return [layout.Slot(data[at : at + layout.SLOT]) for at in begins]
    return []


def _launch(server: int) -> str:
    """Return the name of a launch, which is the same for all agents of a step."""
    job, step = variable(server, "SLURM_JOB_ID"), variable(server, "SLURM_STEP_ID")
    if job is not None and step is not None:
        return f"job {job}.{step}"
    return f"hpclaunch with pid {int(stat(server)[PARENT])}"
