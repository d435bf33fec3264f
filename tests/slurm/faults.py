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

# A process that is traced cannot be reaped by its parent, not even after SIGKILL.
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
    """Let the process survive SIGKILL meanwhile."""
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
    """A fault that begins when `during` is entered, and ends when that is left.

    Nothing happens if its target process does not exist at that time.
    """

    words: str
    during: AbstractContextManager[None]
    lasts: float = 0.0  # seconds until it must end
    network: bool = False  # two of these must not overlap


class Faults:
    """A random sequence of faults in a training."""

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
        """Return the next fault, which depends on `rng` only."""
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
        """Kill the youngest process of this name: on the head's node, the round's store."""
        return Fault(f"{host}: the template or the store killed", self._killed(host, TEMPLATE))

    def mps_keeper(self, host: str) -> Fault:
        return Fault(f"{host}: the MPS keeper killed", self._killed(host, MPS_KEEPER))

    def agent(self, host: str) -> Fault:
        after = self._lasting(20)
        words = f"{host}: the agent killed, and started again after {after:.1f} s"
        return Fault(words, self._started_again(host, after))

    def stop(self, host: str) -> Fault:
        lasts = self._lasting(8)
        return Fault(f"{host}: the agent stopped for {lasts:.1f} s", self._stopped(host), lasts)

    def unkillable(self, host: str) -> Fault:
        lasts = self._lasting(8)
        words = f"{host}: a worker killed that survives for {lasts:.1f} s"
        return Fault(words, self._survives_sigkill(host), lasts)

    def error(self, host: str) -> Fault:
        """Raise a new error each time: the same error twice, without a checkpoint, ends a job."""
        words = f"fault {self._drawn}"
        return Fault(f"{host}: a worker raises", self._raises(host, words), lasts=2.0)

    @contextmanager
    def _killed(self, host: str, pattern: str) -> Iterator[None]:
        """Kill the youngest such process."""
        for process in self._youngest(host, pattern):
            _send(process, signal.SIGKILL)
        yield

    @contextmanager
    def _started_again(self, host: str, after: float) -> Iterator[None]:
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
    def _survives_sigkill(self, host: str) -> Iterator[None]:
        with ExitStack() as tracers:
            for worker in self._youngest(host, WORKER):
                with suppress(AssertionError):  # the worker may have just ended
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
        """Return the youngest such process, or []."""
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
        words = f"{', '.join(away)}: cut off from the rest for {lasts:.1f} s"
        return Fault(words, self.cluster.partitioned(away), lasts, network=True)

    def firewalls(self, host: str) -> Fault:
        """Reset connections, on one side or on both."""
        lasts = self._lasting(10)
        away, rest = self._divided(host)
        both = self.rng.choice([False, True])
        words = f"{', '.join(away)}: connections from the rest reset for {lasts:.1f} s"
        words += ", and those to the rest" if both else ""
        return Fault(words, self._refusing(away, rest, both=both), lasts, network=True)

    def crowd(self, host: str) -> Fault:
        lasts = self._lasting(10)
        words = f"{host}: {STRANGERS} foreign connections to the agent for {lasts:.1f} s"
        return Fault(words, self._crowded(host), lasts)

    def _divided(self, host: str) -> tuple[list[str], list[str]]:
        """Return this host with some others, and the rest."""
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
        """Connect from another node; some of the connections may fail."""
        number = self.hosts.index(host)
        home = self.cluster.environment(self.job.directory)
        key = secret.load_or_create(secret.secret_path(home))
        port = zmq_channel.derive(key, f"{self.job.id}.0", agent=number).ports[0]
        target = [self.cluster.nodes[host].address, str(port), str(STRANGERS)]
        stranger = self.cluster.nodes[self.hosts[number - 1]]
        command = stranger.command([sys.executable, str(CROWD), *target])
        pipe, nowhere = (
            subprocess.PIPE,
            subprocess.DEVNULL,
        )  # the crowd ends at the end of its input
        with subprocess.Popen(command, stdin=pipe, stdout=nowhere, stderr=nowhere) as crowd:
            try:
                yield
            finally:
                crowd.kill()

    # The rest

    def suspend(self, _: str) -> Fault:
        """Suspend the job, but never during a network fault: a node would miss the resumption."""
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
        """Leave no room in the log directory, not even for an empty file, and kill a worker."""
        options = ["-t", "tmpfs", "-o", "size=4k,nr_inodes=1"]
        self.cluster.on(host, ["mount", *options, "small", str(self.training.logs)])
        try:
            with self._killed(host, WORKER):
                yield
        finally:
            self.cluster.on(host, ["umount", "--lazy", str(self.training.logs)])


def _send(process: Process, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have just ended
        process.kill(signum)
