"""Health rules for GPUs: they judge readings, and return findings.

FAIL means that the training would break or compute wrong numbers: the node is cordoned. WARN is
reported once. A finding's `check` names the GPU and the kind of problem, without figures, so that
the same problem is recognised later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..protocol.wording import GIB, count, size
from .findings import Finding, Grade, Problem
from .xids import REBOOT, RESET, Fault, xid

# A CUDA context takes 0.3 to 0.6 GiB, and is freed shortly after its process has ended. If more
# remains in use, a model that fills the GPU no longer fits.
MEMORY_LEFT = GIB
MPS = "nvidia-cuda-mps"  # the beginning of the names of MPS's processes, which hold a context


class Slowdown(str, Enum):
    """The reason why a GPU is slowed down. A power cap is normal, and not listed."""

    THERMAL = "it is too hot"  # NVML's software and hardware thermal slowdown
    POWER_BRAKE = "the power supply asks for it (power brake)"


class Recovery(Enum):
    """The recovery action of a GPU, by driver 565 or later: NVML_GPU_RECOVERY_ACTION_*."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4  # still usable, but must be reset soon: a row remap is pending
    RECOVER_IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


_UNUSABLE = {
    Recovery.RESET: RESET,
    Recovery.REBOOT: REBOOT,
    Recovery.BUS_RESET: RESET,
    Recovery.SYSTEM_REBOOT: REBOOT,
}


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has a context on the GPU."""

    pid: int
    memory: int | None = None  # bytes; None if the driver does not report it
    user: str = ""  # its owner; "" for a process that is not visible from here
    command: str = ""
    ours: bool = False  # it belongs to the agent's user
    dead: bool = False  # it was a worker of a round that has ended


@dataclass(frozen=True, slots=True)
class NvLink:
    """An NVLink. None stands for a value that the GPU does not report."""

    up: bool | None
    errors: int | None = 0  # replays and recoveries since the driver was loaded


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU. The defaults, which mean a healthy GPU, stand for values that the GPU
    or its driver does not report.
    """

    name: str
    lost: str = ""  # why the GPU cannot be read at all; "" if it can
    uncorrected: int = 0  # memory errors since the driver was loaded (volatile)
    pages_pending: bool = False
    rows_pending: bool = False
    rows_failed: bool = False
    recovery: Recovery | None = None
    slow: tuple[Slowdown, ...] = ()
    temperature: int = 0
    links: tuple[NvLink, ...] = ()
    links_of_siblings: int = 0  # the most links that are up on another GPU of this model here
    processes: tuple[Process, ...] = ()
    used: int = 0  # bytes in use, without the driver's own
    idle: bool = False  # no worker is running, so no process of ours should hold memory

    @property
    def contained(self) -> bool:
        """Whether memory errors have damaged nothing else. Drivers since 565 show it by a recovery
        action that leaves the GPU usable, older ones by a pending row remap.
        """
        if self.rows_failed or self.recovery in _UNUSABLE:
            return False
        return self.recovery is not None or self.rows_pending

    @property
    def links_up(self) -> int:
        return sum(link.up is True for link in self.links)

    @property
    def unowned(self) -> int:
        """Bytes in use that no process holds; 0 if the memory of a process is not known."""
        held = [p.memory for p in self.processes]
        return max(0, self.used - sum(m for m in held if m)) if None not in held else 0


def judge(now: GpuReading, first: GpuReading | None = None) -> list[Finding]:
    """Judge one reading. `first` is the earliest reading of the same GPU in this job."""
    if now.lost:
        return [Finding(now.name, f"does not answer: {now.lost}", Grade.FAIL, REBOOT)]
    return [*_memory_errors(now), *_links(now, first), *_slow(now), *_processes(now)]


def _memory_errors(now: GpuReading) -> Iterable[Finding]:
    # Source: NVIDIA's "GPU memory error management". An uncorrected error ends the process that
    # read the memory. A contained error damages nothing else, and the driver retires the page. An
    # uncontained one may have damaged other data, until the GPU is reset.
    errors = count(now.uncorrected, "uncorrected memory error")
    if now.uncorrected and now.contained:
        were = "was" if now.uncorrected == 1 else "were"
        found = f"{errors}, which {were} contained"
        advice = "the GPU can be used; if there are more, report it to the administrator"
        yield Finding(f"{now.name} ECC", found, Grade.WARN, advice)
    elif now.uncorrected:
        found = f"{errors} since the driver was loaded"
        yield Finding(f"{now.name} ECC", found, Grade.FAIL, RESET)
    # From the same document: a GPU with a failed remap is to be replaced (RMA).
    if now.rows_failed:
        found = "bad memory rows could not be remapped"
        advice = "the GPU is to be replaced, once its vendor's field diagnostic agrees"
        yield Finding(f"{now.name} rows", found, Grade.FAIL, advice)
    if now.recovery in _UNUSABLE:
        found = "the driver says that it cannot be used before a reset"
        yield Finding(f"{now.name} recovery", found, Grade.FAIL, _UNUSABLE[now.recovery])
    # From the same document: a pending remap or retirement does no harm to running processes,
    # because the driver no longer allocates that memory. A reset completes it.
    pending = now.rows_pending or now.pages_pending
    if pending or now.recovery in (Recovery.DRAIN_AND_RESET, Recovery.DRAIN_P2P):
        what = "row remap" if now.rows_pending else "page retirement"
        found = f"a {what} is pending" if pending else "the driver asks for a reset soon"
        advice = f"no harm for now; {RESET}"
        yield Finding(f"{now.name} pending", found, Grade.WARN, advice)


def _links(now: GpuReading, first: GpuReading | None) -> Iterable[Finding]:
    """Find missing links: those that were up before, or are up on another GPU of the same model on
    this host.

    A link that is down need not be a fault: a board may use fewer links than its chip has, and a
    GPU whose links are all down has no NVLink.
    """
    earlier = first.links if first is not None else ()
    pairs = list(zip(earlier, now.links, strict=False))
    up = now.links_up
    unknown = sum(link.up is None for link in now.links)
    down = [i for i, (a, b) in enumerate(pairs) if a.up is True and b.up is False]
    fewer = 0 < up < now.links_of_siblings - unknown
    if down or fewer:
        which = f"link {', '.join(map(str, down))} went down" if down else "links are down"
        expected = max(0 if first is None else first.links_up, now.links_of_siblings)
        found = f"{which}: {up} of {expected} are up"
        advice = f"NCCL fails on it, or takes a slow way; {RESET}, and the fabric manager's log"
        yield Finding(f"{now.name} NVLink", found, Grade.FAIL, advice)
    # DCGM's health watch warns at the first replay or recovery. Both repair the transfer and cost
    # only time, so only those during this job matter.
    counts = [(a.errors, b.errors) for a, b in pairs]
    grown = sum(b - a for a, b in counts if a is not None and b is not None and b > a)
    if grown:
        found = f"NVLink has repeated {count(grown, 'transfer')} during this job"
        advice = "collectives may be slow; if it continues, report nvidia-smi nvlink -e"
        yield Finding(f"{now.name} NVLink errors", found, Grade.WARN, advice)


def _slow(now: GpuReading) -> Iterable[Finding]:
    # Each of these reasons of NVML's lowers the clock far below its base.
    for reason in now.slow:
        found = f"runs slower, since {reason.value}"
        if reason is Slowdown.THERMAL and now.temperature:
            found += f", {now.temperature} C"
        advice = "check its cooling" if reason is Slowdown.THERMAL else "check the node's power"
        advice += "; every step of the training waits for the slowest GPU"
        yield Finding(f"{now.name} slowdown {reason.name}", found, Grade.WARN, advice)


def _processes(now: GpuReading) -> Iterable[Finding]:
    for p in now.processes:
        if p.command.startswith(MPS):
            continue
        who = f"process {p.pid}" + (f" ({p.command})" if p.command else "")
        holds = "is on it" if p.memory is None else f"holds {size(p.memory)} of it"
        if p.user and not p.ours:
            found = f"{p.user}'s {who} {holds}"
            advice = "ask Slurm for exclusive GPUs, or report it to the administrator"
            yield Finding(f"{now.name} user {p.user}", found, Grade.WARN, advice)
        elif now.idle and p.dead:
            found = f"{who} of the last round still {holds}"
            advice = "it does not die: most likely the GPU or a file system hangs"
            yield Finding(f"{now.name} process {p.pid}", found, Grade.WARN, advice)
        elif now.idle and (p.memory or 0) >= MEMORY_LEFT:
            whose = f"your own {who}" if p.ours else f"{who}, which cannot be seen from here,"
            advice = f"kill {p.pid}, if it is left from an earlier run" if p.ours else ""
            found = f"{whose} {holds}"
            advice = advice or "another container or job is on the same GPU"
            yield Finding(f"{now.name} process {p.pid}", found, Grade.WARN, advice)
    if now.idle and now.unowned >= MEMORY_LEFT:
        found = f"{size(now.unowned)} are in use by no visible process"
        advice = f"left by a dead process, or held in another container; else {RESET}"
        yield Finding(f"{now.name} memory", found, Grade.WARN, advice)


def judge_survey(broken: str, found: int, expected: int | None) -> list[Finding]:
    """Judge a GPU that did not answer when the GPUs were counted.

    `broken` is the fault, `found` the number of GPUs that answered, and `expected` the number that
    this task was given; None if not known. If `expected` GPUs answered, the broken one belongs to
    another job.
    """
    fail = found > 0 if expected is None else found < expected
    return [Problem.GPU_SILENT.finding(broken, Grade.FAIL if fail else Grade.WARN)]


@dataclass(frozen=True, slots=True)
class XidSeen:
    """An error that the driver has reported, and the processes that were on the GPU then, with
    their ancestors. The driver does not report which of them caused it.
    """

    uuid: str
    name: str
    number: int
    pids: tuple[int, ...] = ()

    @property
    def of_program(self) -> bool:
        """Whether the program is at fault. Every other Xid is a finding about the GPU."""
        return xid(self.number).fault is Fault.PROGRAM

    @property
    def meaning(self) -> str:
        known = xid(self.number)
        return f"{known.name}; {known.advice}"

    def __str__(self) -> str:
        return f"Xid {self.number} on {self.name}: {self.meaning}"


class History:
    """The first and last readings of the GPUs in this job, and the findings reported so far."""

    def __init__(self) -> None:
        self.last: dict[str, GpuReading] = {}  # by name
        self._first: dict[str, GpuReading] = {}
        self._reported: set[str] = set()  # the `check` of each reported finding
        # Fatal Xids: the driver reports each once, but they remain findings until the job ends.
        self._fatal: dict[str, Finding] = {}

    def answer(self, readings: Iterable[GpuReading]) -> list[Finding]:
        """Return all FAIL findings, and those others that are not reported yet."""
        findings = [*self._judge(readings), *self._fatal.values()]
        fresh = self._fresh(findings)
        return [f for f in findings if f.grade is Grade.FAIL or f in fresh]

    def news(self, readings: Iterable[GpuReading]) -> list[Finding]:
        """Return the findings that are not reported yet."""
        return self._fresh(self._judge(readings))

    def xid(self, name: str, number: int) -> list[Finding]:
        """Return the finding for an Xid, if it is new; [] if the program is at fault."""
        known = xid(number)
        if known.fault is Fault.PROGRAM:
            return []
        grade = Grade.FAIL if known.fatal else Grade.WARN
        found = f"Xid {number}, {known.name}"
        finding = Finding(f"{name} Xid {number}", found, grade, known.advice)
        if known.fatal:
            self._fatal[finding.check] = finding
        return self._fresh([finding])

    def may_be_given_back(self, reading: GpuReading) -> bool:
        """Return whether to wait for memory to be freed: a dead worker is still on the GPU, or no
        process holds the memory. The latter is waited for once, and then reported.
        """
        unowned = reading.unowned >= MEMORY_LEFT and f"{reading.name} memory" not in self._reported
        return unowned or any(p.dead for p in reading.processes)

    def _judge(self, readings: Iterable[GpuReading]) -> list[Finding]:
        findings = []
        for reading in readings:
            self.last[reading.name] = reading
            if not reading.lost:
                self._first.setdefault(reading.name, reading)
            findings += judge(reading, self._first.get(reading.name))
        return findings

    def _fresh(self, findings: Iterable[Finding]) -> list[Finding]:
        fresh = [f for f in findings if f.check not in self._reported]
        self._reported |= {f.check for f in fresh}
        return fresh
