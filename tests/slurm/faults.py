"""Random faults for an `Endless` training: those of `make soak` and of `bench/chaos.py`."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass

from hpclaunch.system.network import secret, zmq_channel

from .cluster import CONTROLLER
from .conftest import AGENT, FORK_SERVER, ROOT, WORKER
from .endless import Endless
from .hosts import Process

TEMPLATE = r"\(template\)"
MPS_KEEPER = r"hpclaunch\.worker\.mps"
CROWD = ROOT / "tests" / "stand_ins" / "crowd.py"
STRANGERS = 1000

# Run beside a process: what it traces cannot be reaped by its parent, not even after SIGKILL.
TRACER = """
import ctypes, sys, time
PTRACE_SEIZE = 0x4206
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None):
    sys.exit(f"ptrace: errno {ctypes.get_errno()}")
print("traced", flush=True)
time.sleep(600)
"""


@contextmanager
def unkillable(pid: int) -> Iterator[None]:
    """SIGKILL does not end the process meanwhile."""
    command = [sys.executable, "-c", TRACER, str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "traced\n"
        try:
            yield
        finally:
            tracer.kill()


@dataclass(frozen=True, slots=True)
class Fault:
    """It strikes when `during` is entered, and is healed when that is left.

    A process that it would strike may not be there at that moment: then nothing happens.
    """

    words: str
    during: AbstractContextManager[None]
    lasts: float = 0.0  # seconds until it is to be healed
    network: bool = False  # no two of these at the same time


class Faults:
    def __init__(self, training: Endless, rng: random.Random) -> None:
        self.training, self.rng = training, rng
        self.job, self.cluster = training.job, training.cluster
        self.hosts = list(self.cluster.nodes)
        self.kinds: list[Callable[[str], Fault]] = [
            self.worker,
            self.error,
            self.unkillable,
            self.fork_server,
            self.template,
            self.mps_keeper,
            self.agent,
            self.stop,
            self.blip,
            self.cut,
            self.parts,
            self.firewalls,
            self.suspend,
            self.disk,
            self.crowd,
        ]
        self._drawn = 0

    def draw(self) -> Fault:
        """The next one. Which that is depends on `rng` alone, and not on what the job does."""
        self._drawn += 1
        host = self.rng.choice(self.hosts)
        return self.rng.choice(self.kinds)(host)

    def _lasting(self, most: float) -> float:
        return self.rng.uniform(0.5, most)

    # Processes

    def worker(self, host: str) -> Fault:
        return Fault(f"{host}: a worker killed", self._killed(host, WORKER))

    def fork_server(self, host: str) -> Fault:
        return Fault(f"{host}: the fork server killed", self._killed(host, FORK_SERVER))

    def template(self, host: str) -> Fault:
        """The youngest of this name is the round's store, on the node that has it."""
        return Fault(f"{host}: the template or the store killed", self._killed(host, TEMPLATE))

    def mps_keeper(self, host: str) -> Fault:
        return Fault(f"{host}: the keeper of MPS killed", self._killed(host, MPS_KEEPER))

    def agent(self, host: str) -> Fault:
        after = self._lasting(20)
        words = f"{host}: the agent killed, and started anew after {after:.1f} s"
        return Fault(words, self._started_anew(host, after))

    def stop(self, host: str) -> Fault:
        lasts = self._lasting(8)
        return Fault(f"{host}: the agent stopped for {lasts:.1f} s", self._stopped(host), lasts)

    def unkillable(self, host: str) -> Fault:
        lasts = self._lasting(8)
        words = f"{host}: a worker killed that does not go for {lasts:.1f} s"
        return Fault(words, self._killed_in_vain(host), lasts)

    def error(self, host: str) -> Fault:
        """A different one each time: the same twice, and no checkpoint in between, ends a job."""
        words = f"fault {self._drawn}"
        return Fault(f"{host}: a worker raises", self._raises(host, words), lasts=2.0)

    @contextmanager
    def _killed(self, host: str, pattern: str) -> Iterator[None]:
        """The youngest."""
        for process in self._youngest(host, pattern):
            _send(process, signal.SIGKILL)
        yield

    @contextmanager
    def _started_anew(self, host: str, after: float) -> Iterator[None]:
        for agent in self._youngest(host, AGENT):
            (self.job.directory / f"again.{host}").write_text(f"{after:.1f}\n")
            _send(agent, signal.SIGKILL)
        yield

    @contextmanager
    def _stopped(self, host: str) -> Iterator[None]:
        agents = self.cluster.processes(AGENT, host=host)
        for agent in agents:
            _send(agent, signal.SIGSTOP)
        try:
            yield
        finally:
            for agent in agents:
                _send(agent, signal.SIGCONT)

    @contextmanager
    def _killed_in_vain(self, host: str) -> Iterator[None]:
        with ExitStack() as tracers:
            for worker in self._youngest(host, WORKER):
                with suppress(AssertionError):  # it may have ended just now
                    tracers.enter_context(unkillable(worker.pid))
                _send(worker, signal.SIGKILL)
            yield

    @contextmanager
    def _raises(self, host: str, words: str) -> Iterator[None]:
        wish = self.training.saved / f"raise.{host}"
        draft = wish.with_suffix(".tmp")
        draft.write_text(words)
        draft.rename(wish)
        try:
            yield
        finally:
            wish.unlink(missing_ok=True)

    def _youngest(self, host: str, pattern: str) -> list[Process]:
        """One, or none if there is none now."""
        return sorted(self.cluster.processes(pattern, host=host), key=lambda p: p.pid)[-1:]

    # The network

    def blip(self, host: str) -> Fault:
        during = self.cluster.nodes[host].without_network()
        return Fault(f"{host}: no network for a moment", during, 0.2, network=True)

    def cut(self, host: str) -> Fault:
        lasts = self._lasting(12)
        during = self.cluster.nodes[host].without_network()
        return Fault(f"{host}: no network for {lasts:.1f} s", during, lasts, network=True)

    def parts(self, host: str) -> Fault:
        lasts = self._lasting(10)
        away, _ = self._divided(host)
        words = f"{', '.join(away)}: without the rest for {lasts:.1f} s"
        return Fault(words, self.cluster.parted(away), lasts, network=True)

    def firewalls(self, host: str) -> Fault:
        """On one side or on both."""
        lasts = self._lasting(10)
        away, rest = self._divided(host)
        both = self.rng.choice([False, True])
        words = f"{', '.join(away)}: the rest's connections reset for {lasts:.1f} s"
        words += ", and theirs by the rest" if both else ""
        return Fault(words, self._refusing(away, rest, both=both), lasts, network=True)

    def crowd(self, host: str) -> Fault:
        lasts = self._lasting(10)
        words = f"{host}: {STRANGERS} strangers at the agent's port for {lasts:.1f} s"
        return Fault(words, self._crowded(host), lasts)

    def _divided(self, host: str) -> tuple[list[str], list[str]]:
        """This host with some others, and the rest."""
        others = [name for name in self.hosts if name != host]
        away = [host, *self.rng.sample(others, self.rng.randrange(1, len(others)))]
        return away, [name for name in self.hosts if name not in away]

    @contextmanager
    def _refusing(self, away: list[str], rest: list[str], *, both: bool) -> Iterator[None]:
        with ExitStack() as firewalls:
            firewalls.enter_context(self.cluster.refusing(away, rest))
            if both:
                firewalls.enter_context(self.cluster.refusing(rest, away))
            yield

    @contextmanager
    def _crowded(self, host: str) -> Iterator[None]:
        """From another node; it may be that they do not all get in."""
        number = self.hosts.index(host)
        home = self.cluster.environment(self.job.directory)
        key = secret.load_or_create(secret.secret_path(home))
        port = zmq_channel.derive(key, f"{self.job.id}.0", agent=number).ports[0]
        target = [self.cluster.nodes[host].address, str(port), str(STRANGERS)]
        stranger = self.cluster.nodes[self.hosts[number - 1]]
        command = stranger.command([sys.executable, str(CROWD), *target])
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL  # they go at the end of their input
        with subprocess.Popen(command, stdin=pipe, stdout=nowhere, stderr=nowhere) as crowd:
            try:
                yield
            finally:
                crowd.kill()

    # The rest

    def suspend(self, _: str) -> Fault:
        """Not while a node cannot be reached: it would never hear that the job is resumed."""
        lasts = self._lasting(6)
        return Fault(f"the job suspended for {lasts:.1f} s", self._suspended(), lasts, network=True)

    def disk(self, host: str) -> Fault:
        lasts = self._lasting(6)
        words = f"{host}: no room for logs for {lasts:.1f} s, and a worker killed"
        return Fault(words, self._full(host), lasts)

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        self.cluster.on(CONTROLLER, ["scontrol", "suspend", str(self.job.id)])
        try:
            yield
        finally:
            self.cluster.on(CONTROLLER, ["scontrol", "resume", str(self.job.id)])

    @contextmanager
    def _full(self, host: str) -> Iterator[None]:
        """Not even for an empty file."""
        options = ["-t", "tmpfs", "-o", "size=4k,nr_inodes=1"]
        self.cluster.on(host, ["mount", *options, "small", str(self.training.logs)])
        try:
            with self._killed(host, WORKER):
                yield
        finally:
            self.cluster.on(host, ["umount", "--lazy", str(self.training.logs)])


def _send(process: Process, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended just now
        process.kill(signum)
