"""The MPS keeper: starts, verifies and ends the MPS control daemons of one agent.

`system/shared/helper.py` starts it with SPARED (as for the fork server), CONTROL, PLACES, PREFIX,
JOB and FIRST. All directories of a job are in PREFIX + JOB in the first of PLACES (a JSON list)
that can have it. CONTROL is nvidia-cuda-mps-control, and FIRST the seconds until the first look at
the workers. `mps_messages.py` has the messages between the agent and this process.

The daemon of another agent is ready once that agent's keeper has written the number of the round to
the file `ready`. The keeper does so when all of its own daemons accept clients.

A daemon serves one round. At the end of a round, some of its clients are killed, or have died by
themselves. By NVIDIA's documentation, a client that dies with work on the GPU may leave the server
and its other clients in an undefined state. The command terminate_client prevents that for clients
that are about to be killed, but not for one that dies of SIGSEGV, or is killed for its memory. A
new daemon is safe after every end, and takes a fraction of a second.

Law: no daemon that was started here outlives this process or the agent. When the socket ends, the
daemons are asked to end, then they and their servers are killed, and the directories are removed.
If this process is killed itself, its daemons die by their parent-death signal, their servers become
the agent's children, and the next keeper on this node removes what is left. Daemons ignore the
signals that Slurm or a terminal sends to every process: workers that save their state still need
them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import zlib
from collections.abc import Iterable, Mapping

from . import mps_messages as messages
from .json_lines import AgentChannel, AgentGoneError
from .messages import decode, never
from .mps_daemon import (
    ANSWER_LIMIT,
    KILL_LIMIT,
    QUIT,
    SERVER_LIMIT,
    START_LIMIT,
    TICK,
    FrontEnd,
    MpsDaemon,
    MpsError,
    enter,
    leave,
    make,
    ready_for,
    stop,
    sweep,
)
from .processes import (
    PR_SET_CHILD_SUBREAPER,
    SPARED,
    Spawner,
    all_pids,
    numbers,
    prctl,
    program,
    threads_of,
)

# Seconds to wait for another agent's keeper: it ends the old daemon, and starts a new one and its
# server.
OTHERS_LIMIT = QUIT + ANSWER_LIMIT + KILL_LIMIT + START_LIMIT + SERVER_LIMIT
ANOTHER_USER_LIMIT = 300.0  # seconds for which a foreign daemon may serve another user
ANOTHER_USER_TICK = 1.0
LAST_CLIENTS_LIMIT = 5.0  # seconds at the end for the clients, which are being killed
LONGEST_INTERVAL = 60.0  # seconds between two looks at the workers
CONTEXT_THREAD = "cuda-EvtHandlr"  # every CUDA context has one
WATCH = 600.0  # seconds; a worker that has not used CUDA by then will not use it


class OvertakenError(Exception):
    """The agent has sent another request."""


class OccupiedError(Exception):
    """A foreign daemon still serves another user."""


class MpsKeeper:
    def __init__(
        self,
        channel: AgentChannel,
        spawner: Spawner,
        control: str,
        places: list[str],
        prefix: str,
        job: str,
    ) -> None:
        self.channel = channel
        self.spawner = spawner
        self.control = control
        self.places = places
        self.prefix = prefix
        self.job = job
        self.home: tuple[str, int] | None = None  # (path, lock) of the job's directory
        self.daemons: dict[str, MpsDaemon] = {}  # ours, by key
        # By key: the daemons that serve the workers of this round, whoever has started them
        self.fronts: dict[str, FrontEnd] = {}
        self.watch: ClientWatch | None = None

    def report(self, event: messages.Event) -> None:
        self.channel.send(event.encoded())

    def run(self, first: float) -> None:
        swept = sweep(self.places, self.prefix)
        if swept:
            self.report(messages.Swept(swept))
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        while True:
            due = self.watch.due - time.monotonic() if self.watch else None
            if not poll.poll(None if due is None else max(0, due * 1000)):
                if self.watch is not None:
                    self.look(self.watch)
                continue
            for raw in self.channel.read()[-1:]:  # a request replaces those before it
                self.watch = None
                match decode(messages.REQUESTS, raw):
                    case messages.Watch(workers):
                        self.watch = ClientWatch(workers, first)
                    case messages.Prepare(number, groups, foreign):
                        self.on_prepare(number, groups, foreign)
                    case request:
                        never(request)

    def pause(self, seconds: float, *, ask: bool = False) -> None:
        """Sleep. Raises AgentGoneError once the agent is gone; with `ask`, OvertakenError at its
        next request."""
        poll = select.poll()
        poll.register(self.channel, select.POLLRDHUP | (select.POLLIN if ask else 0))
        for _, events in poll.poll(seconds * 1000):
            if events & (select.POLLRDHUP | select.POLLHUP):
                raise AgentGoneError
            raise OvertakenError

    # A round

    def on_prepare(self, number: int, groups: list[messages.Group], foreign: str) -> None:
        try:
            if foreign:
                self.await_other_user(number, FrontEnd(self.control, foreign))
            self.prepare(number, groups, foreign)
        except (MpsError, OSError) as e:
            self.report(messages.Failed(number, str(e)))
        except OccupiedError as e:
            self.report(messages.Occupied(number, str(e)))
        except OvertakenError:
            self.report(messages.Failed(number, "another round began"))
        else:
            directories = {key: front.pipes for key, front in self.fronts.items()}
            self.report(messages.Ready(number, directories))

    def await_other_user(self, number: int, front: FrontEnd) -> None:
        """Wait until a foreign daemon serves no other user. CUDA itself would wait forever,
        without a message."""
        limit = time.monotonic() + ANOTHER_USER_LIMIT
        is_reported = False
        while served := front.another_user():
            user, pid = served
            where = f"the MPS daemon at {front.pipes}"
            if not is_reported:
                why = f"{where} serves {user}, and takes one user at a time (process {pid})"
                self.report(messages.Waiting(number, why))
                is_reported = True
            if time.monotonic() > limit:
                why = f"{where} still serves {user} after {ANOTHER_USER_LIMIT:g} s (process {pid})"
                raise OccupiedError(why)
            self.pause(ANOTHER_USER_TICK, ask=True)

    def prepare(self, number: int, groups: list[messages.Group], foreign: str) -> None:
        stop(self.daemons.values())
        self.daemons, self.fronts = {}, {}
        if foreign:
            self.fronts = {"": FrontEnd(self.control, foreign)}
            if self.fronts[""].servers() is None:
                raise MpsError(f"the MPS daemon at {foreign} no longer answers")
        self.start_daemons(number, [group.uuids for group in groups if group.owned])
        for group in groups:
            if not group.owned:
                key = ",".join(group.uuids)
                self.fronts[key] = self.other(key, number)

    def start_daemons(self, number: int, groups: Iterable[list[str]]) -> None:
        """Start a daemon for each group. If one fails, stop all of them. They have no clients yet:
        other agents' workers may become clients only when all are ready.
        """
        try:
            for uuids in groups:
                key = ",".join(uuids)
                daemon = MpsDaemon(self.control, self.directory(key), uuids, self.spawner)
                self.daemons[key] = daemon
                daemon.start(self.pause)
                daemon.start_server()
            for daemon in self.daemons.values():
                daemon.await_server(self.pause)
        except (MpsError, OSError):
            stop(self.daemons.values())
            raise
        for key, daemon in self.daemons.items():
            daemon.stamp(number)
            self.fronts[key] = daemon.front

    def directory(self, key: str) -> str:
        if self.home is None:
            self.home = enter(self.places, self.prefix + self.job)
        path = f"{self.home[0]}/{zlib.crc32(key.encode()):08x}"
        make(path)
        return path

    def other(self, key: str, number: int) -> FrontEnd:
        """Wait for the daemon of another agent on this node."""
        directory = self.directory(key)
        limit = time.monotonic() + OTHERS_LIMIT
        while ready_for(directory) < number:
            if time.monotonic() > limit:
                raise MpsError(f"another agent has not started the MPS daemon for {key} in time")
            self.pause(TICK, ask=True)
        return FrontEnd(self.control, f"{directory}/pipe")

    # The workers

    def look(self, watch: ClientWatch) -> None:
        found = {key: front.clients() for key, front in self.fronts.items()}
        clients = {key: pids for key, pids in found.items() if pids is not None}
        pids: set[int] = set()
        outside: set[int] = set()
        if len(clients) == len(found):  # while a daemon hangs, nothing is known about the workers
            pids = pids.union(*clients.values())
            outside, are_served = watch.look(pids)
            if are_served:
                self.report(messages.Clients({key: len(pids) for key, pids in clients.items()}))
                self.watch = None
                return
        is_mapped = not outside or all(f.reports_our_pids() for f in self.fronts.values())
        if 0 in pids or not is_mapped:  # 0: a client that the daemon itself cannot see
            self.report(messages.Unmapped())
            self.watch = None
            return
        if outside:
            self.report(messages.Outside(sorted(outside)))
        if not watch.again():
            self.watch = None

    # The end

    def end(self) -> None:
        limit = time.monotonic() + LAST_CLIENTS_LIMIT
        for daemon in self.daemons.values():
            while daemon.alive() and daemon.front.clients() and time.monotonic() < limit:
                time.sleep(TICK)
        left = stop(self.daemons.values())
        if self.home is not None and not left:
            leave(*self.home)


class ClientWatch:
    """A check whether the workers of a round are clients, repeated at growing intervals."""

    def __init__(self, workers: Mapping[int, int], first: float) -> None:
        self.workers = workers  # rank -> pid, which is its session's too
        self.interval = first
        self.due = time.monotonic() + first
        self.until = time.monotonic() + WATCH
        self.suspects: set[int] = set()
        self.has_reported = False

    def look(self, clients: Iterable[int]) -> tuple[set[int], bool]:
        """Return (the ranks that are now known to use CUDA outside of MPS, whether all are
        clients)."""
        sessions = {session(pid) for pid in clients}
        absent = {rank for rank, pid in self.workers.items() if pid not in sessions}
        if not absent:
            return set(), True
        if self.has_reported:
            return set(), False
        of = {self.workers[rank]: rank for rank in absent}
        suspects = {
            of[s] for pid in all_pids() if (s := session(pid)) in of and has_cuda_context(pid)
        }
        certain, self.suspects = suspects & self.suspects, suspects
        self.has_reported = bool(certain)
        return certain, False

    def again(self) -> bool:
        self.interval = min(2 * self.interval, LONGEST_INTERVAL)
        self.due = time.monotonic() + self.interval
        return self.due < self.until


def session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended, or may not be asked
        return 0


def has_cuda_context(pid: int) -> bool:
    """Return whether a process computes on a GPU, as its threads show. Its open devices do not show
    it: NVML, for programs that only watch a GPU, opens the same ones, also /dev/nvidia-uvm (seen
    with driver 580).
    """
    return any(program(f"{pid}/task/{thread}") == CONTEXT_THREAD for thread in threads_of(pid))


def main(
    fd: str,
    blocked: str,
    spared: str,
    control: str,
    places: str,
    prefix: str,
    job: str,
    first: str,
) -> None:
    for s in {*SPARED, *numbers(spared)}:
        signal.signal(s, signal.SIG_IGN)
    # What is ignored here stays ignored in the daemons.
    spawner = Spawner({}, numbers(blocked))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = MpsKeeper(AgentChannel(fd), spawner, control, json.loads(places), prefix, job)
    try:
        keeper.run(float(first))
    except AgentGoneError:
        pass
    finally:
        keeper.end()
